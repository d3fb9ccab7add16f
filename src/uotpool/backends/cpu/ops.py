"""The fused CPU kernels as a function of tensors, with derivatives.

A plain eager call goes to the library through an `autograd.Function`: the way through torch's dispatcher costs
more than the kernel on small input. A compiler or an exporter sees the operators of `operators` instead.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from uotpool.backends.call import Call
from uotpool.backends.cpu import calls
from uotpool.backends.cpu.calls import Arguments
from uotpool.backends.derivatives import differentiated, keep, kept
from uotpool.backends.legacy import (
    RATE,
    LearnedScale,
    LearnedWeights,
    Problem,
    by_parameter,
    kernel_name,
    of_call,
)
from uotpool.backends.tensors import all_eager, all_plain, differentiated_in_reverse, plain
from uotpool.sets import DenseSets, RaggedSets, Sets


def handles(X: Tensor) -> bool:
    """Say whether the kernels can work on this X here: on the CPU, differentiated in reverse at most."""
    return X.is_cpu and differentiated_in_reverse()


def solve(call: Call, *, plan: bool = False) -> Tensor:
    """Return the pooled output (B, D), or the plan in the shape of X. K >= 1."""
    problem, solver = of_call(call), kernel_name(call.solver)
    X, sets, log_p0, log_q0, weights, scale, _ = problem
    given = weights.raw if isinstance(weights, LearnedWeights) else (weights,)
    raw_scale = False
    if isinstance(scale, LearnedScale):
        scale, raw_scale = scale.raw, True
    if not all_eager((X, log_p0, log_q0, scale, *given)):
        return _by_operators(problem, solver, plan)
    X = plain(X)
    ptr, order, N = _grouping(X, sets)
    if log_p0 is not None:
        log_p0 = plain(log_p0)
    if log_q0 is not None:
        log_q0 = plain(log_q0.reshape(-1))
    if scale is not None:
        scale = plain(scale if scale.dim() == 1 else scale.reshape(1))
    given, rows, learned = all_plain(given), None, None
    if isinstance(weights, LearnedWeights):
        learned = weights if given is weights.raw else weights._replace(raw=given)
    else:
        (rows,) = given
    arguments = Arguments(
        X, ptr, order, N, log_p0, log_q0, rows, scale, sets.num_sets, solver, plan, learned, raw_scale
    )
    if torch.is_grad_enabled():
        inputs = arguments.differentiable()
        if any(t is not None and t.requires_grad for t in inputs):
            return cast(Tensor, _Solve.apply(arguments, *inputs))
    return calls.forward(arguments)


def _by_operators(problem: Problem, solver: str, plan: bool) -> Tensor:
    X, sets = problem.X, problem.sets
    rows = plain(X.reshape(-1, X.shape[-1]))
    ptr, order, N = _grouping(rows, sets)
    log_p0 = None if problem.log_p0 is None else plain(problem.log_p0)
    log_q0 = None if problem.log_q0 is None else plain(problem.log_q0.reshape(-1))
    weights = plain(problem.weight_rows())
    scales = problem.scales()
    scale = None if scales is None else plain(scales.reshape(-1))
    out = torch.ops.uotpool.solve(
        rows, ptr, order, N, log_p0, log_q0, weights, scale, sets.num_sets, solver, plan
    )
    return cast(Tensor, out.view(X.shape) if plan else out)


def _grouping(X: Tensor, sets: Sets) -> tuple[Tensor | None, Tensor | None, int]:
    """Return ptr, the order of the rows, and the common size of the sets (0 where ptr says it)."""
    if isinstance(sets, DenseSets):
        M = X.numel() // X.shape[-1]
        N = M // sets.num_sets if sets.num_sets else 0
        if sets.present is None:
            return None, None, N
        index = None
    else:
        assert isinstance(sets, RaggedSets)
        if sets.present is None and sets.one:
            return None, None, X.shape[0]
        if sets.present is None and sets.ptr is not None:
            return sets.ptr.contiguous(), None, 0
        index, N = sets.index.contiguous(), 0
    present = None if sets.present is None else sets.present.reshape(-1).contiguous()
    rows = X.reshape(-1, X.shape[-1])
    group = calls.group if all_eager((X,)) else torch.ops.uotpool.group
    ptr, order = group(rows, index, present, sets.num_sets, N)
    return ptr, order, 0


def save(ctx: Any, p: Arguments) -> None:
    """Save what a derivative needs; `saved` gets it back."""
    raw = () if p.learned is None else p.learned.raw
    keep(ctx, p.X, p.ptr, p.order, p.log_p0, p.log_q0, p.weights, p.scale, *raw)
    forms = None if p.learned is None else p.learned.forms
    ctx.rest = p.N, p.num_sets, p.solver, p.plan, p.K, forms, p.raw_scale


def saved(ctx: Any, tensors: tuple[Tensor | None, ...]) -> Arguments:
    """Return the arguments of `save`, with these for its tensors."""
    X, ptr, order, log_p0, log_q0, weights, scale, *raw = tensors
    N, num_sets, solver, plan, K, forms, raw_scale = ctx.rest
    learned = LearnedWeights(tuple(raw), forms, K) if raw else None  # type: ignore[arg-type] # none is None
    problem = (X, ptr, order, N, log_p0, log_q0, weights, scale, num_sets, solver, plan)
    return Arguments(*problem, learned, raw_scale)  # type: ignore[arg-type]


def by_operator(dout: Tensor, p: Arguments, wanted: list[bool]) -> list[Tensor | None]:
    """Do what `calls.derivatives` does, for a `dout` that has no memory of its own."""
    learned, D = p.learned, p.X.shape[-1]
    if p.raw_scale:
        assert p.scale is not None
        found = by_operator(dout, p._replace(scale=RATE * p.scale, raw_scale=False), wanted)
        by_scale = found[4]
        return [*found[:4], None if by_scale is None else RATE * by_scale, *found[5:]]
    if learned is None:
        rows, by_row = p.X.reshape(-1, D), dout.reshape(-1, D)
        dX, *others = torch.ops.uotpool.solve_backward(by_row, rows, *p[1:11], wanted)
        dX = dX.view(p.X.shape) if wanted[0] else None
        return [dX, *(d if w else None for d, w in zip(others, wanted[1:], strict=True))]
    with_rows = p._replace(weights=learned.rows().contiguous(), learned=None)
    dX, dp, dq, dweights, ds = by_operator(dout, with_rows, [*wanted[:3], any(wanted[5:]), wanted[4]])
    draw: list[Tensor | None] = [None] * len(learned.raw)
    if dweights is not None:
        for i, (raw, d) in enumerate(zip(learned.raw, dweights.unbind(-2), strict=True)):
            if wanted[5 + i]:
                by_weight = d if len(raw) == learned.K else d.sum(-1, keepdim=True)
                draw[i] = by_parameter(by_weight, raw, learned.forms[i])
    return [dX, dp, dq, None, ds, *draw]


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, arguments: Arguments, *inputs: Any) -> Tensor:
        """`inputs` are the tensors of the arguments that autograd has to see one by one."""
        save(ctx, arguments)
        return calls.forward(arguments)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        wanted = list(ctx.needs_input_grad[1:])
        tensors = tuple([None if t is None else plain(t) for t in kept(ctx)])
        return None, *differentiated(dout, saved(ctx, tensors), wanted, calls.derivatives, by_operator)
