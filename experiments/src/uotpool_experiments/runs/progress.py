"""Show the progress of a sweep on the terminal: all runs, and the epochs of those that run now."""

from __future__ import annotations

import time
from datetime import timedelta
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from uotpool_experiments.plaintext import visible
from uotpool_experiments.tasks.spec import RunSpec

EVERY = 60.0  # seconds between lines, where there is no terminal
MOST = 20  # failures that are shown


class Display:
    """Draws bars on stderr, or, where that is no terminal, prints at most one line per minute and
    one at the end.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            speed_estimate_period=600,
            disable=not self._console.is_terminal,
        )
        self._all: TaskID | None = None
        self._running: dict[RunSpec, TaskID] = {}
        self._done = self._failed = self._total = 0
        self._began = self._said = time.monotonic()

    def __enter__(self) -> Display:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def begin(self, total: int, workers: int) -> None:
        self._total = total
        self._began = self._said = time.monotonic()
        self._all = self._bars.add_task(f"runs ({workers} workers)", total=total)

    def started(self, spec: RunSpec, others: int = 0) -> None:
        more = f" and {others} more seeds" if others else ""
        self._running[spec] = self._bars.add_task(f"  {escape(visible(str(spec)))}{more}", total=None)

    def progress(self, spec: RunSpec, done: int, total: int) -> None:
        self._bars.update(self._running[spec], completed=done, total=total)
        self._say()

    def finished(self, spec: RunSpec) -> None:
        self._end(spec)
        self._say()

    def failed(self, spec: RunSpec, error: str) -> None:
        self._end(spec)
        self._failed += 1
        last = error.strip().splitlines()[-1] if error.strip() else "no message"
        if self._failed <= MOST:
            self._print(f"failed: {spec}: {last}")
        if self._failed == MOST:
            self._print("further failures are only counted; the store has their errors")
        self._say()

    def _say(self) -> None:
        """Say how far the sweep is, if no bar shows it and the last line is long ago."""
        now = time.monotonic()
        if self._console.is_terminal or (now - self._said < EVERY and self._done < self._total):
            return
        self._said = now
        left = ""
        if 0 < self._done < self._total:
            seconds = (now - self._began) / self._done * (self._total - self._done)
            left = f", {timedelta(seconds=round(seconds))} left"
        self._print(f"{self._done} of {self._total} runs, {self._failed} failed{left}")

    def _print(self, text: str) -> None:
        self._console.print(visible(text), markup=False, highlight=False, soft_wrap=True)

    def _end(self, spec: RunSpec) -> None:
        self._done += 1
        if spec in self._running:  # else it was done together with one that has the bar
            self._bars.remove_task(self._running.pop(spec))
        if self._all is not None:
            self._bars.advance(self._all)
