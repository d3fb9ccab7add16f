"""The operators `uotpool::solve`, `uotpool::solve_backward` and `uotpool::group`, with schemas and shapes.

A compiler or an exporter sees these. An eager call goes past them (`ops`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from uotpool import checks
from uotpool.backends.cpu import calls, library
from uotpool.backends.cpu.calls import DTYPES, MOST_MODULES, Arguments
from uotpool.backends.cpu.ops import by_operator, save, saved
from uotpool.backends.derivatives import refuse
from uotpool.backends.tensors import plain

_problem = (
    "Tensor X, Tensor? ptr, Tensor? order, SymInt N, Tensor? log_p0, Tensor? log_q0, Tensor weights, "
    "Tensor? scale, SymInt num_sets, str solver, bool plan"
)


def operator(name: str, function: Any, schema: str) -> Any:
    """Register a function as the operator `uotpool::name` for the CPU."""
    return torch.library.custom_op(
        f"uotpool::{name}", function, mutates_args=(), schema=schema, device_types="cpu"
    )


def _validated(p: Arguments) -> Arguments:
    """Check what `ops.solve` makes sure of: anyone can call an operator, and C trusts shapes and dtypes."""
    M, D = p.X.shape if p.X.dim() == 2 else (0, 0)
    good = (
        p.X.dtype in DTYPES
        and p.X.dim() == 2
        and D >= 1
        and p.num_sets >= 0
        and p.N >= 0
        and all(t is None or (t.dtype == p.X.dtype and t.device.type == "cpu") for t in p.differentiable())
        and all(t is None or (t.dtype == torch.int64 and t.device.type == "cpu") for t in (p.ptr, p.order))
        and p.solver in library.SOLVERS
        and p.weights is not None
        and p.weights.dim() == 2
        and p.weights.shape[0] == (3 if p.solver == "sinkhorn" else 4)
        and 1 <= p.weights.shape[1] <= MOST_MODULES
        and (p.scale is None or p.scale.shape in ((1,), (D,)))
        and (p.log_p0 is None or p.log_p0.shape in ((D,), (p.num_sets, D)))
        and (p.log_q0 is None or p.log_q0.shape == (M,))
        and (p.ptr is None or p.ptr.shape == (p.num_sets + 1,))
        and (p.order is None or (p.ptr is not None and p.order.shape == (M,)))
        and (p.ptr is not None or p.num_sets * p.N == M)
    )
    if not good:
        raise ValueError(
            "uotpool::solve: shapes, dtypes or devices that do not fit; use uotpool.uot_pool or uot_plan"
        )
    tensors: dict[str, Any] = {k: plain(t) for k, t in p._asdict().items() if isinstance(t, Tensor)}
    return p._replace(**tensors)


def _operator_forward(*problem: Any) -> Tensor:
    return calls.forward(_validated(Arguments(*problem)))


def _operator_backward(dout: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Return tensors, as an operator must: an empty one for a derivative that is not wanted."""
    *problem, wanted = rest
    p = _validated(Arguments(*problem))
    if dout.dtype != p.X.dtype or dout.shape != p.output_shape():
        raise ValueError("uotpool::solve_backward: dout has not the shape and dtype of the output")
    return tuple(p.X.new_empty(0) if d is None else d for d in calls.derivatives(dout, p, wanted))


def _operator_group(
    rows: Tensor, index: Tensor | None, present: Tensor | None, num_sets: int, N: int
) -> tuple[Tensor, Tensor]:
    """Check what `ops.solve` makes sure of, as `_validated` does."""
    M = rows.shape[0] if rows.dim() else -1
    good = (
        M >= 0
        and num_sets >= 0
        and N >= 0
        and (index is None or (index.dtype == torch.int64 and index.shape == (M,)))
        and (index is not None or num_sets * N == M)
        and (present is None or (present.dtype == torch.bool and present.shape == (M,)))
    )
    if not good:
        raise ValueError(
            "uotpool::group: expected rows (M, D), an int64 index (M,) or num_sets * N = M, and a bool present "
            f"(M,), got rows {checks.describe(rows)}, index {checks.describe(index)}, present "
            f"{checks.describe(present)}, num_sets={num_sets}, N={N}; use uotpool.uot_pool or uot_plan"
        )
    index, present = (None if t is None else plain(t) for t in (index, present))
    return calls.group(rows, index, present, num_sets, N)


_group_op = operator(
    "group",
    _operator_group,
    "(Tensor rows, Tensor? index, Tensor? present, SymInt num_sets, SymInt N) -> (Tensor, Tensor)",
)
_solve_op = operator("solve", _operator_forward, f"({_problem}) -> Tensor")
_backward_op = operator(
    "solve_backward",
    _operator_backward,
    f"(Tensor dout, {_problem}, bool[] wanted) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)


@_group_op.register_fake
def _(
    rows: Tensor, index: Tensor | None, present: Tensor | None, num_sets: int, N: int
) -> tuple[Tensor, Tensor]:
    checks.one_device("uotpool::group", rows, index, present)
    return rows.new_empty(num_sets + 1, dtype=torch.int64), rows.new_empty(rows.shape[0], dtype=torch.int64)


@_solve_op.register_fake
def _(*problem: Any) -> Tensor:
    p = Arguments(*problem)
    checks.one_device("uotpool::solve", *p.tensors())
    return p.X.new_empty(p.output_shape())


@_backward_op.register_fake
def _(dout: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    *problem, wanted = rest
    p = Arguments(*problem)
    checks.one_device("uotpool::solve_backward", dout, *p.tensors())
    pairs = zip(p.differentiable(), wanted, strict=True)
    return tuple(dout.new_empty(0 if t is None or not w else t.shape) for t, w in pairs)


def _differentiate(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
    wanted = [bool(ctx.needs_input_grad[i]) for i in (0, 4, 5, 6, 7)]
    dX, dp, dq, dw, ds = by_operator(dout, saved(ctx, ctx.saved_tensors), wanted)
    return dX, None, None, None, dp, dq, dw, ds, None, None, None


_solve_op.register_autograd(
    _differentiate, setup_context=lambda ctx, inputs, output: save(ctx, Arguments(*inputs))
)
_backward_op.register_autograd(refuse)
