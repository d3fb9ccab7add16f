"""Where runs run: processes of this machine, or a Ray cluster. Both only hand back what happened."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection, get_context, resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from uotpool.experiments.fingerprint import fingerprint
from uotpool.experiments.spec import Result, RunSpec


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
    code: str  # fingerprint, where it ran


@dataclass(frozen=True)
class Failed:
    spec: RunSpec
    error: str


Event = Started | Progress | Finished | Failed


class Executor(Protocol):
    """Runs specs, in order of their start, and yields what happens; closing the iterator stops the rest."""

    workers: int

    def run(self, specs: Sequence[RunSpec]) -> Iterator[Event]: ...


class LocalExecutor:
    """Processes of this machine, one run at a time each.

    A worker that dies takes its run with it and is replaced. Workers end with the driver, however that ends.
    """

    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise ValueError(f"workers: expected a number >= 1, got {workers}")
        self.workers = workers

    def run(self, specs: Sequence[RunSpec]) -> Iterator[Event]:
        waiting = list(reversed(specs))
        crew = [_Worker() for _ in range(min(self.workers, len(specs)))]
        try:
            while waiting or any(worker.spec for worker in crew):
                crew = [worker if worker.process.is_alive() or worker.spec else _Worker() for worker in crew]
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
        finally:
            for worker in crew:
                worker.stop()


class _Worker:
    def __init__(self) -> None:
        context = get_context("spawn")  # a fork of a process with threads of torch may hang
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs, os.getpid()), daemon=True)
        # Ctrl-C goes to the driver, which stops the workers, also while they load torch. The mask is inherited.
        resource_tracker.ensure_running()  # would be started with the first worker, and lift the mask
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self.spec: RunSpec | None = None

    def start(self, spec: RunSpec) -> None:
        self.spec = spec
        with suppress(OSError):  # it died just now: `receive` will say so
            self.pipe.send(spec)

    def receive(self) -> Event:
        spec = self.spec
        assert spec is not None
        try:
            event: Event = self.pipe.recv()
        except (EOFError, OSError, pickle.UnpicklingError):  # in the middle of a message, perhaps
            self.process.kill()
            self.process.join()
            event = Failed(spec, f"the worker process died with exit code {self.process.exitcode}")
        if not isinstance(event, Progress):
            self.spec = None
        return event

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(pipe: Any, driver: int) -> None:
    """The life of a worker."""
    threading.Thread(target=_end_with, args=(driver,), daemon=True).start()
    while True:
        try:
            spec = pipe.recv()
            pipe.send(attempt(spec, lambda done, total, spec=spec: pipe.send(Progress(spec, done, total))))
        except (EOFError, OSError):  # the driver is gone
            return


def _end_with(driver: int) -> None:
    while os.getppid() == driver:
        time.sleep(0.5)
    os._exit(1)  # nobody is there to take the result


def attempt(spec: RunSpec, report: Any) -> Finished | Failed:
    """Run it, or say why not."""
    from uotpool.experiments.work import execute  # noqa: PLC0415 - torch is loaded in the worker

    try:
        code = fingerprint(spec.task, spec.pooling)  # before the task's code is loaded
        return Finished(spec, execute(spec, report), code)
    except Exception:
        return Failed(spec, traceback.format_exc())


class RayExecutor:
    """A Ray cluster (extra `ray`): `address` of one, or "local" to start one here. No progress within runs."""

    def __init__(self, address: str, workers: int | None = None) -> None:
        try:
            import ray  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("--ray needs Ray: install the extra `ray`", name=error.name) from error
        self._ray = ray
        if not ray.is_initialized():
            where: dict[str, Any] = {"address": address}
            if address == "local":
                where["num_cpus"] = workers
            # Workers find data and settings where the driver does.
            env = {k: v for k, v in os.environ.items() if k.startswith("UOTPOOL_")} | {"OMP_NUM_THREADS": "1"}
            ray.init(
                **where,
                include_dashboard=False,
                log_to_driver=False,
                runtime_env={"env_vars": env},
                configure_logging=False,
            )
        self.workers = int(ray.cluster_resources().get("CPU", 1))
        self._attempt = ray.remote(num_cpus=1, max_retries=0)(_attempt_quietly)

    def run(self, specs: Sequence[RunSpec]) -> Iterator[Event]:
        waiting = list(reversed(specs))
        running: dict[Any, RunSpec] = {}
        try:
            while waiting or running:
                while waiting and len(running) < 2 * self.workers:  # one in reserve, so that none waits for us
                    spec = waiting.pop()
                    running[self._attempt.remote(spec)] = spec
                    yield Started(spec)
                ready, _ = self._ray.wait(list(running), num_returns=1, timeout=1.0)
                for reference in ready:
                    spec = running.pop(reference)
                    try:
                        event: Event = self._ray.get(reference)
                    except self._ray.exceptions.RayError as error:
                        event = Failed(spec, str(error))
                    yield event
        finally:
            for reference in running:
                self._ray.cancel(reference, force=True)


def _attempt_quietly(spec: RunSpec) -> Finished | Failed:
    return attempt(spec, lambda done, total: None)
