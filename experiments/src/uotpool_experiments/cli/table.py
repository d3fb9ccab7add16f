"""The command `uotpool table`: its arguments, and the table that they ask for."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

from uotpool_experiments.analysis.statistics import Tests, outcomes, samples, sign
from uotpool_experiments.cli import arguments
from uotpool_experiments.cli.summaries import SUMMARIES
from uotpool_experiments.runs import export, same_code, sweep
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.runs.store import Store
from uotpool_experiments.tables.kinds import (
    METRICS,
    accuracy_table,
    comparison_table,
    cost_table,
    optimism_table,
    select,
)
from uotpool_experiments.tables.settings import settings_table
from uotpool_experiments.tables.swap import swap_table
from uotpool_experiments.tables.table import FORMATS, Table
from uotpool_experiments.tasks import TASKS, load
from uotpool_experiments.tasks.poolings import UOTP
from uotpool_experiments.tasks.protocols import PROTOCOLS
from uotpool_experiments.tasks.spec import canonical

STORE = Path("out/runs.sqlite")


class NoSuchRunError(ValueError):
    """Nothing in the store is what was asked for."""


def add_parser(commands: Any) -> None:
    table = commands.add_parser("table", help=SUMMARIES["table"])
    _add_choices(table)
    add_source(table)
    table.set_defaults(command_function=_table)


def _add_choices(table: argparse.ArgumentParser) -> None:
    table.add_argument("task", choices=tuple(TASKS))
    table.add_argument(
        "--kind",
        choices=("results", "optimism", "comparison", "settings", "cost", "swap"),
        default="results",
        help="results; paper's protocol less the fair one; one pooling against all others; the settings of the "
        "poolings; seconds and parameters; of task image, what a swap in a trained network did",
    )
    table.add_argument(
        "--pooling",
        type=arguments.names,
        default=None,
        help="only these, by commas; of --kind comparison, the first against the others (default: all, and "
        "uotp-sinkhorn against them)",
    )
    table.add_argument(
        "--vary",
        type=arguments.names,
        default=None,
        metavar="NAME",
        help="of --kind settings: runs that differ from the default in these alone, such as pool.K",
    )
    table.add_argument("--protocol", choices=PROTOCOLS, default="fair", help="default: %(default)s")
    table.add_argument("--metric", choices=METRICS, default="accuracy", help="default: %(default)s")
    table.add_argument("--dataset", type=arguments.names, default=None, help="only these, by commas")
    table.add_argument(
        "--seeds", type=arguments.seeds, default=None, help="only these: N for 0 to N - 1, or by commas"
    )
    table.add_argument(
        "--runs",
        choices=("common", "own"),
        default="common",
        help="of --kind results: those that all poolings of the table have on a data set, or all that each has",
    )
    table.add_argument("--format", choices=FORMATS, default="terminal", help="default: %(default)s")
    table.add_argument(
        "--set",
        type=arguments.setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="runs with these settings",
    )


def add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--stored", action="store_true", help="runs of earlier code too, if not of several versions"
    )
    parser.add_argument(
        "--store", type=Path, default=STORE, help="or a CSV file made by uotpool export (default: %(default)s)"
    )


def read_rows(store: Path, task: str = "TASK") -> list[Row]:
    """The runs of a store, or of a CSV file; where there is none, a message that names others of the task."""
    if not store.exists():
        raise ValueError(
            f"store: expected a run store, got {store}, which does not exist; `uotpool run {task}` makes one, "
            f"and a checkout of the project has committed runs: --store {Path('results', task, 'runs.csv')}"
        )
    if is_csv(store):
        return export.read(store)
    if not store.is_file():
        raise ValueError(f"store: expected a file, got {store}, which is none")
    with closing(Store(store, readonly=True)) as opened:
        return opened.rows()


def is_csv(store: Path) -> bool:
    return store.suffix == ".csv"


def source(args: argparse.Namespace, found: Sequence[Row], settings: str | None) -> tuple[list[Row], list[str]]:
    """Those of the runs that are asked for. A CSV file may be of earlier code: it was kept for its numbers."""
    stored, same = args.stored or is_csv(args.store), same_code.beside(args.store)
    rows, notes = select(found, args.task, stored=stored, settings=settings, same=same)
    if args.dataset:
        rows = [row for row in rows if row.spec.dataset in args.dataset]
    if not rows:
        there = sorted({row.spec.settings for row in found if row.spec.task == args.task})
        if not (args.stored or is_csv(args.store)):
            notes = [f"{note} (--stored takes them too)" for note in notes]
        message = [f"store: no such run in {args.store}", *notes, f"settings there: {there}"]
        raise NoSuchRunError("; ".join(message))
    return rows, notes


def _table(args: argparse.Namespace) -> int:
    sys.stdout.write(make(args, read_rows(args.store, args.task)).render(args.format))
    return 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"arguments of a table: {message}")


def parse(words: Sequence[str]) -> argparse.Namespace:
    """What stands after `uotpool table`; a ValueError if it is wrong."""
    parser = _Parser(add_help=False)
    _add_choices(parser)
    add_source(parser)
    return parser.parse_args(words)


def make(args: argparse.Namespace, found: Sequence[Row]) -> Table:
    """The table of these runs."""
    if args.vary and args.kind != "settings":
        raise ValueError("--vary: expected --kind settings, got another kind")
    if args.runs == "own" and args.kind != "results":
        raise ValueError(f"--runs: expected --kind results with own, got {args.kind}, which compares like runs")
    rows, notes = chosen(args, found)
    table: Table
    if args.kind == "results":
        table = accuracy_table(rows, args.protocol, args.metric, own_runs=args.runs == "own")
    elif args.kind == "optimism":
        table = optimism_table(rows, args.metric)
    elif args.kind == "comparison":
        table = comparison_table(rows, compared(args)[0], args.protocol, args.metric)
    elif args.kind == "cost":
        table = cost_table(rows, args.protocol)
    elif args.kind == "swap":
        table = swap_table(rows, args.protocol)
    else:
        fixed = _as_stored(args.task, dict(args.set))
        table = settings_table(rows, args.protocol, args.metric, fixed=fixed, vary=args.vary)
    table.notes += notes
    return table


def chosen(args: argparse.Namespace, found: Sequence[Row]) -> tuple[list[Row], list[str]]:
    """The runs that a table is made of, and what must be said of them."""
    several = args.kind in ("settings", "optimism")
    settings = _as_stored(args.task, dict(args.set))
    rows, notes = source(args, found, None if several else canonical(settings))
    if args.kind == "optimism":
        rows = same_training(rows, settings)
    if args.seeds:
        rows = [row for row in rows if row.spec.seed in args.seeds]
    if args.pooling and args.kind != "comparison":
        only = sweep.pooling_names(args.task, args.pooling)
        rows = [row for row in rows if row.spec.pooling in only]
    if not rows:
        raise NoSuchRunError("--seeds, --pooling, --set: expected some of the runs in the store, got none")
    if args.kind == "comparison" and len(names := compared(args)) > 1:
        rows = [row for row in rows if row.spec.pooling in names]
    return rows, notes


def compared(args: argparse.Namespace) -> list[str]:
    """Of a comparison: the first against the others that are named, or against all."""
    return sweep.pooling_names(args.task, args.pooling or [UOTP[0]])


def tests(args: argparse.Namespace, found: Sequence[Row]) -> Tests:
    """What a table of comparisons tests."""
    rows, _ = chosen(args, found)
    own = samples([row for row in rows if row.spec.protocol == args.protocol], args.metric)
    return outcomes(own, compared(args)[0], sign(args.metric))


def _as_stored(task: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Without what is the default anyway; options of a pooling are as they are given."""
    pool = {name: settings.pop(name) for name in ("pool",) if name in settings}
    return load(task).clean_settings("mean", settings) | pool


def same_training(rows: Sequence[Row], fair: dict[str, Any]) -> list[Row]:
    """Fair runs with these settings, and runs under "paper" with those of them that it does not have anyway."""
    implied = load(rows[0].spec.task).paper_settings
    plain = {name: value for name, value in fair.items() if implied.get(name) != value}
    wanted = {"fair": canonical(fair), "paper": canonical(plain)}
    return [row for row in rows if row.spec.settings == wanted[row.spec.protocol]]
