"""The commands that this package adds to `uotpool`, one module each.

`uotpool info` imports all of these modules too. So they import what trains, draws or computes only in the
functions that need it.
"""

from __future__ import annotations

from typing import Any

from uotpool_experiments.cli import (
    datasets,
    demo,
    explore,
    export,
    figure,
    report,
    run,
    same_code,
    sweep,
    table,
    tables,
)

COMMANDS = (demo, run, sweep, table, tables, same_code, report, export, figure, datasets, explore)


def add_parsers(commands: Any) -> None:
    """Adds the parser of each command to the subparsers of `uotpool`."""
    for command in COMMANDS:
        command.add_parser(commands)
