"""The command `uotpool table`. Its options are those of a `TableSpec`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from uotpool_experiments.cli import arguments
from uotpool_experiments.tables import FORMATS
from uotpool_experiments.tables.spec import Form, TableSpec, options
from uotpool_experiments.tasks import load

# The function that turns a text of the command line into the value of an option of each form.
TYPES: dict[Form, Callable[[str], Any]] = {
    Form.CHOICE: str,
    Form.NAMES: lambda text: tuple(arguments.names(text)),
    Form.SEEDS: lambda text: tuple(arguments.seeds(text)),
    Form.SETTINGS: arguments.setting,
}

# Options whose default is an attribute of the task.
BY_TASK = {"kind": "table_kind", "metric": "metric"}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("table", help="print a table of the runs in the store")
    arguments.add_task(parser)
    for field, option in options():
        several = option.form is Form.SETTINGS
        of_task = field.name in BY_TASK
        known = f" (default: {field.default})" if option.form is Form.CHOICE and not of_task else ""
        parser.add_argument(
            option.flag,
            dest=field.name,
            type=TYPES[option.form],
            choices=option.choices or None,
            metavar=option.metavar,
            action="append" if several else "store",
            default=[] if several else None if of_task else field.default,
            help=option.help + (" (default: as the task has it)" if of_task else known),
        )
    parser.add_argument("--format", choices=FORMATS, default="terminal", help="default: %(default)s")
    arguments.add_source(parser)
    parser.set_defaults(command_function=_table)


def spec_of(args: argparse.Namespace) -> TableSpec:
    """Return the table that the options ask for."""
    values = {field.name: getattr(args, field.name) for field, _ in options()}
    for name, attribute in BY_TASK.items():
        values[name] = values[name] or getattr(load(args.task), attribute)
    return TableSpec(args.task, **values | {"settings": dict(values["settings"])})


def _table(args: argparse.Namespace) -> int:
    from uotpool_experiments.analysis.selection import Source
    from uotpool_experiments.tables import formats
    from uotpool_experiments.tables.make import make

    spec = spec_of(args)
    table = make(spec, Source.read(args.store, args.task, args.stored))
    sys.stdout.write(formats.render(table, args.format))
    return 0
