"""The fused CPU kernels as a backend."""

from __future__ import annotations

import torch
from torch import Tensor

from uotpool.backends.base import Backend, SolverOptions, Windows
from uotpool.backends.cpu import (
    calls,
    library,
    operators,  # noqa: F401 # registers what compilers and exporters see
    ops,
    windows,
)
from uotpool.backends.reference import REFERENCE
from uotpool.problem import Problem


class CpuBackend(Backend):
    """The K modules of the exact formulation, with first derivatives in reverse."""

    name = "cpu"
    most_modules = calls.MOST_MODULES

    def unavailable(self) -> str:
        return library.missing()

    def refuses(self, options: SolverOptions) -> str:
        if options.converged:
            return 'has the K modules of formulation="exact" only, got K="converged"'
        if options.formulation != "exact":
            return f'has the K modules of formulation="exact" only, got formulation={options.formulation!r}'
        if options.solver.name not in library.SOLVERS:
            return f"has no kernel for solver={options.solver.name!r}"
        return ""

    def refuses_input(self, X: Tensor) -> str:
        if ops.handles(X):
            return ""
        return "a tensor on the CPU outside torch.func, forward-mode AD, torch.jit.trace and ONNX export"

    def plan(self, problem: Problem, options: SolverOptions) -> Tensor:
        return ops.solve(problem.scaled(), options.solver.name, plan=True)

    def pool(self, problem: Problem, options: SolverOptions) -> Tensor:
        if problem.scale is None:
            return ops.solve(problem, options.solver.name)
        if torch.compiler.is_compiling():  # `_pool_scaled` looks at values
            if options.impl == self.name:
                raise ValueError(
                    'impl: "cpu" does not pool with a scale (start="mean") in traced code: torch.compile and '
                    'torch.export; use "auto", which takes the reference there, or "reference"'
                )
            return REFERENCE.pool(problem, options)
        return self._pool_scaled(problem, options)

    def _pool_scaled(self, problem: Problem, options: SolverOptions) -> Tensor:
        """Pool X by the plan of scale * X. The kernels pool what the plan is of, so they only give the plan.

        If the mass of a feature of some set is lost to underflow, or not a number, the whole batch is solved
        again in the log domain, and that set taken from there.
        """
        X, sets = problem.X, problem.sets
        P = self.plan(problem, options)
        mass = sets.sum_n(P)  # u
        least = torch.finfo(X.dtype).tiny / torch.finfo(X.dtype).eps  # above, the shares have all their digits
        small = ~(mass.detach() > least).all(-1, keepdim=True)  # s
        y = sets.squeeze(sets.sum_n(X * P) / torch.where(small, 1.0, mass))
        lost = small & (sets.count(X) > 0) if bool(small.any()) else small  # an empty set pools to 0
        if not bool(lost.any()):
            return y
        return torch.where(sets.squeeze(lost), REFERENCE.pool(problem, options), y)

    def pool_windows(
        self, X: Tensor, weights: Tensor, scale: Tensor | None, geometry: Windows, options: SolverOptions
    ) -> Tensor | None:
        if options.solver.name != "sinkhorn":
            return None
        return windows.pool(X, weights, scale, *geometry)


CPU = CpuBackend()
