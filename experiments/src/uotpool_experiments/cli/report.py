"""The command `uotpool report`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from uotpool_experiments.plaintext import visible

FIGURES = Path("docs/figures")  # beside the folder of results


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("report", help="write one HTML page with tables, ranks and figures")
    parser.add_argument(
        "source",
        type=Path,
        nargs="*",
        help="run stores, CSV files of runs, or folders with TASK/tables.toml (default: the folder of results, "
        "which is results or that of the environment variable UOTPOOL_RESULTS)",
    )
    parser.add_argument("--output", type=Path, default=Path("out/report.html"), help="default: %(default)s")
    parser.add_argument(
        "--figures",
        type=Path,
        default=None,
        help=f"folder of figures drawn by uotpool figure (default: {FIGURES} for the folder of results)",
    )
    parser.add_argument("--stored", action="store_true", help="runs of earlier code too")
    parser.set_defaults(command_function=_report)


def _report(args: argparse.Namespace) -> int:
    from uotpool_experiments.report.content import collect, missing, pictures_in
    from uotpool_experiments.report.page import write
    from uotpool_experiments.tables import manifest

    if args.figures and not args.figures.is_dir():
        raise ValueError(f"--figures: expected a folder, got {args.figures}")
    sources = args.source or manifest.committed_folders()
    # The committed figures show the committed runs.
    folder = args.figures or (None if args.source else manifest.results_folder().parent / FIGURES)
    pictures = pictures_in(folder) if folder else []
    report = collect(sources, pictures, stored=args.stored)
    path = write(report, args.output)
    for line in missing(report):
        print(f"no table: {visible(line)}", file=sys.stderr)
    print(f"{path} ({path.stat().st_size / 2**20:.1f} MiB, open it in a browser)")
    return 0
