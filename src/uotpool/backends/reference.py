"""The solvers in plain torch, for any device, any layout and any derivative."""

from __future__ import annotations

import torch
from torch import Tensor

from uotpool.backends.base import Backend, SolverOptions
from uotpool.backends.tensors import all_eager, differentiated_in_reverse
from uotpool.problem import Problem, SolverInput
from uotpool.solvers import Solver, newton


class ReferenceBackend(Backend):
    """The backend that takes every call.

    An entry of X that is not finite makes all of its set NaN, as in the kernels. The algorithms
    alone would ignore -inf, so the result of each set is multiplied by 1 or by NaN, which makes
    derivatives NaN too.
    """

    name = "reference"

    def unavailable(self) -> str:
        return ""

    def refuses(self, options: SolverOptions) -> str:
        return ""

    def refuses_input(self, X: Tensor) -> str:
        return ""

    def plan(self, problem: Problem, options: SolverOptions) -> Tensor:
        sets, given = problem.sets, problem.scaled().X.detach()
        extremes = 0.0 * given.amax(-1, keepdim=True) + 0.0 * given.amin(-1, keepdim=True)
        log_P = log_plan(problem, options) * sets.to_rows(1.0 + sets.sum_n(extremes))
        return sets.fill_absent(log_P, -torch.inf).exp().to(problem.X.dtype)

    def pool(self, problem: Problem, options: SolverOptions) -> Tensor:
        sets = problem.sets
        # A feature with a non-finite entry is NaN already.
        y = sets.squeeze(sets.sum_n(problem.X * self.shares(problem, options)))
        return y * (1.0 + (0.0 * y.detach()).sum(-1, keepdim=True))

    def shares(self, problem: Problem, options: SolverOptions) -> Tensor:
        """Return the weight of each entry of X in what `pool` returns, in the shape of X."""
        sets, log_P = problem.sets, log_plan(problem, options)
        if options.readout == "authors":
            shares = problem.X.shape[-1] * sets.fill_absent(log_P, -torch.inf).exp()
        else:
            shares = sets.softmax_n(log_P)  # eq. 4, from log P up to one constant per feature
        return shares.to(problem.X.dtype)


def log_plan(problem: Problem, options: SolverOptions) -> Tensor:
    """Return log P in the shape of X, in at least its dtype, with finite filler at absent rows."""
    solver, given = options.solver, problem.to_solve()
    if not options.converged:
        if options.formulation == "exact" and _beyond_float32(solver, given):
            given = given.double()
        return solver.solve(given, options.formulation)
    # The number of Newton steps depends on values, which no compiled graph can hold. A decorator
    # would import the compiler with the package.
    run = torch.compiler.disable(newton.solve) if torch.compiler.is_compiling() else newton.solve
    return run(given, solver.regularizer, options.tol, options.max_iter)


def _beyond_float32(solver: Solver, problem: SolverInput) -> bool:
    """Say whether the weights are too far apart for float32, where looking at their values costs nothing.

    That is in an eager call on the CPU: a GPU would have to be waited for, and no compiled graph can
    depend on a value.
    """
    weights = [w for w in problem.w if w is not None]
    if not problem.X.is_cpu or problem.X.dtype != torch.float32:
        return False
    if not differentiated_in_reverse() or not all_eager((problem.X, *weights)):
        return False
    return solver.beyond_float32([w.tolist() for w in weights])


REFERENCE = ReferenceBackend()
