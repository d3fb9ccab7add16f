"""The command `uotpool demo`: it trains a few poolings on embedded real data and shows which one is safe."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uotpool_experiments.cli import arguments

if TYPE_CHECKING:
    from uotpool_experiments.analysis.regret import Regrets
    from uotpool_experiments.tasks.spec import RunSpec

POOLINGS = ("mean", "max", "attention", "gated-mixed", "gem", "uotp")
# Each of the first three poolings fails on one of these questions.
REGIMES = ("digits-presence-50", "digits-majority", "digits-conjunction", "digits-kinds-2-of-3", "digits-range")
FIGURE = "regimes"
QUESTION = (
    "Which pooling is safe? Five questions about bags of handwritten digits: is one of 50 a 6, are most of 20 "
    "9s, is there a 9 among a majority of 3s, are there two of three kinds, how far apart are the brightest "
    "and the darkest? Six poolings, each with its learning rate and step chosen by bags held out."
)
NEXT = (
    "uotpool run regimes --quick: twelve poolings on fifteen questions, in six minutes",
    "uotpool figure bag-plans: what the plans of the UOT poolings look at in a bag of digits",
    "uotpool report: all committed results, as a page like this one",
    "uotpool run graph, uotpool run image (pip install 'uotpool-experiments[images]'): the paper's tasks",
    "README.md and docs/: the layer in your own model, in ten lines",
)


def add_parser(commands: Any) -> None:
    demo = commands.add_parser("demo", help="train on embedded data and write a report, within minutes")
    demo.add_argument("--seeds", type=arguments.seeds, default=range(5), help="N for 0 to N - 1 (default: 5)")
    demo.add_argument("--quick", action="store_true", help="train for twenty steps only, to see that all works")
    demo.add_argument("--workers", type=arguments.positive, default=None, help="processes (default: all CPUs)")
    demo.add_argument("--output", type=Path, default=Path("out/demo"), help="folder (default: %(default)s)")
    demo.set_defaults(command_function=_demo)


def _program() -> str:
    """Return the program as a person can type it here: `make demo` puts nothing on the path."""
    if shutil.which("uotpool"):
        return "uotpool"
    return os.path.relpath(Path(sys.executable).with_name("uotpool"))


def _regrets(specs: Sequence[RunSpec], store: Path) -> Regrets:
    from uotpool_experiments.analysis.regret import regrets
    from uotpool_experiments.analysis.samples import samples
    from uotpool_experiments.analysis.selection import Source

    wanted = set(specs)
    rows = [row for row in Source.read(store).select_all("regimes")[0] if row.spec in wanted]
    return regrets(samples(rows, "score"))


def _in_words(found: Regrets) -> str:
    """Say how far each pooling is behind the best one at worst, the safest first."""
    worst = sorted(zip(found.worst, found.poolings, strict=True), key=lambda pair: pair[0].value)
    return "Points behind the best pooling at worst: " + ", ".join(f"{p} {w.value:.1f}" for w, p in worst)


def _demo(args: argparse.Namespace) -> int:
    from rich.console import Console

    from uotpool_experiments import figures
    from uotpool_experiments.cli.execute import execute
    from uotpool_experiments.report import collect, pictures_in, write
    from uotpool_experiments.runs import sweep

    console = Console(stderr=True)
    console.print(
        f"{QUESTION} You can stop at any time; the same command continues.", highlight=False, soft_wrap=True
    )
    settings = {"steps": 20} if args.quick else {}
    specs = sweep.expand("regimes", REGIMES, POOLINGS, "fair", args.seeds, settings=settings)
    store = args.output / "runs.sqlite"
    status = execute(
        specs,
        argparse.Namespace(store=store, workers=args.workers, ray=None, timeout=None, done=[], like=[]),
    )
    if status:
        return status
    found = _regrets(specs, store)
    import matplotlib as mpl

    mpl.use("Agg")
    from uotpool_experiments.figures import regimes

    figures.save(regimes.picture([("bags of digits", found)]), FIGURE, args.output)
    words = _in_words(found)
    print(words, "", sep="\n")
    report = collect(
        [store],
        [picture for picture in pictures_in(args.output) if picture.data],
        title="uotpool demo: which pooling is safe?",
    )
    report.first = [QUESTION, words, *report.first]
    report.next = list(NEXT)
    path = write(report, args.output / "report.html")
    print(f"Report: {path} (open it in a browser)")
    print("Next:")
    for line in NEXT:
        print(f"  {line.replace('uotpool ', _program() + ' ')}")
    return 0
