"""Find out which runs a sweep has to do, and what they will cost."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from uotpool.zoo import ENTRIES
from uotpool_experiments.runs import same_code
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.runs.same_code import SameCode
from uotpool_experiments.runs.store import Store
from uotpool_experiments.tasks import TASKS, load
from uotpool_experiments.tasks.fingerprint import fingerprint
from uotpool_experiments.tasks.spec import RunSpec

LIKE = ("task", "dataset", "protocol", "pooling")  # what the runs have in common that are most like each other


@dataclass(frozen=True)
class Plan:
    """The runs that a sweep has to do, and an estimate of their cost."""

    todo: list[RunSpec]
    done: int
    core_seconds: float | None  # an estimate for `todo` from like runs; None where there are none
    of_other_code: int = 0  # how many of `todo` are stored as runs of other code

    def __str__(self) -> str:
        counts = f"{len(self.todo)} runs to do, {self.done} done before; core-hours"
        if self.core_seconds is None:
            return f"{counts}: no estimate, as no finished run of the task is known yet"
        hours = f"{self.core_seconds / 3600:.2f}" if self.core_seconds >= 36 else "under 0.01"
        return f"{counts}, estimated: {hours}{self._on_other_code()}"

    def _on_other_code(self) -> str:
        if not self.of_other_code:
            return ""
        return f"; {self.of_other_code} of them are stored, but by other code (see uotpool same-code --help)"


def make_plan(
    specs: Sequence[RunSpec],
    store: Store,
    stored: Iterable[Row] = (),
    like: Iterable[Row] = (),
    same: SameCode = same_code.NONE,
) -> Plan:
    """Find out which of the wanted runs are still to do.

    Args:
        specs: the wanted runs.
        store: the store with finished runs.
        stored: more finished runs, from CSV files. Those of the present code count as done, and
            those of code that `same` lists as the same.
        like: more runs to estimate from, whatever code made them.
        same: which versions of the code are the same.
    """
    stored = list(stored)
    done = {row.spec for row in stored if is_present(row, same)}
    todo = [spec for spec in unfinished(specs, store) if spec not in done]
    seconds = _estimate(todo, [*store.rows(), *stored, *like]) if todo else 0.0
    of_other_code = len(set(todo) & {row.spec for row in stored})
    return Plan(todo, len(set(specs)) - len(todo), seconds, of_other_code)


def is_present(row: Row, same: SameCode) -> bool:
    """Return whether the present code made this run, or code that is listed as the same."""
    task, pooling = row.spec.task, row.spec.pooling
    if task not in TASKS or pooling not in ENTRIES:
        return False
    return same.code(task, pooling, row.fingerprint) == same.code(task, pooling, fingerprint(task, pooling))


def unfinished(specs: Sequence[RunSpec], store: Store) -> list[RunSpec]:
    """Return the specs without a finished run of the present code in the store, each once."""
    keys = {spec: spec.key(fingerprint(spec.task, spec.pooling)) for spec in specs}
    done = store.finished(keys.values())
    return [spec for spec, key in keys.items() if key not in done]


def _estimate(todo: Sequence[RunSpec], known: Iterable[Row]) -> float | None:
    """Estimate the core-seconds of the runs from the median of those most like each; None without any.

    These have the same pooling on the same data set, else the same data set, else the same task. If the
    pooling was run on other data sets only, its cost there, as a multiple of the median of each, is counted
    in. We compare seconds per epoch (`Task.epochs`), and CPU time where it is known.
    """
    seen: dict[tuple[str, ...], list[float]] = defaultdict(list)
    tasks = {spec.task for spec in todo}
    for row in (row for row in known if row.spec.task in tasks):
        for like in _likes(row.spec):
            seen[like].append((row.cpu_seconds or row.seconds or 0.0) / load(row.spec.task).epochs(row.spec))
    medians = {like: statistics.median(found) for like, found in seen.items()}
    multiples: dict[tuple[str, str], list[float]] = defaultdict(list)
    for like, median in medians.items():
        if len(like) == len(LIKE) and medians[like[:-1]] > 0:
            multiples[like[0], like[-1]].append(median / medians[like[:-1]])
    total = 0.0
    for spec in todo:
        found = next((like for like in _likes(spec) if like in medians), None)
        if found is None:
            return None
        others = multiples.get((spec.task, spec.pooling), []) if len(found) < len(LIKE) else []
        total += medians[found] * (statistics.median(others) if others else 1.0) * load(spec.task).epochs(spec)
    return total


def _likes(spec: RunSpec) -> list[tuple[str, ...]]:
    """Return keys that like runs have in common, from most to least alike."""
    same = tuple(getattr(spec, name) for name in LIKE)
    return [same, same[:-1], same[:1]]
