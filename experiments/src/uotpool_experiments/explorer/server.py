"""The web server of the explorer: on this machine, for this machine."""

from __future__ import annotations

import errno
import io
import ipaddress
import logging
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import torch
from dash import Dash
from flask import Response, abort, request
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from uotpool_experiments.explorer import PORT, callbacks, inputs, page

LOOPBACK = ("localhost", "127.0.0.1", "::1")
RECEIVE = 20.0  # seconds within which a whole request has to come, and each piece of an answer to be taken
# Callbacks carry a file at most, in base64, and some numbers.
MOST_REQUEST = 2 * inputs.MOST_BYTES + 64 * 1024
# The browser itself refuses what is not from here. Dash needs inline scripts, plotly.js styles and images.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)


class Handler(WSGIRequestHandler):
    """Gives up a client that does not send its request, or does not take the answer: each has a thread."""

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(RECEIVE)
        self.rfile.close()
        self.rfile = io.BufferedReader(_Incoming(self.connection, time.monotonic() + RECEIVE))

    def log_error(self, format: str, *args: Any) -> None:
        """Nothing: a client that was given up is no news to who watches the terminal."""


class _Incoming(io.RawIOBase):
    """What a socket receives until a deadline, however small the pieces; then a TimeoutError."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection, self._deadline = connection, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._connection.settimeout(max(self._deadline - time.monotonic(), 0.001))
        try:
            return self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(RECEIVE)


def build(host: str, names: Sequence[str] = ()) -> Dash:
    """The application, for requests to this host only, by its own addresses or these names."""
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
        known = own_names(host, request.environ.get("werkzeug.socket")) | {name.lower() for name in names}
        origin = request.headers.get("Origin")
        if not allowed(request.host, known) or (origin and not allowed(origin.partition("//")[2], known)):
            abort(403, "this page answers only to the host it was started for; --allow-host NAME adds one")

    @app.server.after_request
    def protect(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = POLICY
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response

    return app


def own_names(host: str, connection: socket.socket | None) -> set[str]:
    """How this server may be called: as this machine, and as the address that it listens on.

    On all addresses of the machine: by the one that the client has reached, and by the machine's name.
    """
    names = {*LOOPBACK, host.lower()}
    if _is_address(host) and ipaddress.ip_address(host).is_unspecified:
        names.add(socket.gethostname().lower())
        if connection is not None:
            names.add(_plain(connection.getsockname()[0]))
    return names


def allowed(netloc: str, names: set[str]) -> bool:
    """Whether a request to (or from) netloc, a name with or without port, is one to a server of these names."""
    try:
        name = urlsplit(f"//{netloc}").hostname or ""
    except ValueError:
        return False
    return _plain(name) in names


def _plain(address: str) -> str:
    """One spelling of an address: without the zone of a link, IPv4 not as a part of IPv6. Names stay."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address.lower()
    return str(getattr(found, "ipv4_mapped", None) or found)


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


def serve(host: str, port: int | None, names: Sequence[str] = ()) -> tuple[BaseWSGIServer, str]:
    """A server that is ready to run, and its address."""
    listening = bind(host, port)
    number = listening.getsockname()[1]
    # make_server ends the program if it cannot bind, so it gets what is bound.
    app = build(host, names).server
    server = make_server(host, number, app, threaded=True, request_handler=Handler, fd=listening.detach())
    name = f"[{host}]" if ":" in host else host
    return server, f"http://{name}:{number}/"


def run(host: str, port: int | None, names: Sequence[str] = (), *, browser: bool) -> int:
    """Until Ctrl-C."""
    torch.set_num_threads(1)  # sizes are small, and requests come in threads
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server, url = serve(host, port, names)
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
