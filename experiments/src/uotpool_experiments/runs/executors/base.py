"""What every executor shares: the events that it reports, and one attempt at a run."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from uotpool_experiments.runs import worker
from uotpool_experiments.tasks import load
from uotpool_experiments.tasks.fingerprint import fingerprint
from uotpool_experiments.tasks.spec import Report, Result, RunSpec


@dataclass(frozen=True)
class Started:
    spec: RunSpec
    others: int = 0  # runs that are done together with this one; progress is reported for this one


@dataclass(frozen=True)
class Progress:
    spec: RunSpec
    done: int
    total: int


@dataclass(frozen=True)
class Finished:
    spec: RunSpec
    result: Result
    code: str  # the fingerprint where the run ran
    facts: dict[str, str] = field(default_factory=dict)  # `worker.facts` where the run ran
    cpu_seconds: float | None = None


@dataclass(frozen=True)
class Failed:
    spec: RunSpec
    error: str
    facts: dict[str, str] = field(default_factory=dict)  # empty if the process is gone


Event = Started | Progress | Finished | Failed
Batch = tuple[RunSpec, ...]  # runs that are done together


class Executor(Protocol):
    """Runs specs in the order of their start and yields what happens; closing the iterator stops the rest."""

    workers: int

    def run(self, specs: Sequence[RunSpec]) -> Iterator[Event]: ...

    def close(self) -> None: ...


def batches(specs: Sequence[RunSpec]) -> list[Batch]:
    """Group the runs that a task does together: those that differ in their seeds only.

    A group has the place of its first run.
    """
    groups: dict[RunSpec, list[list[RunSpec]]] = {}
    found: list[list[RunSpec]] = []
    for spec in specs:
        like = groups.setdefault(replace(spec, seed=0), [])
        if not like or len(like[-1]) >= load(spec.task).seeds_together:
            like.append([])
            found.append(like[-1])
        like[-1].append(spec)
    return [tuple(group) for group in found]


def attempt(batch: Batch, report: Report) -> list[Finished | Failed]:
    """Do the runs in this process, or say why that failed."""
    here: dict[str, str] = {}
    try:
        code = fingerprint(batch[0].task, batch[0].pooling)  # before the task's code is loaded
        here = worker.facts()
        load(batch[0].task)  # before the clock starts: the task's imports are no cost of the run
        start = time.process_time()
        results = worker.execute(batch, report)
        seconds = (time.process_time() - start) / len(batch)
        pairs = zip(batch, results, strict=True)
        return [Finished(spec, result, code, here, seconds) for spec, result in pairs]
    except Exception:
        error = traceback.format_exc()
        return [Failed(spec, error, here) for spec in batch]


def quietly(batch: Batch) -> list[Finished | Failed]:
    """Do the runs without reporting their progress."""
    return attempt(batch, lambda done, total: None)


def check_limits(workers: int | None, timeout: float | None) -> None:
    if workers is not None and workers < 1:
        raise ValueError(f"workers: expected a number >= 1, got {workers}")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout: expected a number of seconds > 0, got {timeout}")


def is_late(since: float, timeout: float | None) -> bool:
    return timeout is not None and time.monotonic() - since > timeout
