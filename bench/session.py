"""What every measurement gets: the options of the run, the timer, a place for results."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import rich.progress
from rich.console import Console

from bench.machine import ROOT
from bench.timing import Call, Job, interleaved

Key = TypeVar("Key", bound=Hashable)
T = TypeVar("T")


@dataclass(frozen=True)
class Session:
    threads: tuple[int, ...]
    repeats: int
    quick: bool  # tiny sizes: shows that everything runs, the figures mean nothing
    compile: str  # at which sizes torch.compile is timed: "some", "all", "none"
    out: Path  # the folder of what is written
    renew: bool = False  # what the documentation shows is written instead: the pictures and tables of docs/
    seeds: tuple[int, ...] = (0,)  # of what trains models

    @property
    def figures(self) -> Path:
        """Return the folder of pictures."""
        return ROOT / "docs/figures" if self.renew else self.out

    @property
    def runs(self) -> Path:
        """Return the folder in which runs are kept, so that they can be continued."""
        return ROOT / "results" if self.renew else self.out

    @property
    def sizes(self) -> tuple[tuple[int, int, int], ...]:
        if self.quick:
            return ((4, 9, 8),)
        return (50, 500, 100), (128, 12, 64), (32, 20, 32), (256, 49, 512)

    @property
    def min_sample(self) -> float:
        """Return the seconds of a call."""
        return 2e-4 if self.quick else 5e-3

    def measure(self, calls: Mapping[Key, Call], threads: int) -> dict[Key, float]:
        """Return the seconds of each call, measured side by side."""
        return self.measure_jobs({key: Job(call, threads) for key, call in calls.items()})

    def measure_jobs(self, jobs: Mapping[Key, Job], name: str | None = None) -> dict[Key, float]:
        """Return the seconds of each job, side by side; with a name, a bar on stderr counts the repeats."""
        if name is None:
            return interleaved(jobs, self.repeats, self.min_sample)
        with rich.progress.Progress(console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(name, total=self.repeats)
            return interleaved(jobs, self.repeats, self.min_sample, lambda: progress.advance(task))

    def track(self, cases: Iterable[T], name: str) -> Iterable[T]:
        """Go through the cases, with a progress bar on stderr."""
        return rich.progress.track(list(cases), name, console=Console(stderr=True), transient=True)
