"""The commands `uotpool report` and `uotpool tables`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from uotpool.plaintext import visible
from uotpool_experiments.cli.summaries import SUMMARIES
from uotpool_experiments.report.content import collect, missing, pictures_in
from uotpool_experiments.report.page import write
from uotpool_experiments.tables import manifest as listed

FIGURES = Path("docs/figures")  # beside the folder of results


def add_parsers(commands: Any) -> None:
    report = commands.add_parser("report", help=SUMMARIES["report"])
    report.add_argument(
        "source",
        type=Path,
        nargs="*",
        help="run stores, CSV files of runs, or folders with TASK/tables.toml (default: the folder of results, "
        f"which is results or that of the environment variable {listed.FOLDER})",
    )
    report.add_argument("--output", type=Path, default=Path("out/report.html"), help="default: %(default)s")
    report.add_argument(
        "--figures",
        type=Path,
        default=None,
        help=f"folder of figures drawn by uotpool figure (default: {FIGURES} for the folder of results)",
    )
    report.add_argument("--stored", action="store_true", help="runs of earlier code too")
    report.set_defaults(command_function=_report)

    tables = commands.add_parser("tables", help=SUMMARIES["tables"])
    tables.add_argument("folder", type=Path, nargs="+", help="such as results/mil")
    tables.set_defaults(command_function=_tables)


def _report(args: argparse.Namespace) -> int:
    if args.figures and not args.figures.is_dir():
        raise ValueError(f"--figures: expected a folder, got {args.figures}")
    if not args.source:
        listed.committed()  # or it says what is missing
    # The committed figures are of the committed runs.
    folder = args.figures or (None if args.source else listed.results_folder().parent / FIGURES)
    pictures = pictures_in(folder) if folder else []
    report = collect(args.source or [listed.results_folder()], pictures, stored=args.stored)
    path = write(report, args.output)
    for line in missing(report):
        print(f"no table: {visible(line)}", file=sys.stderr)
    print(f"{path} ({path.stat().st_size / 2**20:.1f} MiB, open it in a browser)")
    return 0


def _tables(args: argparse.Namespace) -> int:
    for folder in args.folder:
        listing = listed.read(folder)
        tables = {entry.name: listing.table(entry) for entry in listing.entries}  # all, or none is written
        for entry in listing.entries:
            (folder / f"{entry.name}.md").write_text(listing.page(entry), encoding="utf-8")
            (folder / f"{entry.name}.csv").write_text(tables[entry.name].render("csv"), encoding="utf-8")
        print(f"{len(listing.entries)} tables in {folder}")
    return 0
