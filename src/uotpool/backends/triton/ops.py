"""The fused GPU kernels as a function of tensors, with derivatives.

As for the CPU, a plain eager call goes past torch's dispatcher through an `autograd.Function`, and a
compiler or an exporter sees the operators of `operators` instead.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from uotpool.backends.derivatives import differentiated, keep, kept
from uotpool.backends.legacy import Problem
from uotpool.backends.tensors import all_eager, plain
from uotpool.backends.triton.arguments import Arguments, Saved
from uotpool.sets import DenseSets, RaggedSets, Sets


def kernels() -> Any:
    """Return the module `calls`. A call comes here, and not the import of uotpool, as it imports triton."""
    from uotpool.backends.triton import calls  # noqa: PLC0415

    return calls


class Solved(NamedTuple):
    """What was solved, and what was saved of it: the input of the way back."""

    arguments: Arguments
    saved: Saved

    def differentiable(self) -> tuple[Tensor | None, ...]:
        """Return the tensors that a derivative can be asked for."""
        return self.arguments.differentiable()


def solve(problem: Problem, solver: str, *, plan: bool = False) -> Tensor:
    """Return the pooled output (B, D), or the plan in the shape of X. K >= 1.

    Args:
        problem: what to solve; X of half precision, and absent rows that hold anything, are read as they are.
        solver: name of the solver.
        plan: the plan instead of the pooled output.
    """
    p = _arguments(problem, solver, plan)
    inputs = p.differentiable()
    save = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)
    if not all_eager(p.tensors()):
        out = cast(Tensor, torch.ops.uotpool.triton_solve(*p, save)[0])
    elif save:
        out = cast(Tensor, _Solve.apply(p, *inputs))
    else:
        out = cast(Tensor, kernels().forward(p, save=False)[0])
    return out.view(problem.X.shape) if plan else out


def _arguments(problem: Problem, solver: str, plan: bool) -> Arguments:
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
        solver,
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


def save(ctx: Any, p: Arguments, saved: tuple[Tensor, ...]) -> None:
    """Save what a derivative needs; `solved` gets it back."""
    keep(ctx, p.X, p.ptr, p.order, p.present, p.log_p0, p.log_q0, p.weights, p.scale, *saved)
    ctx.rest = p.N, p.num_sets, p.solver, p.plan


def solved(ctx: Any, tensors: tuple[Any, ...]) -> Solved:
    """Return the arguments of `save`, with these for its tensors."""
    X, ptr, order, present, log_p0, log_q0, weights, scale, *saved = tensors
    N, num_sets, solver, plan = ctx.rest
    p = Arguments(X, ptr, order, present, N, log_p0, log_q0, weights, scale, num_sets, solver, plan)
    return Solved(p, Saved(*saved))


def derivatives(dout: Tensor, problem: Solved, wanted: list[bool]) -> list[Tensor | None]:
    """Return the derivatives by each of `problem.differentiable()`; None for one that is not wanted."""
    return cast(list[Tensor | None], kernels().backward(plain(dout), *problem, wanted))


def by_operator(dout: Tensor, problem: Solved, wanted: list[bool]) -> list[Tensor | None]:
    """Do what `derivatives` does, for a `dout` that has no memory of its own."""
    found = torch.ops.uotpool.triton_solve_backward(dout, *problem.saved, *problem.arguments, wanted)
    return [d if w else None for d, w in zip(found, wanted, strict=True)]


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, p: Arguments, *inputs: Any) -> Tensor:
        """`inputs` are the tensors of the arguments that autograd has to see one by one."""
        out, saved = kernels().forward(p)
        save(ctx, p, saved)
        return cast(Tensor, out)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        wanted = list(ctx.needs_input_grad[1:])
        tensors = tuple([None if t is None else plain(t) for t in kept(ctx)])
        return None, *differentiated(dout, solved(ctx, tensors), wanted, derivatives, by_operator)
