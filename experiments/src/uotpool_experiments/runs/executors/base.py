"""What every executor shares: the events that it reports, and one attempt at a run."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from uotpool_experiments.runs import worker
from uotpool_experiments.tasks import load
from uotpool_experiments.tasks.fingerprint import fingerprint
from uotpool_experiments.tasks.spec import Report, Result, RunSpec


@dataclass(frozen=True)
class Started:
    spec: RunSpec


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


class Executor(Protocol):
    """Runs specs in the order of their start and yields what happens; closing the iterator stops the rest."""

    workers: int

    def run(self, specs: Sequence[RunSpec]) -> Iterator[Event]: ...

    def close(self) -> None: ...


def attempt(spec: RunSpec, report: Report) -> Finished | Failed:
    """Do the run in this process, or say why that failed."""
    here: dict[str, str] = {}
    try:
        code = fingerprint(spec.task, spec.pooling)  # before the task's code is loaded
        here = worker.facts()
        load(spec.task)  # before the clock starts: the task's imports are no cost of the run
        start = time.process_time()
        result = worker.execute(spec, report)
        return Finished(spec, result, code, here, time.process_time() - start)
    except Exception:
        return Failed(spec, traceback.format_exc(), here)


def quietly(spec: RunSpec) -> Finished | Failed:
    """Do the run without reporting its progress."""
    return attempt(spec, lambda done, total: None)


def check_limits(workers: int | None, timeout: float | None) -> None:
    if workers is not None and workers < 1:
        raise ValueError(f"workers: expected a number >= 1, got {workers}")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout: expected a number of seconds > 0, got {timeout}")


def is_late(since: float, timeout: float | None) -> bool:
    return timeout is not None and time.monotonic() - since > timeout
