"""The command `uotpool explore`."""

from __future__ import annotations

import argparse
from typing import Any

from uotpool_experiments.explorer import HOST, PORT


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("explore", help="open a local page to move the weights and watch the plan")
    parser.add_argument(
        "--host", default=HOST, help="address to listen on (default: %(default)s, this machine)"
    )
    parser.add_argument(
        "--port",
        type=_port,
        default=None,
        help=f"0 for any free port (default: {PORT}, or another one if that is taken)",
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="also answer to this name or address of the machine; may be given several times",
    )
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    parser.set_defaults(command_function=_explore)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 65535, got {text}")
    return int(text)


def _explore(args: argparse.Namespace) -> int:
    try:
        from uotpool_experiments.explorer import server
    except ModuleNotFoundError as error:
        if (error.name or "uotpool").startswith("uotpool"):
            raise
        raise ModuleNotFoundError(
            f"needs {error.name}: pip install 'uotpool-experiments[explore]'", name=error.name
        ) from error
    return server.run(args.host, args.port, args.allow_host, browser=not args.no_browser)
