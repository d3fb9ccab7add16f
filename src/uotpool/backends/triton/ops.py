"""The fused GPU kernels as a function of tensors, with derivatives.

As for the CPU, a plain eager call goes past torch's dispatcher through an `autograd.Function`; a compiler or an
exporter sees the operators `uotpool::triton_solve` and `uotpool::triton_solve_backward`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from uotpool import checks
from uotpool.backends.derivatives import differentiated, keep, kept, refuse
from uotpool.backends.tensors import all_eager, plain
from uotpool.problem import Problem
from uotpool.sets import DenseSets, RaggedSets, Sets

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
MAX_COLUMNS = 1024  # a row of a tile, which has to fit the registers of a program


class Arguments(NamedTuple):
    """What the kernels are to solve.

    Set b has the rows b N .. (b + 1) N - 1; with `ptr`, the rows ptr[b] .. ptr[b + 1] - 1; with `order`
    too, the rows that it names at these places. A row that `present` is False for is absent.
    """

    X: Tensor  # (M, D), of `DTYPES`
    ptr: Tensor | None  # (B + 1,), int64
    order: Tensor | None  # (M,), int64
    present: Tensor | None  # (M,), bool
    N: int
    log_p0: Tensor | None  # (D,) or (B, D), this and all below in the dtype of computation
    log_q0: Tensor | None  # (M,)
    weights: Tensor  # (3, K): alpha0, alpha1, alpha2
    scale: Tensor | None  # (1,) or (D,)
    num_sets: int
    plan: bool

    @property
    def dtype(self) -> torch.dtype:
        """What is computed in: float32 for half precision."""
        return self.X.dtype if self.X.dtype.itemsize >= 4 else torch.float32

    def differentiable(self) -> tuple[Tensor | None, ...]:
        """Return the tensors that a derivative can be asked for."""
        return self.X, self.log_p0, self.log_q0, self.weights, self.scale

    def tensors(self) -> tuple[Tensor | None, ...]:
        """Return all tensors."""
        return *self.differentiable(), self.ptr, self.order, self.present

    def output_shape(self) -> Any:
        """Return the shape of the pooled output, or of the plan."""
        return self.X.shape if self.plan else (self.num_sets, self.X.shape[1])


class Saved(NamedTuple):
    """What a call keeps for its derivatives, (3 K + 4) B D + K M numbers in the dtype of computation."""

    top: Tensor  # (B, D): the entry of each column where scale X is largest
    head: Tensor  # (B, D): the pooled output less that; for the plan (2, B): maximum and sum of its rows
    maxima: Tensor  # (K + 1, B, D): maxima of columns for L of each module, and, if pooled, of the output
    sums: Tensor  # (K + 1, B, D): sums of exponentials relative to these
    u: Tensor  # (K, B, D)
    rows: Tensor  # (K, M): R

    @staticmethod
    def shapes(p: Arguments) -> list[tuple[int, ...]]:
        """Return the shapes of what a call keeps."""
        (M, D), B, K = p.X.shape, p.num_sets, p.weights.shape[1]
        return [(B, D), (2, B) if p.plan else (B, D), (K + 1, B, D), (K + 1, B, D), (K, B, D), (K, M)]

    @classmethod
    def empty(cls, p: Arguments) -> Saved:
        """Return memory for what a call keeps."""
        return cls(*[torch.empty(shape, dtype=p.dtype, device=p.X.device) for shape in cls.shapes(p)])


_NUM_SAVED = len(Saved._fields)


class _Solved(NamedTuple):
    """The input of the backward pass."""

    arguments: Arguments
    saved: Saved

    def differentiable(self) -> tuple[Tensor | None, ...]:
        return self.arguments.differentiable()


def kernels() -> Any:
    """Return the module `launch`. A call comes here, and not the import of uotpool, as it imports triton."""
    from uotpool.backends.triton import launch  # noqa: PLC0415

    return launch


def solve(problem: Problem, *, plan: bool = False) -> Tensor:
    """Return the pooled output (B, D), or the plan in the shape of X, by Sinkhorn with K >= 1 modules.

    X of half precision, and absent rows that hold anything, are read as they are.
    """
    p = _arguments(problem, plan)
    inputs = p.differentiable()
    if not all_eager(p.tensors()):
        out = cast(Tensor, torch.ops.uotpool.triton_solve(*p)[0])
    elif torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs):
        out = cast(Tensor, _Solve.apply(p, *inputs))
    else:
        out = cast(Tensor, kernels().forward(p)[0])
    return out.view(problem.X.shape) if plan else out


def _arguments(problem: Problem, plan: bool) -> Arguments:
    X, sets, log_p0, log_q0, *_ = problem
    scale = problem.scales()
    ptr, order, N = _grouping(X, sets)
    return Arguments(
        plain(X.reshape(-1, X.shape[-1])),
        ptr,
        order,
        None if sets.present is None else sets.present.reshape(-1).contiguous(),
        N,
        None if log_p0 is None else plain(log_p0),
        None if log_q0 is None else plain(log_q0.reshape(-1)),
        plain(problem.weight_rows()),
        None if scale is None else plain(scale.reshape(-1)),
        sets.num_sets,
        plan,
    )


def _grouping(X: Tensor, sets: Sets) -> tuple[Tensor | None, Tensor | None, int]:
    """Return ptr, the order of the rows, and the common size of the sets (0 where ptr says it).

    An index is sorted on its device: no size depends on its values, so we never wait for a GPU.
    """
    if isinstance(sets, DenseSets):
        return None, None, X.shape[1]
    assert isinstance(sets, RaggedSets)
    if sets.one:
        return None, None, X.shape[0]
    if sets.ptr is not None:
        return sets.ptr.contiguous(), None, 0
    values, order = torch.sort(sets.index, stable=True)
    return torch.searchsorted(values, torch.arange(sets.num_sets + 1, device=X.device)), order, 0


def _save(ctx: Any, p: Arguments, saved: tuple[Tensor, ...]) -> None:
    """Save what a derivative needs; `_solved` gets it back."""
    keep(ctx, p.X, p.ptr, p.order, p.present, p.log_p0, p.log_q0, p.weights, p.scale, *saved)
    ctx.rest = p.N, p.num_sets, p.plan


def _solved(ctx: Any, tensors: tuple[Any, ...]) -> _Solved:
    X, ptr, order, present, log_p0, log_q0, weights, scale, *saved = tensors
    N, num_sets, plan = ctx.rest
    p = Arguments(X, ptr, order, present, N, log_p0, log_q0, weights, scale, num_sets, plan)
    return _Solved(p, Saved(*saved))


def _derivatives(dout: Tensor, solved: _Solved, wanted: list[bool]) -> list[Tensor | None]:
    """Return the derivatives by each of `solved.differentiable()`; None for one that is not wanted."""
    return cast(list[Tensor | None], kernels().backward(plain(dout), *solved, wanted))


def _by_operator(dout: Tensor, solved: _Solved, wanted: list[bool]) -> list[Tensor | None]:
    """Do what `_derivatives` does, for a `dout` that has no memory of its own."""
    results = torch.ops.uotpool.triton_solve_backward(dout, *solved.saved, *solved.arguments, wanted)
    return [d if w else None for d, w in zip(results, wanted, strict=True)]


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, p: Arguments, *inputs: Any) -> Tensor:
        """`inputs` are the tensors of the arguments that autograd has to see one by one."""
        out, saved = kernels().forward(p)
        _save(ctx, p, saved)
        return cast(Tensor, out)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        wanted = list(ctx.needs_input_grad[1:])
        tensors = tuple([None if t is None else plain(t) for t in kept(ctx)])
        return None, *differentiated(dout, _solved(ctx, tensors), wanted, _derivatives, _by_operator)


def _validated(p: Arguments) -> Arguments:
    """Check what `solve` makes sure of: anyone can call an operator, and kernels trust shapes."""
    M, D = p.X.shape if p.X.dim() == 2 else (0, 0)
    fits = (
        p.X.dtype in DTYPES
        and p.X.dim() == 2
        and 1 <= D <= MAX_COLUMNS
        and p.num_sets >= 0
        and p.N >= 0
        and all(t is None or t.device == p.X.device for t in p.tensors())
        and all(t is None or t.dtype == p.dtype for t in p.differentiable()[1:])
        and all(t is None or t.dtype == torch.int64 for t in (p.ptr, p.order))
        and p.weights.dim() == 2
        and p.weights.shape[0] == 3
        and p.weights.shape[1] >= 1
        and (p.scale is None or p.scale.shape in ((1,), (D,)))
        and (p.log_p0 is None or p.log_p0.shape in ((D,), (p.num_sets, D)))
        and (p.log_q0 is None or p.log_q0.shape == (M,))
        and (p.present is None or (p.present.shape == (M,) and p.present.dtype == torch.bool))
        and (p.ptr is None or p.ptr.shape == (p.num_sets + 1,))
        and (p.order is None or (p.ptr is not None and p.order.shape == (M,)))
        and (p.ptr is not None or p.num_sets * p.N == M)
    )
    if not fits:
        raise ValueError(
            "uotpool::triton_solve: shapes, dtypes or devices that do not fit; use uotpool.uot_pool or uot_plan"
        )
    tensors: dict[str, Any] = {k: plain(t) for k, t in p._asdict().items() if isinstance(t, Tensor)}
    return p._replace(**tensors)


def _operator_forward(*inputs: Any) -> tuple[Tensor, ...]:
    out, saved = kernels().forward(_validated(Arguments(*inputs)))
    return out, *saved


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
    results = kernels().backward(plain(dout), p, saved, wanted)
    return tuple(p.X.new_empty(0) if d is None else d for d in results)


_PROBLEM = (
    "Tensor X, Tensor? ptr, Tensor? order, Tensor? present, SymInt N, Tensor? log_p0, Tensor? log_q0, "
    "Tensor weights, Tensor? scale, SymInt num_sets, bool plan"
)
_SAVED = ", ".join(f"Tensor {name}" for name in Saved._fields)
_solve_op = torch.library.custom_op(
    "uotpool::triton_solve",
    _operator_forward,
    mutates_args=(),
    schema=f"({_PROBLEM}) -> ({', '.join(['Tensor'] * (1 + _NUM_SAVED))})",
)
_backward_op = torch.library.custom_op(
    "uotpool::triton_solve_backward",
    _operator_backward,
    mutates_args=(),
    schema=f"(Tensor dout, {_SAVED}, {_PROBLEM}, bool[] wanted) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)


@_solve_op.register_fake
def _(*inputs: Any) -> tuple[Tensor, ...]:
    p = Arguments(*inputs)
    checks.one_device("uotpool::triton_solve", *p.tensors())
    return p.X.new_empty(p.output_shape()), *Saved.empty(p)


@_backward_op.register_fake
def _(dout: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    *problem, wanted = rest[_NUM_SAVED:]
    p = Arguments(*problem)
    checks.one_device("uotpool::triton_solve_backward", dout, *rest[:_NUM_SAVED], *p.tensors())
    pairs = zip(p.differentiable(), wanted, strict=True)
    return tuple(dout.new_empty(0) if t is None or not w else t.new_empty(t.shape) for t, w in pairs)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _save(ctx, Arguments(*inputs), output[1:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, dout: Tensor | None, *rest: Any) -> tuple[Tensor | None, ...]:
    if dout is None:  # nobody uses the output
        return (None,) * len(Arguments._fields)
    wanted = [bool(ctx.needs_input_grad[i]) for i in (0, 5, 6, 7, 8)]
    dX, dp, dq, dw, ds = _by_operator(dout, _solved(ctx, ctx.saved_tensors), wanted)
    return dX, None, None, None, None, dp, dq, dw, ds, None, None


_solve_op.register_autograd(_differentiate, setup_context=_setup)
_backward_op.register_autograd(refuse)
