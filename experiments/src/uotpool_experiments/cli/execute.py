"""Execute runs at the terminal: show progress, fill the store, and print the tables of the results."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import closing

from rich.console import Console

from uotpool_experiments.analysis.selection import select
from uotpool_experiments.plaintext import visible
from uotpool_experiments.runs import export, same_code, scheduler
from uotpool_experiments.runs.executors import Executor, LocalExecutor, RayExecutor, TorchrunExecutor, torchrun
from uotpool_experiments.runs.plan import make_plan
from uotpool_experiments.runs.progress import Display
from uotpool_experiments.runs.store import Store, StoreWriteError
from uotpool_experiments.tables import formats
from uotpool_experiments.tables.results import results_table
from uotpool_experiments.tasks import load
from uotpool_experiments.tasks.spec import RunSpec

INTERRUPTED = 130


def execute(
    specs: Sequence[RunSpec],
    args: argparse.Namespace,
    dry: bool = False,
    blocks: Sequence[Sequence[RunSpec]] = (),
) -> int:
    """Do the runs that are not done yet, or with `dry` only list them.

    A dry run of a sweep file with several `blocks` also estimates each block.
    """
    console = Console(stderr=True)
    if torchrun.launched() and not dry and not torchrun.join(specs):
        torchrun.follow()
        return 0
    if dry:
        store = Store(args.store, readonly=True) if args.store.exists() else Store(":memory:")
    else:
        store = Store(args.store)
    with closing(store):
        return _execute(specs, args, store, console, dry, blocks)


def _execute(
    specs: Sequence[RunSpec],
    args: argparse.Namespace,
    store: Store,
    console: Console,
    dry: bool,
    blocks: Sequence[Sequence[RunSpec]],
) -> int:
    done = [row for path in args.done for row in export.read(path)]
    like = [row for path in args.like for row in export.read(path)]
    same = same_code.SameCode(entry for path in args.done for entry in same_code.beside(path).entries)
    plan = make_plan(specs, store, done, like, same)
    console.print(str(plan), highlight=False, soft_wrap=True)
    if dry:
        for i, block in enumerate(blocks if len(blocks) > 1 else []):
            part = make_plan(block, store, done, like, same)
            console.print(f"[[runs]] {i + 1}: {part}", highlight=False, soft_wrap=True, markup=False)
        for spec in plan.todo:
            print(visible(str(spec)))
        return 0
    for task, dataset in dict.fromkeys((spec.task, spec.dataset) for spec in plan.todo):
        load(task).prepare(dataset)
    for spec in plan.todo:
        load(spec.task).check_packages(spec.options)
    outcome = scheduler.Outcome()
    if plan.todo or torchrun.launched():
        executor: Executor
        if torchrun.launched():
            executor = TorchrunExecutor()
        elif args.ray:
            executor = RayExecutor(args.ray, args.workers, args.timeout)
            console.print(visible(executor.listens), markup=False, highlight=False, soft_wrap=True)
        else:
            executor = LocalExecutor(args.workers or os.cpu_count() or 1, args.timeout)
        try:
            outcome = scheduler.run(plan.todo, store, executor, Display(console))
        except StoreWriteError as error:
            console.print(str(error), style="bold red", markup=False, highlight=False, soft_wrap=True)
            return 1
        finally:
            executor.close()
    _show_results(specs, store)
    if outcome.failed:
        console.print(f"{outcome.failed} runs failed; the same command tries them again", style="bold red")
    if outcome.interrupted:
        console.print("stopped; the same command continues from here", style="bold")
        return INTERRUPTED
    return 1 if outcome.failed else 0


def _show_results(specs: Sequence[RunSpec], store: Store) -> None:
    wanted = set(specs)
    for task, settings in dict.fromkeys((spec.task, spec.settings) for spec in specs):
        rows = [row for row in select(store.rows(), task, settings=settings)[0] if row.spec in wanted]
        for protocol in dict.fromkeys(row.spec.protocol for row in rows):
            print(formats.render(results_table(rows, protocol, load(task).metric), "terminal"))
