"""The commands of the experiments: run, sweep, table, datasets."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from uotpool.experiments import data, sweep
from uotpool.experiments.executors import Executor, LocalExecutor, RayExecutor
from uotpool.experiments.fingerprint import TASKS
from uotpool.experiments.progress import Display
from uotpool.experiments.protocols import PROTOCOLS
from uotpool.experiments.spec import RunSpec, canonical
from uotpool.experiments.store import Store
from uotpool.experiments.tables import (
    FORMATS,
    METRICS,
    Table,
    accuracy_table,
    comparison_table,
    optimism_table,
    select,
    settings_table,
)

STORE = Path("out/runs.sqlite")
INTERRUPTED = 130


def add_parsers(commands: Any) -> None:
    """`run`, `sweep`, `table` and `datasets`."""
    run = commands.add_parser("run", help="train and test one or a few poolings on a data set")
    run.add_argument("task", choices=tuple(TASKS))
    run.add_argument("--dataset", type=_names, default=None, help="one or more, by commas (default: embedded)")
    run.add_argument(
        "--pooling",
        type=_names,
        default=["mean", "max", "uotp-sinkhorn"],
        help="names by commas (see: uotpool poolings), or all, paper, uotp (default: mean,max,uotp-sinkhorn)",
    )
    run.add_argument("--protocol", choices=PROTOCOLS, default="fair", help="default: %(default)s")
    run.add_argument("--seeds", type=_positive, default=1, help="seeds 0 to N - 1 (default: %(default)s)")
    run.add_argument("--folds", type=_positive, default=5, help="only the first N of 5 folds")
    run.add_argument(
        "--set",
        type=_setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the task, as JSON",
    )
    _add_execution(run)
    run.set_defaults(command_function=_run)

    several = commands.add_parser("sweep", help="the runs of a TOML file; a sweep that was stopped goes on")
    several.add_argument("file", type=Path)
    several.add_argument("--dry-run", action="store_true", help="only print what would be run")
    _add_execution(several)
    several.set_defaults(command_function=_sweep)

    table = commands.add_parser("table", help="results from the store")
    table.add_argument("task", choices=tuple(TASKS))
    table.add_argument(
        "--kind",
        choices=("results", "optimism", "comparison", "settings"),
        default="results",
        help="results; paper's protocol less the fair one; one pooling against all others; all settings of the "
        "poolings given by --pooling",
    )
    table.add_argument(
        "--pooling", default="uotp-sinkhorn", help="of --kind comparison and settings (default: %(default)s)"
    )
    table.add_argument("--protocol", choices=PROTOCOLS, default="fair", help="default: %(default)s")
    table.add_argument("--metric", choices=METRICS, default="accuracy", help="default: %(default)s")
    table.add_argument("--dataset", type=_names, default=None, help="only these, by commas")
    table.add_argument("--format", choices=FORMATS, default="terminal", help="default: %(default)s")
    table.add_argument(
        "--set",
        type=_setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="runs with these settings",
    )
    table.add_argument(
        "--stored", action="store_true", help="runs of earlier code too, if not of several versions"
    )
    table.add_argument("--store", type=Path, default=STORE, help="default: %(default)s")
    table.set_defaults(command_function=_table)

    datasets = commands.add_parser("datasets", help="known data sets, which are here, their statistics")
    datasets.set_defaults(command_function=_datasets)


def _add_execution(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workers", type=_positive, default=os.cpu_count() or 1, help="processes (default: %(default)s)"
    )
    parser.add_argument("--ray", metavar="ADDRESS", default=None, help="run on a Ray cluster; local starts one")
    parser.add_argument("--store", type=Path, default=STORE, help="default: %(default)s")


def _names(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    if not names:
        raise argparse.ArgumentTypeError("expected names, by commas, got none")
    return names


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a number >= 1, got {value}")
    return value


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    try:
        return name, json.loads(value, parse_constant=lambda constant: _refuse(name, constant))
    except json.JSONDecodeError:
        return name, value


def _refuse(name: str, constant: str) -> None:
    raise argparse.ArgumentTypeError(f"{name}: expected a finite number, got {constant}")


def _run(args: argparse.Namespace) -> int:
    module = sweep.task_module(args.task)
    specs = sweep.expand(
        args.task,
        args.dataset or [module.EMBEDDED],
        args.pooling,
        args.protocol,
        args.seeds,
        args.folds,
        dict(args.set),
    )
    return _execute(specs, args)


def _sweep(args: argparse.Namespace) -> int:
    return _execute(sweep.read(args.file), args, dry=args.dry_run)


def _execute(specs: Sequence[RunSpec], args: argparse.Namespace, dry: bool = False) -> int:
    console = Console(stderr=True)
    if dry and not args.store.exists():
        store = Store(":memory:")
    else:
        store = Store(args.store)
    plan = sweep.plan(specs, store)
    console.print(str(plan), highlight=False, soft_wrap=True)
    if dry:
        for spec in plan.todo:
            print(spec)
        return 0
    for task, dataset in dict.fromkeys((spec.task, spec.dataset) for spec in plan.todo):
        sweep.task_module(task).prepare(dataset)
    outcome = sweep.Outcome()
    if plan.todo:
        executor: Executor = RayExecutor(args.ray, args.workers) if args.ray else LocalExecutor(args.workers)
        outcome = sweep.run(plan.todo, store, executor, Display(console))
    _show_results(specs, store)
    if outcome.failed:
        console.print(f"{outcome.failed} runs failed; the same command tries them again", style="bold red")
    if outcome.interrupted:
        console.print("stopped; the same command goes on from here", style="bold")
        return INTERRUPTED
    return 1 if outcome.failed else 0


def _show_results(specs: Sequence[RunSpec], store: Store) -> None:
    wanted = set(specs)
    for task, settings in dict.fromkeys((spec.task, spec.settings) for spec in specs):
        rows = [row for row in select(store, task, settings=settings)[0] if row.spec in wanted]
        for protocol in dict.fromkeys(row.spec.protocol for row in rows):
            if settings != "{}":
                print(f"settings {settings}")
            print(accuracy_table(rows, protocol).render("terminal"))


def _table(args: argparse.Namespace) -> int:
    if not args.store.exists():
        raise ValueError(f"store: expected a run store, got {args.store}, which does not exist")
    if args.kind == "settings" and args.set:
        raise ValueError("--set: expected none with --kind settings, which shows all of them")
    settings = None if args.kind == "settings" else canonical(dict(args.set))
    store = Store(args.store, readonly=True)
    rows, notes = select(store, args.task, stored=args.stored, settings=settings)
    if args.dataset:
        rows = [row for row in rows if row.spec.dataset in args.dataset]
    if not rows:
        there = sorted({row.spec.settings for row in store.rows(task=args.task)})
        raise ValueError("; ".join([f"store: no such run in {args.store}", *notes, f"settings there: {there}"]))
    table: Table
    if args.kind == "results":
        table = accuracy_table(rows, args.protocol, args.metric)
    elif args.kind == "optimism":
        table = optimism_table(rows, args.metric)
    elif args.kind == "comparison":
        table = comparison_table(rows, args.pooling, args.protocol, args.metric)
    else:
        names = sweep.pooling_names(args.task, args.pooling.split(","))
        table = settings_table([row for row in rows if row.spec.pooling in names], args.protocol, args.metric)
    table.notes += notes
    sys.stdout.write(table.render(args.format))
    return 0


def _datasets(args: argparse.Namespace) -> int:
    for line in data.describe_lines():
        print(line)
    return 0
