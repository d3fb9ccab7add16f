"""The executor for processes that torchrun started: all train each run, and the first keeps the results."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import distributed

from uotpool_experiments.runs.executors.base import Event, Failed, Finished, Started, quietly
from uotpool_experiments.tasks import TASKS, load
from uotpool_experiments.tasks.spec import RunSpec


def launched() -> bool:
    """Return whether torchrun started this process."""
    return distributed.is_torchelastic_launched()


def join(specs: Sequence[RunSpec]) -> bool:
    """Meet the other processes, and say whether this one is the first of them."""
    for task in dict.fromkeys(spec.task for spec in specs):
        if not load(task).trains_together:
            able = tuple(name for name in TASKS if load(name).trains_together)
            raise ValueError(f"task: expected one of {able} under torchrun, got {task!r}")
    if not distributed.is_initialized():
        distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    return distributed.get_rank() == 0


class TorchrunExecutor:
    """Is used by the first process, which does each run together with all others, one run after the other.

    It reports no progress within runs.
    """

    def __init__(self) -> None:
        self.workers = 1

    def run(self, specs: Sequence[RunSpec]) -> Iterator[Event]:
        for spec in specs:
            yield Started(spec)
            _share(spec)
            yield _take_part(spec)
        _share(None)  # a sweep that is stopped does not get here: then torchrun ends the others

    def close(self) -> None:
        distributed.destroy_process_group()


def follow() -> None:
    """Do the runs that the first process names, in each of the others."""
    while (spec := _share(None)) is not None:
        _take_part(spec)
    distributed.destroy_process_group()


def _share(spec: RunSpec | None) -> RunSpec | None:
    box: list[Any] = [spec]
    distributed.broadcast_object_list(box, src=0)
    found: RunSpec | None = box[0]
    return found


def _take_part(spec: RunSpec) -> Finished | Failed:
    """Do this process's part of the run.

    A process that fails ends here, as the others may wait for it in the middle of a step; torchrun
    ends them.
    """
    (event,) = quietly((spec,))
    if isinstance(event, Failed) and distributed.get_world_size() > 1:
        where = f"process {distributed.get_rank()} of {distributed.get_world_size()}"
        print(f"{where}: {spec}: {event.error}", file=sys.stderr, flush=True)
        os._exit(1)
    return event
