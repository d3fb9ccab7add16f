"""The command `uotpool datasets`."""

from __future__ import annotations

import argparse
from typing import Any


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "datasets", help="list the data sets, their statistics and whether they are here"
    )
    parser.set_defaults(command_function=_datasets)


def _datasets(args: argparse.Namespace) -> int:
    from uotpool_experiments.datasets import describe_lines

    for line in describe_lines():
        print(line)
    return 0
