"""The commands that this package adds to `uotpool`, one module each.

`uotpool info` imports all of these modules too. So they import what trains, draws or computes only
in the functions that need it.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import Any

from uotpool_experiments.cli import (
    claims,
    datasets,
    demo,
    export,
    figure,
    report,
    run,
    same_code,
    sweep,
    table,
    tables,
)

COMMANDS = (demo, run, sweep, table, tables, claims, same_code, report, export, figure, datasets)


def add_parsers(commands: Any) -> None:
    """Add the parser of each command to the subparsers of `uotpool`."""
    known = set(commands.choices)
    for command in COMMANDS:
        command.add_parser(commands)
    for name in commands.choices.keys() - known:
        parser = commands.choices[name]
        parser.set_defaults(command_function=_with_advice(parser.get_default("command_function")))


def _with_advice(command: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """Return the command, changed to say what to install if a package is missing."""

    @functools.wraps(command)
    def call(args: argparse.Namespace) -> int:
        try:
            return command(args)
        except ModuleNotFoundError as error:
            package = (error.name or "uotpool").partition(".")[0]
            if package.startswith("uotpool") or error.__cause__ is not None:  # the message has advice already
                raise
            raise ModuleNotFoundError(
                f"needs {package}: pip install --upgrade uotpool-experiments", name=error.name
            ) from error

    return call
