"""The solvers in plain torch: any device, any layout, any derivative."""

from __future__ import annotations

import torch
from torch import Tensor

from uotpool.backends.base import Backend, SolverOptions
from uotpool.problem import Problem
from uotpool.solvers import newton


class ReferenceBackend(Backend):
    """Takes every call."""

    name = "reference"

    def unavailable(self) -> str:
        return ""

    def refuses(self, options: SolverOptions) -> str:
        return ""

    def refuses_input(self, X: Tensor, K: int) -> str:
        return ""

    def plan(self, problem: Problem, options: SolverOptions) -> Tensor:
        return problem.sets.fill_absent(log_plan(problem, options), -torch.inf).exp()

    def pool(self, problem: Problem, options: SolverOptions) -> Tensor:
        X, sets = problem.X, problem.sets
        log_P = log_plan(problem, options)
        if options.readout == "authors":
            share = X.shape[-1] * sets.fill_absent(log_P, -torch.inf).exp()
        else:
            share = sets.softmax_n(log_P)  # eq. 4, from log P up to a constant for each feature
        return sets.squeeze(sets.sum_n(X * share))


def log_plan(problem: Problem, options: SolverOptions) -> Tensor:
    """log P in the shape of X, with finite filler at absent rows."""
    solver, given = options.solver, problem.to_solve()
    if not options.converged:
        return solver.solve(given, options.formulation)
    # Its loops end when the values say so, which no graph can hold. Not as a decorator: that would import the
    # compiler with the package.
    run = torch.compiler.disable(newton.solve) if torch.compiler.is_compiling() else newton.solve
    return run(given, solver.regularizer, options.tol, options.max_iter)


REFERENCE = ReferenceBackend()
