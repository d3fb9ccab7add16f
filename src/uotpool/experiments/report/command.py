"""The commands `uotpool report` and `uotpool tables`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from uotpool.experiments import listed
from uotpool.experiments.report.content import collect, pictures_in
from uotpool.experiments.report.page import write

FIGURES = (Path("docs/figures"), Path("out/figures"))


def add_parsers(commands: Any) -> None:
    report = commands.add_parser("report", help="one HTML page with tables, ranks and figures")
    report.add_argument(
        "source",
        type=Path,
        nargs="*",
        default=[Path("results")],
        help="run stores, CSV files of runs, or folders with TASK/tables.toml (default: results)",
    )
    report.add_argument("--output", type=Path, default=Path("out/report.html"), help="default: %(default)s")
    report.add_argument(
        "--figures",
        type=Path,
        default=None,
        help="folder of figures drawn by uotpool figure (default: the first that is there of "
        f"{', '.join(map(str, FIGURES))})",
    )
    report.add_argument("--stored", action="store_true", help="runs of earlier code too")
    report.set_defaults(command_function=_report)

    tables = commands.add_parser("tables", help="write all tables that a folder's tables.toml lists")
    tables.add_argument("folder", type=Path, nargs="+", help="such as results/mil")
    tables.set_defaults(command_function=_tables)


def _report(args: argparse.Namespace) -> int:
    folder = args.figures or next((path for path in FIGURES if path.is_dir()), FIGURES[-1])
    if args.figures and not folder.is_dir():
        raise ValueError(f"--figures: expected a folder, got {folder}")
    path = write(collect(args.source, pictures_in(folder), stored=args.stored), args.output)
    print(f"{path} ({path.stat().st_size / 2**20:.1f} MiB, open it in a browser)")
    return 0


def _tables(args: argparse.Namespace) -> int:
    for folder in args.folder:
        listing = listed.read(folder)
        for entry in listing.entries:
            table = listing.table(entry)
            for form, ending in (("markdown", "md"), ("csv", "csv")):
                (folder / f"{entry.name}.{ending}").write_text(table.render(form), encoding="utf-8")
        print(f"{len(listing.entries)} tables in {folder}")
    return 0
