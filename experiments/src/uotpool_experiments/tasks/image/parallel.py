"""Train one network in several processes, each on its part of every batch.

One process alone does nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn

from uotpool_experiments.datasets.fetch import locked

T = TypeVar("T")


def rank() -> int:
    return distributed.get_rank() if distributed.is_initialized() else 0


def world() -> int:
    return distributed.get_world_size() if distributed.is_initialized() else 1


def mine(rows: Tensor) -> Tensor:
    """Return this process's part of the rows."""
    return rows[rank() :: world()]


def total(value: Tensor) -> Tensor:
    """Return the sum over the processes."""
    if world() > 1:
        distributed.all_reduce(value)
    return value


def from_first(make: Callable[[], T]) -> T:
    """Return what the first process makes, in all processes."""
    if world() == 1:
        return make()
    box: list[Any] = [make() if rank() == 0 else None]
    distributed.broadcast_object_list(box, src=0)
    found: T = box[0]
    return found


@contextmanager
def locked_by_first(path: Path) -> Iterator[None]:
    if rank() == 0:
        with locked(path):
            yield
    else:
        yield


def wrapped(model: nn.Module) -> nn.Module:
    """Wrap the model so that its gradients are averaged over the processes."""
    return model if world() == 1 else nn.parallel.DistributedDataParallel(model)


def share_buffers(model: nn.Module) -> None:
    """Give all processes the running statistics of the first, as each has seen only its part of the
    last batch.
    """
    if world() > 1:
        for buffer in model.buffers():
            distributed.broadcast(buffer, src=0)


def device(kind: str) -> torch.device:
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError("device: expected 'cpu', as torch sees no CUDA device, got 'cuda'")
    return torch.device(kind, rank() % torch.cuda.device_count()) if kind == "cuda" else torch.device("cpu")
