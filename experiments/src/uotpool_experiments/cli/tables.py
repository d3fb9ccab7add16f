"""The command `uotpool tables`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("tables", help="write all tables that a folder's tables.toml lists")
    parser.add_argument("folder", type=Path, nargs="+", help="such as results/mil")
    parser.set_defaults(command_function=_tables)


def _tables(args: argparse.Namespace) -> int:
    from uotpool_experiments.tables import formats, manifest

    for folder in args.folder:
        found = manifest.read(folder)
        # All tables are made before the first one is written, so a folder never mixes old and new tables.
        tables = [(entry, found.table(entry)) for entry in found.entries]
        for entry, table in tables:
            (folder / f"{entry.name}.md").write_text(found.page(entry, table), encoding="utf-8")
            (folder / f"{entry.name}.csv").write_text(formats.render(table, "csv"), encoding="utf-8")
        print(f"{len(tables)} tables in {folder}")
    return 0
