"""Progress of a sweep on the terminal: all runs, and the epochs of those that run now."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from uotpool.experiments.spec import RunSpec


class Display:
    """Bars on stderr; on what is not a terminal, a line now and then."""

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
        )
        self._all: TaskID | None = None
        self._running: dict[RunSpec, TaskID] = {}
        self._done = self._total = 0

    def __enter__(self) -> Display:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def begin(self, total: int, workers: int) -> None:
        self._total = total
        self._all = self._bars.add_task(f"runs ({workers} workers)", total=total)

    def started(self, spec: RunSpec) -> None:
        self._running[spec] = self._bars.add_task(f"  {spec}", total=None)

    def progress(self, spec: RunSpec, done: int, total: int) -> None:
        self._bars.update(self._running[spec], completed=done, total=total)

    def finished(self, spec: RunSpec) -> None:
        self._end(spec)
        step = max(1, self._total // 20)
        if not self._console.is_terminal and (self._done % step == 0 or self._done == self._total):
            self._console.print(f"{self._done} of {self._total} runs", highlight=False)

    def failed(self, spec: RunSpec, error: str) -> None:
        self._end(spec)
        last = error.strip().splitlines()[-1] if error.strip() else "no message"
        self._bars.console.print(f"failed: {spec}: {last}", markup=False, highlight=False)

    def _end(self, spec: RunSpec) -> None:
        self._done += 1
        self._bars.remove_task(self._running.pop(spec))
        if self._all is not None:
            self._bars.advance(self._all)
