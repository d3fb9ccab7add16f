"""Where runs run: processes of this machine, or a Ray cluster. Both only hand back what happened."""

from __future__ import annotations

import ipaddress
import os
import pickle
import signal
import socket
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import connection, get_context, resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from uotpool_experiments.runs.fingerprint import fingerprint
from uotpool_experiments.tasks.spec import Result, RunSpec


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
    facts: dict[str, str] = field(default_factory=dict)  # `work.facts`, where it ran
    cpu_seconds: float | None = None


@dataclass(frozen=True)
class Failed:
    spec: RunSpec
    error: str
    facts: dict[str, str] = field(default_factory=dict)  # none if its process is gone


Event = Started | Progress | Finished | Failed


class Executor(Protocol):
    """Runs specs, in order of their start, and yields what happens; closing the iterator stops the rest."""

    workers: int

    def run(self, specs: Sequence[RunSpec]) -> Iterator[Event]: ...

    def close(self) -> None: ...


class LocalExecutor:
    """Processes of this machine, one run at a time each.

    A worker that dies takes its run with it and is replaced, and so is one whose run has no result after
    `timeout` seconds. Workers end with the driver, however that ends.
    """

    def __init__(self, workers: int, timeout: float | None = None) -> None:
        _check(workers, timeout)
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
                    if worker.spec is not None and _late(worker.since, self._timeout):
                        yield worker.give_up(f"no result after {self._timeout} seconds")
        finally:
            for worker in crew:
                worker.stop()

    def close(self) -> None:
        """Nothing: the workers end with `run`."""


def _check(workers: int | None, timeout: float | None) -> None:
    if workers is not None and workers < 1:
        raise ValueError(f"workers: expected a number >= 1, got {workers}")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout: expected a number of seconds > 0, got {timeout}")


def _late(since: float, timeout: float | None) -> bool:
    return timeout is not None and time.monotonic() - since > timeout


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
        self.since = 0.0

    def start(self, spec: RunSpec) -> None:
        self.spec, self.since = spec, time.monotonic()
        with suppress(OSError):  # it died just now: `receive` will say so
            self.pipe.send(spec)

    def receive(self) -> Event:
        try:
            event: Event = self.pipe.recv()
        except (EOFError, OSError, pickle.UnpicklingError):  # in the middle of a message, perhaps
            return self.give_up()
        if not isinstance(event, Progress):
            self.spec = None
        return event

    def give_up(self, error: str | None = None) -> Failed:
        """The run, and the worker with it."""
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
    here: dict[str, str] = {}
    try:
        from uotpool_experiments.runs.worker import execute, facts, load  # noqa: PLC0415 - torch, in the worker

        code = fingerprint(spec.task, spec.pooling)  # before the task's code is loaded
        here = facts()
        load(spec.task)  # its imports are no cost of the run
        start = time.process_time()
        result = execute(spec, report)
        return Finished(spec, result, code, here, time.process_time() - start)
    except Exception:
        return Failed(spec, traceback.format_exc(), here)


# Ray listens on all addresses of a machine that can be part of a cluster. Its name is that of the systems where
# Ray says no by itself.
ON_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


class RayExecutor:
    """A Ray cluster (extra `ray`): `address` of one, or "local" to start one here. No progress within runs.

    No more than `workers` runs at a time, nor than the cluster has CPUs. A run without a result after `timeout`
    seconds is cancelled; they count from when Ray has it. `listens` says where Ray can be reached from.
    """

    def __init__(self, address: str, workers: int | None = None, timeout: float | None = None) -> None:
        _check(workers, timeout)
        if address == "local":
            os.environ[ON_LOOPBACK] = "0"  # read on import
        else:
            os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "2")  # read on import; 20 take a quarter hour
        try:
            import ray  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "--ray needs Ray: pip install 'uotpool-experiments[ray]'", name=error.name
            ) from error
        self._ray, self._timeout = ray, timeout
        self._ours = not ray.is_initialized()
        self.listens = f"Ray: joins the cluster at {address}, whose machines listen as it was started"
        if self._ours:
            _connect(ray, address, workers)
            if address == "local":
                self.listens = f"Ray: a cluster on this machine, which listens on {_loopback(ray)} only"
        cpus = int(ray.cluster_resources().get("CPU", 1))
        self.workers = min(workers or cpus, cpus)
        self._attempt = ray.remote(num_cpus=1, max_retries=0)(_attempt_quietly)

    def run(self, specs: Sequence[RunSpec]) -> Iterator[Event]:
        waiting = list(reversed(specs))
        running: dict[Any, tuple[RunSpec, float]] = {}
        try:
            while waiting or running:
                while waiting and len(running) < self.workers:  # none in Ray's queue: its time would count
                    spec = waiting.pop()
                    running[self._attempt.remote(spec)] = spec, time.monotonic()
                    yield Started(spec)
                ready, _ = self._ray.wait(list(running), num_returns=1, timeout=1.0)
                for reference in ready:
                    spec, _ = running.pop(reference)
                    try:
                        event: Event = self._ray.get(reference)
                    except self._ray.exceptions.RayError as error:
                        event = Failed(spec, str(error))
                    yield event
                for reference in [r for r, (_, since) in running.items() if _late(since, self._timeout)]:
                    spec, _ = running.pop(reference)
                    self._ray.cancel(reference, force=True)
                    yield Failed(spec, f"no result after {self._timeout} seconds")
        finally:
            for reference in running:
                self._ray.cancel(reference, force=True)

    def close(self) -> None:
        """Leave the cluster, and end it if it was started here."""
        if self._ours:
            self._ray.shutdown()


def _connect(ray: Any, address: str, workers: int | None) -> None:
    where: dict[str, Any] = {"address": address}
    if address == "local":
        where["num_cpus"] = workers
    elif address != "auto":
        _knock(address)
    # Workers find data and settings where the driver does.
    env = {k: v for k, v in os.environ.items() if k.startswith("UOTPOOL_")} | {"OMP_NUM_THREADS": "1"}
    try:
        ray.init(
            **where,
            include_dashboard=False,
            log_to_driver=False,
            runtime_env={"env_vars": env},
            configure_logging=False,
        )
    except Exception as error:  # of many kinds
        raise ConnectionError(f"--ray: cannot use {address}: {error}") from error


def _loopback(ray: Any) -> str:
    """The address of the cluster that was started; ends it if others could reach it, and run code there."""
    address = str(ray.util.get_node_ip_address())
    if not ipaddress.ip_address(address).is_loopback:
        ray.shutdown()
        raise ConnectionError(
            f"--ray: expected a cluster on the loopback address only, got one on {address}: Ray was imported "
            f"before {ON_LOOPBACK}=0 was set; set it, or give the address of a cluster"
        )
    return address


def _knock(address: str) -> None:
    """Ray itself takes minutes to say that nobody is there."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"--ray: expected local, auto or HOST:PORT, got {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        raise ConnectionError(f"--ray: expected a cluster, but nobody answers at {address}: {error}") from error


def _attempt_quietly(spec: RunSpec) -> Finished | Failed:
    return attempt(spec, lambda done, total: None)
