"""The command `uotpool sweep`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from uotpool_experiments.cli import arguments


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("sweep", help="do the runs that a TOML file lists; a stopped sweep continues")
    parser.add_argument("file", type=Path)
    parser.add_argument("--dry-run", action="store_true", help="only print what would be run")
    arguments.add_execution(parser)
    parser.set_defaults(command_function=_sweep)


def _sweep(args: argparse.Namespace) -> int:
    from uotpool_experiments.cli.execute import execute
    from uotpool_experiments.runs import sweep

    blocks = sweep.read_blocks(args.file)
    specs = list(dict.fromkeys(spec for block in blocks for spec in block))
    return execute(specs, args, dry=args.dry_run, blocks=blocks)
