"""The command `uotpool run`."""

from __future__ import annotations

import argparse
from typing import Any

from uotpool_experiments.cli import arguments
from uotpool_experiments.tasks import SHORT_OPTIONS, load

POOLINGS = ["mean", "max", "uotp"]


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("run", help="train and test one or a few poolings on a data set")
    arguments.add_task(parser)
    parser.add_argument(
        "--dataset",
        type=arguments.names,
        default=None,
        help="one or more, separated by commas (default: embedded)",
    )
    parser.add_argument(
        "--pooling",
        type=arguments.names,
        default=None,
        help="names separated by commas (see: uotpool poolings), or all, paper, exact (default: "
        f"{','.join(POOLINGS)})",
    )
    parser.add_argument("--protocol", default="fair", help="paper or fair (default: %(default)s)")
    parser.add_argument(
        "--seeds",
        type=arguments.seeds,
        default=None,
        help="N for 0 to N - 1, or a list separated by commas (default: 1)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="of task regimes: twelve poolings, five seeds and the questions about small bags of digits, "
        "unless other options say otherwise",
    )
    parser.add_argument("--folds", type=arguments.positive, default=5, help="only the first N of 5 folds")
    parser.add_argument(
        "--set",
        type=arguments.setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the task, as JSON",
    )
    for task, options in SHORT_OPTIONS.items():
        for name, words in options.items():
            parser.add_argument(f"--{name}", help=f"of task {task}: {words}")
    parser.add_argument("--epochs", type=arguments.positive, help="the setting epochs")
    arguments.add_execution(parser)
    parser.set_defaults(command_function=_run)


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that `--set` gives, and those that have an option of their own."""
    own = [name for options in SHORT_OPTIONS.values() for name in options]
    short = {name: getattr(args, name) for name in (*own, "epochs")}
    return dict(args.set) | {name: value for name, value in short.items() if value is not None}


def choices_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the data sets, poolings and seeds that the options name, else the usual ones."""
    task = load(args.task)
    usual = {"dataset": [task.default_dataset], "pooling": POOLINGS, "seeds": [0]}
    if args.quick:
        if task.quick is None:
            raise ValueError(f"--quick: expected task regimes, got {args.task}, which has no quick set of runs")
        usual = dict(task.quick)
    return {name: getattr(args, name) or value for name, value in usual.items()}


def _run(args: argparse.Namespace) -> int:
    from uotpool_experiments.cli.execute import execute
    from uotpool_experiments.runs import sweep

    specs = sweep.expand(
        args.task, protocol=args.protocol, folds=args.folds, settings=settings_of(args), **choices_of(args)
    )
    return execute(specs, args)
