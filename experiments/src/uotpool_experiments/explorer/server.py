"""The web server of the explorer, which runs on this machine and answers this machine."""

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
# Seconds within which a whole request has to come, and each piece of an answer has to be taken.
RECEIVE = 20.0
# A callback carries at most a file in base64 and some numbers.
MOST_REQUEST = 2 * inputs.MOST_BYTES + 64 * 1024
# With this policy the browser refuses content from elsewhere. Dash needs inline scripts, and
# plotly.js needs styles and images.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)


class Handler(WSGIRequestHandler):
    """Drops a client that does not send its request or take the answer, as each client holds a thread."""

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(RECEIVE)
        self.rfile.close()
        self.rfile = io.BufferedReader(_Incoming(self.connection, time.monotonic() + RECEIVE))

    def log_error(self, format: str, *args: Any) -> None:
        """Log nothing: a dropped client does not concern the person at the terminal."""


class _Incoming(io.RawIOBase):
    """Reads from a socket until a deadline, however small the pieces, then raises a TimeoutError."""

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
    """Build the application, which answers only requests to this host, by its own addresses or these names."""
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
    # We set all of these, so that no environment variable turns one on. The version check asks a
    # server of Plotly's.
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
        """Refuse requests from pages of other sites, also by a name that was made to point here."""
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
    """Return the names of this server: those of this machine, and the address that it listens on.

    A server on all addresses goes by the address that the client has reached and by the machine's
    name.
    """
    names = {*LOOPBACK, host.lower()}
    if _is_address(host) and ipaddress.ip_address(host).is_unspecified:
        names.add(socket.gethostname().lower())
        if connection is not None:
            names.add(_plain(connection.getsockname()[0]))
    return names


def allowed(netloc: str, names: set[str]) -> bool:
    """Return whether netloc, a name with or without port, is one of a server with these names."""
    try:
        name = urlsplit(f"//{netloc}").hostname or ""
    except ValueError:
        return False
    return _plain(name) in names


def _plain(address: str) -> str:
    """Spell an address in one way: without the zone of a link, and IPv4 not inside IPv6.

    Names stay as they are.
    """
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
    """Return a listening socket. Without a port it takes the usual one, or any if that is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    tries = (PORT, 0) if port is None else (port,)
    for attempt in tries:
        listening = socket.socket(family, socket.SOCK_STREAM)
        if sys.platform != "win32":  # on Windows the option would share the port
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
    """Return a server that is ready to run, and its address."""
    listening = bind(host, port)
    number = listening.getsockname()[1]
    # make_server ends the program if it cannot bind, so we hand it a bound socket.
    app = build(host, names).server
    server = make_server(host, number, app, threaded=True, request_handler=Handler, fd=listening.detach())
    name = f"[{host}]" if ":" in host else host
    return server, f"http://{name}:{number}/"


def run(host: str, port: int | None, names: Sequence[str] = (), *, browser: bool) -> int:
    """Serve the page until Ctrl-C."""
    torch.set_num_threads(1)  # problems are small, and each request has a thread
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server, url = serve(host, port, names)
    if not _is_loopback(host):
        print(
            f"warning: --host {host} lets others on the network open this page; it has no password",
            file=sys.stderr,
        )
    print(f"uotpool explore: {url} (Ctrl-C stops it)", flush=True)
    if browser:  # the timer lets the server start first; some browsers do not return until they are closed
        threading.Timer(0.5, webbrowser.open, [url]).start()
    server.serve_forever()  # Ctrl-C ends it, and it closes the socket
    print("stopped", file=sys.stderr)
    return 0


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)
