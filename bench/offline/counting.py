"""Count what torch does in a call: operations that a GPU would launch, the memory they move, values read."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import uotpool
from uotpool import checks
from uotpool.backends.triton import backend

PACKAGE = Path(uotpool.__file__).parent
aten = torch.ops.aten
# Operations that make the host wait for a GPU: a number, or a size that depends on the data.
WAITS = {aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.equal, aten.unique_dim, aten._unique2}
WAITS |= {aten.repeat_interleave}
# Operations that do so where an index is a mask.
MASKED = {aten.index, aten.index_put, aten.index_put_}
# Operations that launch nothing, beside views.
IDLE = {aten.empty, aten.new_empty, aten.empty_like, aten.empty_strided, aten.lift_fresh, aten.detach}


class Counter(TorchDispatchMode):
    """Count what passes torch's dispatcher. Triton's launches do not pass it.

    Attributes:
        operations: that are neither views nor allocations. Each is one launch on a GPU, or a few.
        bytes: of the tensors that they read and write; of an expanded tensor those that are there.
        waits: by which function of the library, where the host would wait for a GPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.bytes = 0
        self.waits: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = func.overloadpacket
        if packet in WAITS or (packet in MASKED and _has_mask(args[1])):
            self.waits.append(f"{caller()}: {packet.__name__}")
        out = func(*args, **(kwargs or {}))
        if func.is_view or packet in IDLE:
            return out
        self.operations += 1
        self.bytes += sum(moved(t) for t in tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor))
        return out


def _has_mask(indices: Any) -> bool:
    return any(one is not None and one.dtype == torch.bool for one in indices)


def moved(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor that are there; an expanded one repeats them."""
    entries = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        entries *= 1 if stride == 0 and size else size
    return entries * tensor.element_size()


def caller() -> str:
    """Return the function of the library that is running."""
    frames = [frame for frame in traceback.extract_stack() if PACKAGE in Path(frame.filename).parents]
    if not frames:
        return "outside of the library"
    inside = Path(frames[-1].filename).relative_to(PACKAGE)
    return f"{inside.as_posix()} {frames[-1].name}"


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Let the library take CPU tensors for those of a GPU: values are not free to read, triton takes them."""
    with (
        mock.patch.object(checks, "readable", return_value=False),
        mock.patch.object(backend, "_INTERPRETED", True),
    ):
        yield
