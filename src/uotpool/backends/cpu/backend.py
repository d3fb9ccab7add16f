"""The fused CPU kernels as a backend."""

from __future__ import annotations

from torch import Tensor

from uotpool.backends.base import Backend, SolverOptions
from uotpool.backends.cpu import (
    calls,
    library,
    operators,  # noqa: F401 # registers what compilers and exporters see
    ops,
)
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
        return ops.solve(problem, options.solver.name, plan=True)

    def pool(self, problem: Problem, options: SolverOptions) -> Tensor:
        return ops.solve(problem, options.solver.name)


CPU = CpuBackend()
