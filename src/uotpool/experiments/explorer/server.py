"""The web server of the explorer: on this machine, for this machine."""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
import sys
import threading
import webbrowser
from urllib.parse import urlsplit

import torch
from dash import Dash
from flask import Response, abort, request
from werkzeug.serving import BaseWSGIServer, make_server

from uotpool.experiments.explorer import PORT, callbacks, inputs, page

LOOPBACK = ("localhost", "127.0.0.1", "::1")
# Callbacks carry a file at most, in base64, and some numbers.
MOST_REQUEST = 2 * inputs.MOST_BYTES + 64 * 1024
# The browser itself refuses what is not from here. Dash needs inline scripts, plotly.js styles and images.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)


def build(host: str) -> Dash:
    """The application, for requests to this host only."""
    app = Dash(
        __name__,
        assets_folder="assets",
        serve_locally=True,
        title="uotpool explore",
        update_title="",
        add_log_handler=False,
        enable_mcp=False,
        meta_tags=[{"name": "viewport", "content": "width=device-width, initial-scale=1"}],
    )
    # Given here, so that no environment variable turns one on. The version check asks a server of Plotly's.
    app.enable_dev_tools(
        debug=False,
        dev_tools_ui=False,
        dev_tools_props_check=False,
        dev_tools_serve_dev_bundles=False,
        dev_tools_hot_reload=False,
        dev_tools_silence_routes_logging=True,
        dev_tools_disable_version_check=True,
        dev_tools_prune_errors=False,
        dev_tools_validate_callbacks=False,
    )
    app.layout = page.layout()
    callbacks.register(app)
    app.server.config["MAX_CONTENT_LENGTH"] = MOST_REQUEST

    @app.server.before_request
    def guard() -> None:
        """No page of another site may reach this one, not by a name that was made to point here either."""
        origin = request.headers.get("Origin")
        if not allowed(request.host, host) or (origin and not allowed(origin.partition("//")[2], host)):
            abort(403, "this page answers only to the host it was started for")

    @app.server.after_request
    def protect(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response

    return app


def allowed(netloc: str, host: str) -> bool:
    """Whether a request to (or from) netloc, a name with or without port, is one to a server on host."""
    try:
        name = urlsplit(f"//{netloc}").hostname or ""
    except ValueError:
        return False
    if name in (*LOOPBACK, host.lower()):
        return True
    if not _is_address(host) or not ipaddress.ip_address(host).is_unspecified:
        return False
    # On all addresses of the machine: any of them, or its name. A rebound name is none of these.
    return _is_address(name) or name == socket.gethostname().lower()


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def bind(host: str, port: int | None) -> socket.socket:
    """A socket that listens; without a port the usual one, or any if that is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    tries = (PORT, 0) if port is None else (port,)
    for attempt in tries:
        listening = socket.socket(family, socket.SOCK_STREAM)
        if sys.platform != "win32":  # there it would share the port
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, attempt))
            listening.listen(128)
            return listening
        except OSError as error:
            listening.close()
            if error.errno != errno.EADDRINUSE or attempt == tries[-1]:
                raise OSError(f"cannot listen on {host}, port {attempt}: {error.strerror or error}") from error
    raise AssertionError("unreachable")


def serve(host: str, port: int | None) -> tuple[BaseWSGIServer, str]:
    """A server that is ready to run, and its address."""
    listening = bind(host, port)
    number = listening.getsockname()[1]
    # make_server ends the program if it cannot bind, so it gets what is bound.
    server = make_server(host, number, build(host).server, threaded=True, fd=listening.detach())
    name = f"[{host}]" if ":" in host else host
    return server, f"http://{name}:{number}/"


def run(host: str, port: int | None, *, browser: bool) -> int:
    """Until Ctrl-C."""
    torch.set_num_threads(1)  # sizes are small, and requests come in threads
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server, url = serve(host, port)
    if not _is_loopback(host):
        print(
            f"warning: --host {host} lets others on the network open this page; it has no password",
            file=sys.stderr,
        )
    print(f"uotpool explore: {url} (Ctrl-C stops it)", flush=True)
    if browser:  # not before it answers; some browsers do not return until they are closed
        threading.Timer(0.5, webbrowser.open, [url]).start()
    server.serve_forever()  # which ends by Ctrl-C, and closes the socket
    print("stopped", file=sys.stderr)
    return 0


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)
