"""The command `uotpool demo`: it trains a few poolings on embedded real data and shows what came out."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uotpool_experiments.cli import arguments
from uotpool_experiments.tasks.poolings import UOTP

if TYPE_CHECKING:
    from uotpool_experiments.tasks.spec import RunSpec

POOLINGS = ("mean", "max", "attention", "mixed", *UOTP)
FIGURE = "bag-plans"
QUESTION = (
    "Is there a 9 in the bag? 160 bags of handwritten digits, 5 folds, seven poolings; learning rate, weight "
    "decay and epoch of each are chosen by bags held out."
)
NEXT = (
    "uotpool explore (pip install './experiments[explore]'): move the weights of the transport problem and "
    "watch the plan go from mean to max",
    "uotpool report: all committed results of the paper's experiments, as a page like this one",
    "uotpool run graph, uotpool run image (pip install './experiments[images]'): the same on graphs and images",
    "README.md and docs/: the layer in your own model, in ten lines",
)


def add_parser(commands: Any) -> None:
    demo = commands.add_parser("demo", help="train on embedded data and write a report, within minutes")
    demo.add_argument("--seeds", type=arguments.seeds, default=[0], help="N for 0 to N - 1 (default: 1)")
    demo.add_argument("--quick", action="store_true", help="train for two epochs only, to see that all works")
    demo.add_argument("--workers", type=arguments.positive, default=None, help="processes (default: all CPUs)")
    demo.add_argument("--output", type=Path, default=Path("out/demo"), help="folder (default: %(default)s)")
    demo.set_defaults(command_function=_demo)


def _program() -> str:
    """Return the program as a person can type it here: `make demo` puts nothing on the path."""
    if shutil.which("uotpool"):
        return "uotpool"
    return os.path.relpath(Path(sys.executable).with_name("uotpool"))


def _accuracies(specs: Sequence[RunSpec], store: Path) -> str:
    """Say the accuracies in words, the best first."""
    from uotpool_experiments.analysis.samples import samples
    from uotpool_experiments.analysis.selection import Source

    wanted = set(specs)
    rows = [row for row in Source.read(store).select_all("mil")[0] if row.spec in wanted]
    found = {pooling: 100 * sample.mean for (pooling, _), sample in samples(rows, "accuracy").items()}
    order = sorted(found, key=lambda pooling: -found[pooling])
    return "Accuracy in per cent: " + ", ".join(f"{pooling} {found[pooling]:.1f}" for pooling in order)


def _demo(args: argparse.Namespace) -> int:
    from rich.console import Console

    from uotpool_experiments import figures
    from uotpool_experiments.cli.execute import execute
    from uotpool_experiments.report import collect, pictures_in, write
    from uotpool_experiments.runs import sweep
    from uotpool_experiments.tasks import load

    console = Console(stderr=True)
    console.print(
        f"{QUESTION} You can stop at any time; the same command continues.", highlight=False, soft_wrap=True
    )
    settings = {"epochs": 2} if args.quick else {}
    specs = sweep.expand("mil", load("mil").default_dataset, POOLINGS, "fair", args.seeds, settings=settings)
    store = args.output / "runs.sqlite"
    status = execute(
        specs,
        argparse.Namespace(store=store, workers=args.workers, ray=None, timeout=None, done=[], like=[]),
    )
    if status:
        return status
    console.print("What do the plans look at? Training the UOT poolings once more.", soft_wrap=True)
    words = figures.draw(FIGURE, args.output, args.seeds[0], args.quick)
    print("\n".join(words[:-2]), "", sep="\n")
    report = collect(
        [store],
        [picture for picture in pictures_in(args.output) if picture.data],
        title="uotpool demo: is there a 9 in the bag?",
    )
    report.first = [QUESTION, _accuracies(specs, store), *words[:-2], *report.first]
    report.next = list(NEXT)
    path = write(report, args.output / "report.html")
    print(f"Report with plans: {path} (open it in a browser)")
    print("Next:")
    for line in NEXT:
        print(f"  {line.replace('uotpool ', _program() + ' ')}")
    return 0
