"""The fused CPU kernels as a backend."""

from __future__ import annotations

from torch import Tensor

from uotpool.backends.base import Backend
from uotpool.backends.call import Call
from uotpool.backends.cpu import (
    library,
    operators,  # noqa: F401 # registers what compilers and exporters see
    ops,
)
from uotpool.backends.tensors import differentiated_in_reverse
from uotpool.solvers import BregmanADMM, Sinkhorn, Solver


class CpuBackend(Backend):
    """The unrolled steps of exact Sinkhorn and Bregman ADMM, with first derivatives in reverse."""

    name = "cpu"

    def unavailable(self) -> str:
        return library.missing()

    def why_not(self, X: Tensor, solver: Solver) -> str:
        if not X.is_cpu:
            return "takes tensors on the CPU"
        if type(solver) not in (Sinkhorn, BregmanADMM):
            return f"has no kernel for {solver}"
        if solver.steps == 0:
            return "has nothing to solve with K = 0"
        if not differentiated_in_reverse():
            return "is not used under torch.func, forward-mode AD, torch.jit.trace and ONNX export"
        if reason := library.missing():
            return f"cannot be used: {reason}"
        return ""

    def solve(self, call: Call, *, plan: bool = False) -> Tensor:
        return ops.solve(call, plan=plan)


CPU = CpuBackend()
