"""The command `uotpool same-code`: it repeats stored runs and lists the code that gives the same numbers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from uotpool.zoo import ENTRIES
from uotpool_experiments.cli import arguments
from uotpool_experiments.runs import same_code, worker
from uotpool_experiments.runs.reading import read_rows
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.runs.same_code import Entry, SameCode
from uotpool_experiments.tasks import TASKS
from uotpool_experiments.tasks.fingerprint import fingerprint


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "same-code",
        help="repeat stored runs, and list the present code as the same if it gives the same numbers",
    )
    parser.add_argument("store", type=Path, help="a CSV file made by uotpool export, or a run store")
    parser.add_argument("--task", choices=tuple(TASKS), required=True)
    parser.add_argument("--pooling", type=arguments.names, default=None, help="only these, separated by commas")
    parser.add_argument(
        "--dataset", type=arguments.names, default=None, help="only runs on these, separated by commas"
    )
    parser.add_argument(
        "--list",
        type=Path,
        default=Path("results") / same_code.NAME,
        help="the file that gets the entries (default: %(default)s)",
    )
    parser.set_defaults(command_function=_same_code)


def cheapest(rows: Sequence[Row], known: SameCode) -> list[Row]:
    """Return the cheapest run of each pooling and each version of its code that is not known to be
    the present one.
    """
    found: dict[tuple[str, str], Row] = {}
    for row in rows:
        task, pooling = row.spec.task, row.spec.pooling
        if pooling not in ENTRIES:
            continue
        code = known.code(task, pooling, row.fingerprint)
        if code == known.code(task, pooling, fingerprint(task, pooling)):
            continue
        best = found.get((pooling, code))
        if best is None or _cost(row) < _cost(best):
            found[pooling, code] = row
    return list(found.values())


def _cost(row: Row) -> float:
    return row.cpu_seconds or row.seconds or 0.0


def _same_code(args: argparse.Namespace) -> int:
    rows = [row for row in read_rows(args.store) if row.spec.task == args.task]
    for name, given in (("pooling", args.pooling), ("dataset", args.dataset)):
        rows = [row for row in rows if given is None or getattr(row.spec, name) in given]
    if not rows:
        raise ValueError(
            f"store: expected runs of this task, these poolings and data sets, got none in {args.store}"
        )
    known = same_code.read(args.list) if args.list.exists() else same_code.NONE
    differing = 0
    for row in cheapest(rows, known):
        spec = row.spec
        print(f"{spec}: {_cost(row):.0f} CPU seconds when it was stored", flush=True)
        metrics = worker.execute([spec], lambda done, total: None)[0].metrics
        agreement = same_code.agreement(row.metrics, metrics)
        if agreement is None:
            differing += 1
            print(f"  not the same: {row.metrics} then, {metrics} now; its runs have to be run again")
            continue
        new = fingerprint(spec.task, spec.pooling)
        what = (spec.task, spec.pooling, row.fingerprint, new, str(spec), agreement)
        same_code.append(Entry(*what, row.metrics, metrics), args.list)
        print(f"  {agreement}: {row.fingerprint} and {new} are listed in {args.list}")
    return 1 if differing else 0
