"""Processes that torchrun started: they train each run together, and the first one keeps the results."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import distributed

from uotpool_experiments.runs.executors import Event, Failed, Finished, Started, attempt
from uotpool_experiments.tasks.spec import RunSpec

TASKS = ("image",)  # whose training knows of other processes


def launched() -> bool:
    """Whether torchrun started this process."""
    return distributed.is_torchelastic_launched()


def join(specs: Sequence[RunSpec]) -> bool:
    """Meet the other processes; whether this is the first of them."""
    for spec in specs:
        if spec.task not in TASKS:
            raise ValueError(f"task: expected one of {TASKS} under torchrun, got {spec.task!r}")
    if not distributed.is_initialized():
        distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    return distributed.get_rank() == 0


class FirstExecutor:
    """Runs in this process and all others at once, one after the other. No progress within runs."""

    def __init__(self) -> None:
        self.workers = 1

    def run(self, specs: Sequence[RunSpec]) -> Iterator[Event]:
        for spec in specs:
            yield Started(spec)
            _share(spec)
            yield _together(spec)
        _share(None)  # not if it was stopped: then torchrun ends the others

    def close(self) -> None:
        distributed.destroy_process_group()


def follow() -> None:
    """What the other processes do: the runs that the first one names."""
    while (spec := _share(None)) is not None:
        _together(spec)
    distributed.destroy_process_group()


def _share(spec: RunSpec | None) -> RunSpec | None:
    box: list[Any] = [spec]
    distributed.broadcast_object_list(box, src=0)
    found: RunSpec | None = box[0]
    return found


def _together(spec: RunSpec) -> Finished | Failed:
    """A process that fails ends: the others may wait for it in the middle of a step, and torchrun ends them."""
    event = attempt(spec, lambda done, total: None)
    if isinstance(event, Failed) and distributed.get_world_size() > 1:
        where = f"process {distributed.get_rank()} of {distributed.get_world_size()}"
        print(f"{where}: {spec}: {event.error}", file=sys.stderr, flush=True)
        os._exit(1)
    return event
