"""The commands of the experiments: run, sweep, table, datasets."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from uotpool.experiments import arguments, data, export, figures, sweep, table_command, together
from uotpool.experiments.executors import Executor, LocalExecutor, RayExecutor
from uotpool.experiments.fingerprint import TASKS
from uotpool.experiments.progress import Display
from uotpool.experiments.protocols import PROTOCOLS
from uotpool.experiments.report import command as report_command
from uotpool.experiments.spec import RunSpec
from uotpool.experiments.store import Store, StoreWriteError
from uotpool.experiments.table_command import STORE, add_source, read_rows, source
from uotpool.experiments.tables import accuracy_table, select

INTERRUPTED = 130


def add_parsers(commands: Any) -> None:
    """`run`, `sweep`, `table` and `datasets`."""
    run = commands.add_parser("run", help="train and test one or a few poolings on a data set")
    run.add_argument("task", choices=tuple(TASKS))
    run.add_argument(
        "--dataset", type=arguments.names, default=None, help="one or more, by commas (default: embedded)"
    )
    run.add_argument(
        "--pooling",
        type=arguments.names,
        default=["mean", "max", "uotp-sinkhorn"],
        help="names by commas (see: uotpool poolings), or all, paper, uotp (default: mean,max,uotp-sinkhorn)",
    )
    run.add_argument("--protocol", choices=PROTOCOLS, default="fair", help="default: %(default)s")
    run.add_argument(
        "--seeds", type=arguments.seeds, default=[0], help="N for 0 to N - 1, or some by commas (default: 1)"
    )
    run.add_argument("--folds", type=arguments.positive, default=5, help="only the first N of 5 folds")
    run.add_argument(
        "--set",
        type=arguments.setting,
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
    run.add_argument("--epochs", type=arguments.positive, default=None, help="the setting of that name")
    _add_execution(run)
    run.set_defaults(command_function=_run)

    several = commands.add_parser("sweep", help="the runs of a TOML file; a sweep that was stopped goes on")
    several.add_argument("file", type=Path)
    several.add_argument("--dry-run", action="store_true", help="only print what would be run")
    _add_execution(several)
    several.set_defaults(command_function=_sweep)

    table_command.add_parser(commands)
    report_command.add_parsers(commands)

    runs = commands.add_parser("export", help="the runs in the store as CSV, a line each")
    runs.add_argument("task", choices=tuple(TASKS))
    runs.add_argument("--dataset", type=arguments.names, default=None, help="only these, by commas")
    add_source(runs)
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


def _add_execution(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workers",
        type=arguments.positive,
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
        type=arguments.positive,
        default=None,
        metavar="SECONDS",
        help="a run without a result after this time is stopped and counts as failed (default: none)",
    )
    parser.add_argument("--store", type=Path, default=STORE, help="default: %(default)s")


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


def _export(args: argparse.Namespace) -> int:
    rows, _ = source(args, read_rows(args.store), None)
    export.write(rows, sys.stdout)
    return 0


def _figure(args: argparse.Namespace) -> int:
    for line in figures.draw(args.name, args.output, args.seed):
        print(line)
    return 0


def _datasets(args: argparse.Namespace) -> int:
    for line in data.describe_lines():
        print(line)
    return 0
