"""The operators `uotpool::triton_solve` and `uotpool::triton_solve_backward`, with schemas and shapes.

A compiler or an exporter sees these. An eager call goes past them (`ops`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from uotpool import checks
from uotpool.backends.derivatives import refuse
from uotpool.backends.tensors import plain
from uotpool.backends.triton.arguments import DTYPES, KERNELS, MOST_COLUMNS, Arguments, Saved
from uotpool.backends.triton.ops import Solved, by_operator, kernels, save, solved

_problem = (
    "Tensor X, Tensor? ptr, Tensor? order, Tensor? present, SymInt N, Tensor? log_p0, Tensor? log_q0, "
    "Tensor weights, Tensor? scale, SymInt num_sets, str solver, bool plan"
)
_saved = "Tensor top, Tensor head, Tensor maxima, Tensor sums, Tensor row_sums"
_NUM_SAVED = len(Saved._fields)


def _validated(p: Arguments) -> Arguments:
    """Check what `ops.solve` makes sure of: anyone can call an operator, and kernels trust shapes."""
    M, D = p.X.shape if p.X.dim() == 2 else (0, 0)
    device, dtype = p.X.device, p.dtype
    good = (
        p.X.dtype in DTYPES
        and p.X.dim() == 2
        and 1 <= D <= MOST_COLUMNS
        and p.num_sets >= 0
        and p.N >= 0
        and all(t is None or t.device == device for t in p.tensors())
        and all(t is None or t.dtype == dtype for t in p.differentiable()[1:])
        and all(t is None or t.dtype == torch.int64 for t in (p.ptr, p.order))
        and p.solver in KERNELS
        and p.weights.dim() == 2
        and p.weights.shape[0] == len(COEFFICIENTS[p.solver])
        and p.weights.shape[1] >= 1
        and (p.scale is None or p.scale.shape in ((1,), (D,)))
        and (p.log_p0 is None or p.log_p0.shape in ((D,), (p.num_sets, D)))
        and (p.log_q0 is None or p.log_q0.shape == (M,))
        and (p.present is None or (p.present.shape == (M,) and p.present.dtype == torch.bool))
        and (p.ptr is None or p.ptr.shape == (p.num_sets + 1,))
        and (p.order is None or (p.ptr is not None and p.order.shape == (M,)))
        and (p.ptr is not None or p.num_sets * p.N == M)
    )
    if not good:
        raise ValueError(
            "uotpool::triton_solve: shapes, dtypes or devices that do not fit; use uotpool.uot_pool or uot_plan"
        )
    tensors: dict[str, Any] = {k: plain(t) for k, t in p._asdict().items() if isinstance(t, Tensor)}
    return p._replace(**tensors)


def _operator_forward(*inputs: Any) -> tuple[Tensor, ...]:
    """Return the output and what is saved, which is empty where nothing is to be."""
    *problem, to_save = inputs
    p = _validated(Arguments(*problem))
    out, saved = kernels().forward(p, save=to_save)
    return out, *(_nothing(p) if saved is None else saved)


def _nothing(p: Arguments) -> list[Tensor]:
    return [p.X.new_empty(0, dtype=p.dtype) for _ in range(_NUM_SAVED)]


def _operator_backward(dout: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Return tensors, as an operator must: an empty one for a derivative that is not wanted."""
    *problem, wanted = rest[_NUM_SAVED:]
    p, saved = _validated(Arguments(*problem)), Saved(*(plain(t) for t in rest[:_NUM_SAVED]))
    if dout.dtype != p.X.dtype or dout.shape != p.output_shape() or dout.device != p.X.device:
        raise ValueError(
            "uotpool::triton_solve_backward: dout has not the shape, dtype and device of the output"
        )
    kinds = [(t.shape, t.dtype, t.device) for t in saved]
    if kinds != [(shape, p.dtype, p.X.device) for shape in Saved.shapes(p)]:
        raise ValueError("uotpool::triton_solve_backward: expected what triton_solve saved, got other tensors")
    found = kernels().backward(plain(dout), p, saved, wanted)
    return tuple(p.X.new_empty(0) if d is None else d for d in found)


_solve_op = torch.library.custom_op(
    "uotpool::triton_solve",
    _operator_forward,
    mutates_args=(),
    schema=f"({_problem}, bool save) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
_backward_op = torch.library.custom_op(
    "uotpool::triton_solve_backward",
    _operator_backward,
    mutates_args=(),
    schema=f"(Tensor dout, {_saved}, {_problem}, bool[] wanted) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)


@_solve_op.register_fake
def _(*inputs: Any) -> tuple[Tensor, ...]:
    *problem, to_save = inputs
    p = Arguments(*problem)
    checks.one_device("uotpool::triton_solve", *p.tensors())
    saved = Saved.empty(p) if to_save else _nothing(p)
    return p.X.new_empty(p.output_shape()), *saved


@_backward_op.register_fake
def _(dout: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    *problem, wanted = rest[_NUM_SAVED:]
    p = Arguments(*problem)
    checks.one_device("uotpool::triton_solve_backward", dout, *rest[:_NUM_SAVED], *p.tensors())
    pairs = zip(p.differentiable(), wanted, strict=True)
    return tuple(dout.new_empty(0) if t is None or not w else t.new_empty(t.shape) for t, w in pairs)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    save(ctx, Arguments(*inputs[:-1]), output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, dout: Tensor | None, *rest: Any) -> tuple[Tensor | None, ...]:
    if dout is None:  # nobody uses the output
        return (None,) * 13
    wanted = [bool(ctx.needs_input_grad[i]) for i in (0, 5, 6, 7, 8)]
    problem: Solved = solved(ctx, ctx.saved_tensors)
    dX, dp, dq, dw, ds = by_operator(dout, problem, wanted)
    return dX, None, None, None, None, dp, dq, dw, ds, None, None, None, None


_solve_op.register_autograd(_differentiate, setup_context=_setup)
_backward_op.register_autograd(refuse)
