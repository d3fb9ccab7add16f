"""The executor that runs processes of this machine."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing import connection, get_context, resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any

from uotpool_experiments.runs.executors.base import (
    Event,
    Failed,
    Progress,
    Started,
    attempt,
    check_limits,
    is_late,
)
from uotpool_experiments.tasks.spec import RunSpec


class LocalExecutor:
    """Runs processes of this machine, each of which does one run at a time.

    A worker that dies takes its run with it and is replaced, and so is one whose run has no result
    after `timeout` seconds. Workers end with the driver, however the driver ends.
    """

    def __init__(self, workers: int, timeout: float | None = None) -> None:
        check_limits(workers, timeout)
        self.workers, self._timeout = workers, timeout

    def run(self, specs: Sequence[RunSpec]) -> Iterator[Event]:
        waiting = list(reversed(specs))
        crew = [_Worker() for _ in range(min(self.workers, len(specs)))]
        try:
            while waiting or any(worker.spec for worker in crew):
                for i, worker in enumerate(crew):
                    if waiting and worker.spec is None and not worker.process.is_alive():
                        worker.stop()
                        crew[i] = _Worker()
                for worker in crew:
                    if worker.spec is None and waiting:
                        spec = waiting.pop()
                        worker.start(spec)
                        yield Started(spec)
                busy = [worker for worker in crew if worker.spec is not None]
                ready = connection.wait([w for b in busy for w in (b.pipe, b.process.sentinel)], timeout=1.0)
                for worker in busy:
                    if worker.pipe in ready or worker.process.sentinel in ready:
                        yield worker.receive()
                    if worker.spec is not None and is_late(worker.since, self._timeout):
                        yield worker.give_up(f"no result after {self._timeout} seconds")
        finally:
            for worker in crew:
                worker.stop()

    def close(self) -> None:
        """Do nothing: the workers end with `run`."""


class _Worker:
    def __init__(self) -> None:
        context = get_context("spawn")  # a fork of a process with threads of torch may hang
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs, os.getpid()), daemon=True)
        # Only the driver answers Ctrl-C, and stops the workers, also while they load torch. Workers
        # inherit this mask.
        resource_tracker.ensure_running()  # if the first worker started it, that would lift the mask
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self.spec: RunSpec | None = None
        self.since = 0.0

    def start(self, spec: RunSpec) -> None:
        self.spec, self.since = spec, time.monotonic()
        with suppress(OSError):  # the worker died just now: `receive` will say so
            self.pipe.send(spec)

    def receive(self) -> Event:
        try:
            event: Event = self.pipe.recv()
        except (EOFError, OSError, pickle.UnpicklingError):  # the worker died, perhaps within a message
            return self.give_up()
        if not isinstance(event, Progress):
            self.spec = None
        return event

    def give_up(self, error: str | None = None) -> Failed:
        """End the run, and the worker with it."""
        spec, self.spec = self.spec, None
        assert spec is not None
        self.process.kill()
        self.process.join()
        return Failed(spec, error or f"the worker process died with exit code {self.process.exitcode}")

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(pipe: Any, driver: int) -> None:
    """Do the runs that the driver sends, until the driver is gone."""
    threading.Thread(target=_end_with, args=(driver,), daemon=True).start()
    while True:
        try:
            pipe.send(_attempt(pipe.recv(), pipe))
        except (EOFError, OSError):  # the driver is gone
            return


def _attempt(spec: RunSpec, pipe: Any) -> Event:
    return attempt(spec, lambda done, total: pipe.send(Progress(spec, done, total)))


def _end_with(driver: int) -> None:
    while os.getppid() == driver:
        time.sleep(0.5)
    os._exit(1)  # nobody is left to take the result
