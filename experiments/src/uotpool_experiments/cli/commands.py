"""The commands of the experiments."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from uotpool_experiments import datasets as data
from uotpool_experiments import explorer, figures
from uotpool_experiments.cli import arguments, demo
from uotpool_experiments.cli import report as report_command
from uotpool_experiments.cli import same_code as same_code_command
from uotpool_experiments.cli import table as table_command
from uotpool_experiments.cli.execute import add_execution, execute
from uotpool_experiments.cli.summaries import SUMMARIES
from uotpool_experiments.cli.table import add_source, is_csv, read_rows, source
from uotpool_experiments.runs import export, sweep
from uotpool_experiments.runs.store import Store
from uotpool_experiments.tasks import TASKS, load
from uotpool_experiments.tasks.protocols import PROTOCOLS


def add_parsers(commands: Any) -> None:
    """All commands of this package."""
    demo.add_parser(commands)

    run = commands.add_parser("run", help=SUMMARIES["run"])
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
    for task in TASKS:
        for name, words in load(task).short_options.items():
            run.add_argument(f"--{name}", default=None, help=f"of task {task}: {words}")
    run.add_argument("--epochs", type=arguments.positive, default=None, help="the setting of that name")
    add_execution(run)
    run.set_defaults(command_function=_run)

    several = commands.add_parser("sweep", help=SUMMARIES["sweep"])
    several.add_argument("file", type=Path)
    several.add_argument("--dry-run", action="store_true", help="only print what would be run")
    add_execution(several)
    several.set_defaults(command_function=_sweep)

    table_command.add_parser(commands)
    same_code_command.add_parser(commands)
    report_command.add_parsers(commands)

    runs = commands.add_parser("export", help=SUMMARIES["export"])
    runs.add_argument("task", choices=tuple(TASKS))
    runs.add_argument("--dataset", type=arguments.names, default=None, help="only these, by commas")
    runs.add_argument(
        "--epochs",
        type=Path,
        default=None,
        metavar="CSV",
        help="also write the accuracies of each epoch to this file, a line each; from a store only",
    )
    add_source(runs)
    runs.set_defaults(command_function=_export)

    figure = commands.add_parser("figure", help=SUMMARIES["figure"])
    figure.add_argument(
        "name",
        choices=tuple(figures.FIGURES),
        help="; ".join(f"{n}: {w}" for n, (*_, w) in figures.FIGURES.items()),
    )
    figure.add_argument(
        "--output", type=Path, default=Path("out/figures"), help="folder (default: %(default)s)"
    )
    figure.add_argument("--seed", type=arguments.seed, default=0, help="of training (default: %(default)s)")
    figure.set_defaults(command_function=_figure)

    datasets = commands.add_parser("datasets", help=SUMMARIES["datasets"])
    datasets.set_defaults(command_function=_datasets)

    explorer.add_parser(commands)


def _run(args: argparse.Namespace) -> int:
    own = [name for task in TASKS for name in load(task).short_options]
    short = {name: getattr(args, name) for name in (*own, "epochs")}
    settings = dict(args.set) | {name: value for name, value in short.items() if value is not None}
    specs = sweep.expand(
        args.task,
        args.dataset or [load(args.task).default_dataset],
        args.pooling,
        args.protocol,
        args.seeds,
        args.folds,
        settings,
    )
    return execute(specs, args)


def _sweep(args: argparse.Namespace) -> int:
    blocks = sweep.read_blocks(args.file)
    specs = list(dict.fromkeys(spec for block in blocks for spec in block))
    return execute(specs, args, dry=args.dry_run, blocks=blocks)


def _export(args: argparse.Namespace) -> int:
    rows, _ = source(args, read_rows(args.store, args.task), None)
    if args.epochs is not None:
        if is_csv(args.store):
            raise ValueError(f"--epochs: expected a run store, which has epochs, got the CSV file {args.store}")
        with closing(Store(args.store, readonly=True)) as store, args.epochs.open("w", newline="") as file:
            export.write_epochs(rows, store, file)
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
