"""The command `uotpool figure`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from uotpool_experiments import figures
from uotpool_experiments.cli import arguments


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("figure", help="draw a figure of the paper again, as PNG and SVG")
    parser.add_argument(
        "name",
        choices=tuple(figures.FIGURES),
        help="; ".join(f"{name}: {entry.about}" for name, entry in figures.FIGURES.items()),
    )
    parser.add_argument(
        "--output", type=Path, default=Path("out/figures"), help="folder (default: %(default)s)"
    )
    parser.add_argument("--seed", type=arguments.seed, default=0, help="training seed (default: %(default)s)")
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="FILE",
        help="CSV file of `python -m bench`, for stability, convergence, runtime (default: the committed one)",
    )
    parser.set_defaults(command_function=_figure)


def _figure(args: argparse.Namespace) -> int:
    for line in figures.draw(args.name, args.output, args.seed, source=args.source):
        print(line)
    return 0
