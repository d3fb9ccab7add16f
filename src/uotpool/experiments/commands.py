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

from uotpool.experiments import data, export, figures, sweep, together
from uotpool.experiments.executors import Executor, LocalExecutor, RayExecutor
from uotpool.experiments.fingerprint import TASKS
from uotpool.experiments.progress import Display
from uotpool.experiments.protocols import PROTOCOLS
from uotpool.experiments.render import FORMATS, Table
from uotpool.experiments.spec import RunSpec, canonical
from uotpool.experiments.store import Row, Store, StoreWriteError
from uotpool.experiments.swaps import swap_table
from uotpool.experiments.tables import (
    METRICS,
    accuracy_table,
    comparison_table,
    cost_table,
    optimism_table,
    select,
)
from uotpool.experiments.variants import settings_table

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
    run.add_argument(
        "--seeds", type=_seeds, default=[0], help="N for 0 to N - 1, or some by commas (default: 1)"
    )
    run.add_argument("--folds", type=_positive, default=5, help="only the first N of 5 folds")
    run.add_argument(
        "--set",
        type=_setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the task, as JSON",
    )
    run.add_argument(
        "--backbone", default=None, help="of task graph: adgcl (default) or gin, learned with labels"
    )
    run.add_argument("--arch", default=None, help="of task image: resnet-tiny (default), resnet18, ...")
    run.add_argument("--recipe", default=None, help="of task image: scratch (default) or two-stage")
    run.add_argument("--epochs", type=_positive, default=None, help="the setting of that name")
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
        choices=("results", "optimism", "comparison", "settings", "cost", "swap"),
        default="results",
        help="results; paper's protocol less the fair one; one pooling against all others; the settings of the "
        "poolings; seconds and parameters; of task image, what a swap in a trained network did",
    )
    table.add_argument(
        "--pooling",
        type=_names,
        default=None,
        help="only these, by commas; of --kind comparison, the first against the others (default: all, and "
        "uotp-sinkhorn against them)",
    )
    table.add_argument(
        "--vary",
        type=_names,
        default=None,
        metavar="NAME",
        help="of --kind settings: runs that differ from the default in these alone, such as pool.K",
    )
    table.add_argument("--protocol", choices=PROTOCOLS, default="fair", help="default: %(default)s")
    table.add_argument("--metric", choices=METRICS, default="accuracy", help="default: %(default)s")
    table.add_argument("--dataset", type=_names, default=None, help="only these, by commas")
    table.add_argument("--seeds", type=_seeds, default=None, help="only these: N for 0 to N - 1, or by commas")
    table.add_argument("--format", choices=FORMATS, default="terminal", help="default: %(default)s")
    table.add_argument(
        "--set",
        type=_setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="runs with these settings",
    )
    _add_source(table)
    table.set_defaults(command_function=_table)

    runs = commands.add_parser("export", help="the runs in the store as CSV, a line each")
    runs.add_argument("task", choices=tuple(TASKS))
    runs.add_argument("--dataset", type=_names, default=None, help="only these, by commas")
    _add_source(runs)
    runs.set_defaults(command_function=_export)

    figure = commands.add_parser("figure", help="draw a figure of the paper again, as PNG and SVG")
    figure.add_argument(
        "name",
        choices=tuple(figures.FIGURES),
        help="; ".join(f"{n}: {w}" for n, (*_, w) in figures.FIGURES.items()),
    )
    figure.add_argument(
        "--output", type=Path, default=Path("out/figures"), help="folder (default: %(default)s)"
    )
    figure.add_argument("--seed", type=int, default=0, help="of training (default: %(default)s)")
    figure.set_defaults(command_function=_figure)

    datasets = commands.add_parser("datasets", help="known data sets, which are here, their statistics")
    datasets.set_defaults(command_function=_datasets)


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--stored", action="store_true", help="runs of earlier code too, if not of several versions"
    )
    parser.add_argument(
        "--store", type=Path, default=STORE, help="or a CSV file made by uotpool export (default: %(default)s)"
    )


def _add_execution(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workers",
        type=_positive,
        default=None,
        help="processes; with --ray, runs at a time at most (default: as many as CPUs, here or in the cluster)",
    )
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        default=None,
        help="run on a Ray cluster: HOST:PORT, or auto for the one of this machine; local starts one",
    )
    parser.add_argument(
        "--timeout",
        type=_positive,
        default=None,
        metavar="SECONDS",
        help="a run without a result after this time is stopped and counts as failed (default: none)",
    )
    parser.add_argument("--store", type=Path, default=STORE, help="default: %(default)s")


def _names(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    if not names:
        raise argparse.ArgumentTypeError("expected names, by commas, got none")
    return names


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number >= 1, got {text}")
    return int(text)


def _seeds(text: str) -> list[int]:
    """`3` is 0, 1, 2; `3,` and `0,3` are what they say."""
    if "," not in text:
        return list(range(_positive(text)))
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"expected numbers >= 0, by commas, got {text!r}")
    return [int(part) for part in parts]


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
    short = {name: getattr(args, name) for name in ("backbone", "arch", "recipe", "epochs")}
    settings = dict(args.set) | {name: value for name, value in short.items() if value is not None}
    specs = sweep.expand(
        args.task,
        args.dataset or [module.EMBEDDED],
        args.pooling,
        args.protocol,
        args.seeds,
        args.folds,
        settings,
    )
    return _execute(specs, args)


def _sweep(args: argparse.Namespace) -> int:
    return _execute(sweep.read(args.file), args, dry=args.dry_run)


def _execute(specs: Sequence[RunSpec], args: argparse.Namespace, dry: bool = False) -> int:
    console = Console(stderr=True)
    if together.launched() and not dry and not together.join(specs):
        together.follow()
        return 0
    if dry:
        store = Store(args.store, readonly=True) if args.store.exists() else Store(":memory:")
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
    if plan.todo or together.launched():
        executor: Executor
        if together.launched():
            executor = together.FirstExecutor()
        elif args.ray:
            executor = RayExecutor(args.ray, args.workers, args.timeout)
        else:
            executor = LocalExecutor(args.workers or os.cpu_count() or 1, args.timeout)
        try:
            outcome = sweep.run(plan.todo, store, executor, Display(console))
        except StoreWriteError as error:
            console.print(str(error), style="bold red", markup=False, highlight=False, soft_wrap=True)
            return 1
        finally:
            executor.close()
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
        rows = [row for row in select(store.rows(), task, settings=settings)[0] if row.spec in wanted]
        for protocol in dict.fromkeys(row.spec.protocol for row in rows):
            print(accuracy_table(rows, protocol).render("terminal"))


def _source(args: argparse.Namespace, settings: str | None) -> tuple[list[Row], list[str]]:
    """The runs of the store, or of a CSV file, which may be of earlier code: it was kept for its numbers."""
    if not args.store.exists():
        raise ValueError(f"store: expected a run store, got {args.store}, which does not exist")
    is_csv = args.store.suffix == ".csv"
    found = export.read(args.store) if is_csv else Store(args.store, readonly=True).rows()
    rows, notes = select(found, args.task, stored=args.stored or is_csv, settings=settings)
    if args.dataset:
        rows = [row for row in rows if row.spec.dataset in args.dataset]
    if not rows:
        there = sorted({row.spec.settings for row in found if row.spec.task == args.task})
        raise ValueError("; ".join([f"store: no such run in {args.store}", *notes, f"settings there: {there}"]))
    return rows, notes


def _export(args: argparse.Namespace) -> int:
    rows, _ = _source(args, None)
    export.write(rows, sys.stdout)
    return 0


def _table(args: argparse.Namespace) -> int:
    if args.vary and args.kind != "settings":
        raise ValueError("--vary: expected --kind settings, got another kind")
    several = args.kind in ("settings", "optimism")
    settings = _as_stored(args.task, dict(args.set))
    rows, notes = _source(args, None if several else canonical(settings))
    if args.kind == "optimism":
        rows = same_training(rows, settings)
    if args.seeds:
        rows = [row for row in rows if row.spec.seed in args.seeds]
    names = sweep.pooling_names(args.task, args.pooling) if args.pooling else None
    if names and args.kind != "comparison":
        rows = [row for row in rows if row.spec.pooling in names]
    if not rows:
        raise ValueError("--seeds, --pooling, --set: expected some of the runs in the store, got none")
    table: Table
    if args.kind == "results":
        table = accuracy_table(rows, args.protocol, args.metric)
    elif args.kind == "optimism":
        table = optimism_table(rows, args.metric)
    elif args.kind == "comparison":
        table = _comparison(rows, names or ["uotp-sinkhorn"], args)
    elif args.kind == "cost":
        table = cost_table(rows, args.protocol)
    elif args.kind == "swap":
        table = swap_table(rows, args.protocol)
    else:
        table = settings_table(rows, args.protocol, args.metric, fixed=settings, vary=args.vary)
    table.notes += notes
    sys.stdout.write(table.render(args.format))
    return 0


def _as_stored(task: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Without what is the default anyway; options of a pooling are as they are given."""
    pool = {name: settings.pop(name) for name in ("pool",) if name in settings}
    found: dict[str, Any] = sweep.task_module(task).clean_settings("mean", settings)
    return found | pool


# What "paper" does anyway, and "fair" if it is told so.
IMPLIED: dict[str, dict[str, Any]] = {
    "mil": {"lr": 5e-4, "weight_decay": 5e-3},
    "graph": {"transductive": True},
}


def same_training(rows: Sequence[Row], fair: dict[str, Any]) -> list[Row]:
    """Fair runs with these settings, and runs under "paper" with those of them that it does not have anyway."""
    implied = IMPLIED.get(rows[0].spec.task, {})
    plain = {name: value for name, value in fair.items() if implied.get(name) != value}
    wanted = {"fair": canonical(fair), "paper": canonical(plain)}
    return [row for row in rows if row.spec.settings == wanted[row.spec.protocol]]


def _comparison(rows: Sequence[Row], names: Sequence[str], args: argparse.Namespace) -> Table:
    """The first against the others that are named, or against all."""
    if len(names) > 1:
        rows = [row for row in rows if row.spec.pooling in names]
    return comparison_table(rows, names[0], args.protocol, args.metric)


def _figure(args: argparse.Namespace) -> int:
    for line in figures.draw(args.name, args.output, args.seed):
        print(line)
    return 0


def _datasets(args: argparse.Namespace) -> int:
    for line in data.describe_lines():
        print(line)
    return 0
