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
    Batch,
    Event,
    Failed,
    Progress,
    Started,
    attempt,
    batches,
    check_limits,
    is_late,
)
from uotpool_experiments.tasks.spec import RunSpec


class LocalExecutor:
    """Runs processes of this machine, each of which does one run at a time, or several seeds of it together.

    A worker that dies takes its run with it and is replaced, and so is one whose run has no result
    after `timeout` seconds. Workers end with the driver, however the driver ends.
    """

    def __init__(self, workers: int, timeout: float | None = None) -> None:
        check_limits(workers, timeout)
        self.workers, self._timeout = workers, timeout

    def run(self, specs: Sequence[RunSpec]) -> Iterator[Event]:
        waiting = list(reversed(batches(specs)))
        crew = [_Worker() for _ in range(min(self.workers, len(waiting)))]
        try:
            while waiting or any(worker.batch for worker in crew):
                for i, worker in enumerate(crew):
                    if waiting and not worker.batch and not worker.process.is_alive():
                        worker.stop()
                        crew[i] = _Worker()
                for worker in crew:
                    if not worker.batch and waiting:
                        batch = waiting.pop()
                        worker.start(batch)
                        yield Started(batch[0], len(batch) - 1)
                busy = [worker for worker in crew if worker.batch]
                ready = connection.wait([w for b in busy for w in (b.pipe, b.process.sentinel)], timeout=1.0)
                for worker in busy:
                    if worker.pipe in ready or worker.process.sentinel in ready:
                        yield from worker.receive()
                    if worker.batch and is_late(worker.since, self._timeout):
                        yield from worker.give_up(f"no result after {self._timeout} seconds")
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
        self.batch: Batch = ()
        self.since = 0.0

    def start(self, batch: Batch) -> None:
        self.batch, self.since = batch, time.monotonic()
        with suppress(OSError):  # the worker died just now: `receive` will say so
            self.pipe.send(batch)

    def receive(self) -> Sequence[Event]:
        try:
            events: Sequence[Event] = self.pipe.recv()
        except (EOFError, OSError, pickle.UnpicklingError):  # the worker died, perhaps within a message
            return self.give_up()
        if not isinstance(events[0], Progress):
            self.batch = ()
        return events

    def give_up(self, error: str | None = None) -> list[Failed]:
        """End the runs, and the worker with them."""
        batch, self.batch = self.batch, ()
        self.process.kill()
        self.process.join()
        said = error or f"the worker process died with exit code {self.process.exitcode}"
        return [Failed(spec, said) for spec in batch]

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


def _attempt(batch: Batch, pipe: Any) -> Sequence[Event]:
    return attempt(batch, lambda done, total: pipe.send([Progress(batch[0], done, total)]))


def _end_with(driver: int) -> None:
    while os.getppid() == driver:
        time.sleep(0.5)
    os._exit(1)  # nobody is left to take the result
