"""What every benchmark gets: the options of the run, the timer, a place for results."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import rich.progress
from rich.console import Console
from uotpool_experiments.figures.timing import Call, Job, interleaved

Key = TypeVar("Key", bound=Hashable)
T = TypeVar("T")
SOLVERS = ("sinkhorn", "badmm-e", "badmm-q")


@dataclass(frozen=True)
class Session:
    threads: tuple[int, ...]
    repeats: int
    quick: bool  # tiny sizes: shows that everything runs, the figures mean nothing
    compile: str  # at which sizes torch.compile is timed: "some", "all", "none"
    figures: Path

    @property
    def sizes(self) -> tuple[tuple[int, int, int], ...]:
        if self.quick:
            return ((4, 9, 8),)
        return (50, 500, 100), (128, 12, 64), (32, 20, 32), (256, 49, 512)

    @property
    def min_sample(self) -> float:
        """Seconds."""
        return 2e-4 if self.quick else 5e-3

    def measure(self, calls: Mapping[Key, Call], threads: int) -> dict[Key, float]:
        """Seconds of each call, side by side."""
        return self.measure_jobs({key: Job(call, threads) for key, call in calls.items()})

    def measure_jobs(self, jobs: Mapping[Key, Job]) -> dict[Key, float]:
        return interleaved(jobs, self.repeats, self.min_sample)

    def track(self, cases: Iterable[T], name: str) -> Iterable[T]:
        """The cases, with a progress bar on stderr."""
        return rich.progress.track(list(cases), name, console=Console(stderr=True), transient=True)
