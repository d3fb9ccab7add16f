"""Sum and maximum of the rows of ragged sets, and values of sets for their rows.

Inductor (torch 2.13, CPU) reuses the buffer of a scatter too early in a graph with several scatters,
which gives wrong numbers without a message, or a crash (the case is in `tests/nn/test_runtime.py`). So we
use custom operators while compiling, and plain torch in eager mode and exports.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from uotpool import checks


def sum(Y: Tensor, index: Tensor, num_sets: int) -> Tensor:
    """Sum the rows of each set, (M, C) -> (num_sets, C)."""
    return _sum_op(Y, index, num_sets) if _opaque() else _sum(Y, index, num_sets)


def max(Y: Tensor, index: Tensor, num_sets: int) -> Tensor:
    """Return the maximum of each set, (M, C) -> (num_sets, C), -inf for an empty set, without gradient."""
    return _max_op(Y, index, num_sets) if _opaque() else _max(Y, index, num_sets)


def to_rows(u: Tensor, index: Tensor) -> Tensor:
    """Give each row the values of its set, (num_sets, C) -> (M, C)."""
    return _spread_op(u, index) if _opaque() else _spread(u, index)


def _opaque() -> bool:
    if not torch.compiler.is_compiling():
        return False
    is_exporting = getattr(torch.compiler, "is_exporting", None)  # torch 2.4 has none
    return is_exporting is None or not is_exporting()


def _sum(Y: Tensor, index: Tensor, num_sets: int) -> Tensor:
    zeros = Y.new_zeros(num_sets, Y.shape[1])
    if torch._C._is_tracing():  # torch.onnx.export by tracing gets index_add with repeated indices wrong
        return zeros.scatter_add(0, index[:, None].expand_as(Y), Y)
    return zeros.index_add(0, index, Y)


def _max(Y: Tensor, index: Tensor, num_sets: int) -> Tensor:
    lowest = Y.new_full((num_sets, Y.shape[1]), -torch.inf)
    return lowest.scatter_reduce(0, index[:, None].expand_as(Y), Y, "amax")


def _spread(u: Tensor, index: Tensor) -> Tensor:
    return u.index_select(0, index)


def _operator(name: str, function: Any, schema: str) -> Any:
    return torch.library.custom_op(f"uotpool::segment_{name}", function, mutates_args=(), schema=schema)


_sum_op = _operator("sum", _sum, "(Tensor Y, Tensor index, SymInt num_sets) -> Tensor")
_max_op = _operator("max", _max, "(Tensor Y, Tensor index, SymInt num_sets) -> Tensor")
_spread_op = _operator("spread", _spread, "(Tensor u, Tensor index) -> Tensor")


@_sum_op.register_fake
def _summed(Y: Tensor, index: Tensor, num_sets: int) -> Tensor:
    checks.one_device("uotpool::segment_sum", Y, index)
    return Y.new_empty(num_sets, Y.shape[1])


@_max_op.register_fake
def _largest(Y: Tensor, index: Tensor, num_sets: int) -> Tensor:
    checks.one_device("uotpool::segment_max", Y, index)
    return Y.new_empty(num_sets, Y.shape[1])


@_spread_op.register_fake
def _spread_out(u: Tensor, index: Tensor) -> Tensor:
    checks.one_device("uotpool::segment_spread", u, index)
    return u.new_empty(index.shape[0], u.shape[1])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])
    ctx.num_sets = inputs[0].shape[0]


def _sum_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    (index,) = ctx.saved_tensors
    return _spread_op(grad.contiguous(), index), None, None


def _spread_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    (index,) = ctx.saved_tensors
    return _sum_op(grad.contiguous(), index, ctx.num_sets), None


_sum_op.register_autograd(_sum_backward, setup_context=_keep)
_spread_op.register_autograd(_spread_backward, setup_context=_keep)
