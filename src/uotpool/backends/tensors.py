"""Conditions on the tensors of a call under which the fused kernels run."""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType

import torch
from torch import Tensor
from torch.autograd import forward_ad


def differentiated_in_reverse() -> bool:
    """Whether custom operators with a first derivative in reverse mode are enough here.

    They are not inside vmap, torch.func.grad or the like, forward-mode AD and torch.jit.trace, nor in an ONNX
    export, whose file needs plain operations.
    """
    return not (
        torch._C._is_tracing()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        # An export sets this flag. To ask about ONNX takes three more frames of Python in every eager call.
        or (torch.compiler._is_compiling_flag and torch.onnx.is_in_onnx_export())
    )


# A constant for the compiler. `torch.compiler.assume_constant_result` sets the same attribute, but imports
# the compiler.
differentiated_in_reverse._dynamo_marked_constant = True  # type: ignore[attr-defined]


def all_eager(inputs: tuple[Tensor | None, ...]) -> bool:
    """Whether no compiler, tensor subclass or dispatch mode intercepts a call with these tensors."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0:
        return False
    return _PLAIN.issuperset(map(type, inputs))


_PLAIN = frozenset((Tensor, NoneType, torch.nn.Parameter))


def materialize(x: Tensor) -> Tensor:
    """Contiguous x with lazy negation and ZeroTensor resolved."""
    x = x if x.is_contiguous() else x.contiguous()
    if torch.compiler.is_compiling():  # the operator calls this again when it runs
        return x
    if x.is_neg():
        return x.resolve_neg()
    return torch.zeros_like(x) if x._is_zerotensor() else x


def all_materialized(tensors: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """Apply `materialize`, quickly for the tensors of an eager call, which mostly need nothing."""
    if torch.compiler.is_compiling():
        return tuple([None if t is None else materialize(t) for t in tensors])
    for x in tensors:
        if x is not None and (not x.is_contiguous() or x.is_neg() or x._is_zerotensor()):
            return tuple([None if t is None else materialize(t) for t in tensors])
    return tuple(tensors)
