"""First derivatives of fused kernels in eager autograd: what is saved, and that there are no second ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from uotpool import checks

Derivatives = Callable[[Tensor, Any, list[bool]], list[Tensor | None]]

_TWICE = (
    "the fused kernels have first derivatives only; for derivatives of derivatives (create_graph=True, "
    'gradient penalties, Hessians) use impl="reference"'
)


def keep(ctx: Any, *tensors: Tensor | None) -> None:
    """Save tensors for `kept`."""
    ctx.save_for_backward(*tensors)
    ctx.kinds = [None if t is None else (t.shape, t.dtype, t.device) for t in tensors]


def kept(ctx: Any) -> tuple[Tensor | None, ...]:
    """Return the saved tensors of an eager call, and refuse others.

    A hook on saved tensors (offloading, compression) can hand back other tensors, and the kernels trust
    shapes, dtypes and devices.
    """
    tensors = ctx.saved_tensors
    for t, kind in zip(tensors, ctx.kinds, strict=True):
        if t is not None and (t.shape, t.dtype, t.device) != kind:
            place = "the CPU" if kind[2].type == "cpu" else kind[2]
            raise RuntimeError(
                f"saved_tensors_hooks: expected the tensor that was saved, {kind[1]} of shape "
                f"{tuple(kind[0])} on {place}, got {checks.describe(t)}"
            )
    return tensors


def differentiated(
    dout: Tensor, problem: Any, wanted: list[bool], direct: Derivatives, by_operator: Derivatives
) -> Any:
    """Return the derivatives of an eager call, one for each of `problem.differentiable()`."""
    # Compiled autograd traces this, and with is_grads_batched=True `dout` has no memory: the dispatcher then
    # runs an operator for each direction.
    if torch.compiler.is_compiling() or not torch._C._has_storage(dout):
        return by_operator(dout, problem, wanted)
    if torch.is_grad_enabled():  # under create_graph=True alone
        return _Once.apply(direct, dout, *problem.differentiable(), problem, wanted)
    return direct(dout, problem, wanted)


class _Once(torch.autograd.Function):
    """Derivatives that cannot be differentiated again, and say so."""

    @staticmethod
    def forward(ctx: Any, direct: Derivatives, dout: Tensor, *inputs: Any) -> tuple[Tensor | None, ...]:
        *_, problem, wanted = inputs
        return tuple(direct(dout, problem, wanted))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        refuse(ctx, *grads)


def refuse(ctx: Any, *grads: Tensor) -> None:
    """Raise: there is no derivative of a derivative."""
    raise RuntimeError(_TWICE)
