"""The executor that runs on a Ray cluster."""

from __future__ import annotations

import ipaddress
import os
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

from uotpool_experiments.runs.executors.base import (
    Batch,
    Event,
    Failed,
    Started,
    batches,
    check_limits,
    is_late,
    quietly,
)
from uotpool_experiments.tasks.spec import RunSpec

# Ray listens on all addresses of a machine that can be part of a cluster. "0" says that this
# machine cannot be one. The variable is named after the systems on which that is Ray's default.
ON_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


class RayExecutor:
    """Runs on a Ray cluster (extra `ray`) at an address, or on one that is started here for "local".

    At most `workers` runs go on at a time, and at most one per CPU of the cluster. A run without a
    result `timeout` seconds after Ray got it is cancelled. The executor reports no progress within
    runs. `listens` says from where Ray can be reached.
    """

    def __init__(self, address: str, workers: int | None = None, timeout: float | None = None) -> None:
        check_limits(workers, timeout)
        if address == "local":
            os.environ[ON_LOOPBACK] = "0"  # Ray reads it on import
        else:
            # Ray reads this on import. Its default of 20 retries takes a quarter of an hour.
            os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "2")
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
        self._attempt = ray.remote(num_cpus=1, max_retries=0)(quietly)

    def run(self, specs: Sequence[RunSpec]) -> Iterator[Event]:
        waiting = list(reversed(batches(specs)))
        running: dict[Any, tuple[Batch, float]] = {}
        try:
            while waiting or running:
                while waiting and len(running) < self.workers:  # the clock of a run in Ray's queue would tick
                    batch = waiting.pop()
                    running[self._attempt.remote(batch)] = batch, time.monotonic()
                    yield Started(batch[0], len(batch) - 1)
                ready, _ = self._ray.wait(list(running), num_returns=1, timeout=1.0)
                for reference in ready:
                    batch, _ = running.pop(reference)
                    try:
                        events: Sequence[Event] = self._ray.get(reference)
                    except self._ray.exceptions.RayError as error:
                        events = [Failed(spec, str(error)) for spec in batch]
                    yield from events
                for reference in [r for r, (_, since) in running.items() if is_late(since, self._timeout)]:
                    batch, _ = running.pop(reference)
                    self._ray.cancel(reference, force=True)
                    yield from [Failed(spec, f"no result after {self._timeout} seconds") for spec in batch]
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
    # Workers find data and settings where the driver finds them.
    env = {k: v for k, v in os.environ.items() if k.startswith("UOTPOOL_")} | {"OMP_NUM_THREADS": "1"}
    try:
        ray.init(
            **where,
            include_dashboard=False,
            log_to_driver=False,
            runtime_env={"env_vars": env},
            configure_logging=False,
        )
    except Exception as error:  # Ray raises many kinds of errors
        raise ConnectionError(f"--ray: cannot use {address}: {error}") from error


def _loopback(ray: Any) -> str:
    """Return the address of the cluster that was started. End one that others could reach to run code in it."""
    address = str(ray.util.get_node_ip_address())
    if not ipaddress.ip_address(address).is_loopback:
        ray.shutdown()
        raise ConnectionError(
            f"--ray: expected a cluster on the loopback address only, got one on {address}: Ray was imported "
            f"before {ON_LOOPBACK}=0 was set; set it, or give the address of a cluster"
        )
    return address


def _knock(address: str) -> None:
    """Refuse an address where nobody answers, since Ray itself takes minutes to say so."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"--ray: expected local, auto or HOST:PORT, got {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        raise ConnectionError(f"--ray: expected a cluster, but nobody answers at {address}: {error}") from error
