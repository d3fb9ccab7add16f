"""The command `uotpool export`."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from uotpool_experiments.cli import arguments


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("export", help="write the runs in the store as CSV, one line per run")
    arguments.add_task(parser)
    parser.add_argument("--dataset", type=arguments.names, default=[], help="only these, separated by commas")
    parser.add_argument(
        "--epochs",
        type=Path,
        default=None,
        metavar="CSV",
        help="also write the accuracies of each epoch to this file, one line per epoch; from a store only",
    )
    arguments.add_source(parser)
    parser.set_defaults(command_function=_export)


def _export(args: argparse.Namespace) -> int:
    from uotpool_experiments.analysis.selection import Source
    from uotpool_experiments.runs import export
    from uotpool_experiments.runs.reading import is_csv
    from uotpool_experiments.runs.store import Store

    rows, _ = Source.read(args.store, args.task, args.stored).select(args.task, datasets=args.dataset)
    if args.epochs is not None:
        if is_csv(args.store):
            raise ValueError(f"--epochs: expected a run store, which has epochs, got the CSV file {args.store}")
        with closing(Store(args.store, readonly=True)) as store, args.epochs.open("w", newline="") as file:
            export.write_epochs(rows, store, file)
    export.write(rows, sys.stdout)
    return 0
