"""Peak extra memory of one call, measured in a process of its own: `python -m bench.memory_probe '{...}'`.

Resident memory as the kernel counts it, not torch's counters: the native scratch is not torch's. What counts is
what the call adds to the process with X already there: scratch, saved tensors, the output, dX.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from bench.timing import random_edges
from uotpool.zoo import build

STATUS = Path("/proc/self/status")


def kib(field: str) -> int:
    for line in STATUS.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise LookupError(field)


def start() -> int:
    """Return the KiB resident now; from here on `peak` counts, where Linux lets it be reset."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # no such file, or not allowed: then the peak so far counts
        return peak()
    return kib("VmRSS")


def peak() -> int:
    try:
        return kib("VmHWM")
    except (OSError, LookupError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most // 1024 if sys.platform == "darwin" else most


def made(name: str) -> Callable[..., Any]:
    """Return what makes the pooling: of `uotpool.zoo`, or a function as module:function."""
    module, _, function = name.partition(":")
    return getattr(import_module(module), function) if function else partial(build, name)


def probe(size: list[int], name: str, options: dict[str, Any], backward: bool, threads: int) -> int:
    """Return the extra bytes at the peak of one call."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    B, N, D = size
    pool = made(name)(D, **options)
    X = torch.randn(B, N, D, requires_grad=backward)

    def call(X: torch.Tensor, edges: torch.Tensor | None) -> None:
        given = {} if edges is None else {"edge_index": edges}
        if backward:
            y = pool(X, **given)
            torch.autograd.grad(y.sum() + pool.aux_loss, [X, *pool.parameters()], allow_unused=True)
        else:
            with torch.no_grad():
                pool(X, **given)

    def edges(*size: int) -> torch.Tensor | None:
        return random_edges((size[0], size[1], size[2])) if pool.needs_edges else None

    # Libraries, thread pools and code pages are loaded by a tiny call; they are no cost of the large one.
    call(torch.randn(threads, 2, D, requires_grad=backward), edges(threads, 2, D))
    large = edges(B, N, D)
    before = start()
    call(X, large)
    return 1024 * (peak() - before)


if __name__ == "__main__":
    print(probe(**json.loads(sys.argv[1])))
