"""The solvers in plain torch, for any device, any layout and any derivative."""

from __future__ import annotations

import torch
from torch import Tensor

from uotpool.backends.base import Backend
from uotpool.backends.call import Call
from uotpool.backends.tensors import all_eager, differentiated_in_reverse
from uotpool.solvers.base import Solver, SolverInput


class ReferenceBackend(Backend):
    """The backend that takes every call.

    An entry of X that is not finite makes all of its set NaN, as in the kernels. The algorithms alone would
    ignore -inf, so the result of each set is multiplied by 1 or by NaN, which makes derivatives NaN too.
    """

    name = "reference"

    def unavailable(self) -> str:
        return ""

    def why_not(self, X: Tensor, solver: Solver) -> str:
        return ""

    def solve(self, call: Call, *, plan: bool = False) -> Tensor:
        call = call.prepared()
        sets = call.sets
        if plan:
            X = call.scaled_X().detach()
            extremes = 0.0 * X.amax(-1, keepdim=True) + 0.0 * X.amin(-1, keepdim=True)
            log_P = log_plan(call) * sets.to_rows(1.0 + sets.sum_n(extremes))
            return sets.fill_absent(log_P, -torch.inf).exp().to(call.X.dtype)
        # A feature with a non-finite entry is NaN already.
        y = sets.squeeze(sets.sum_n(call.X * shares(call)))
        return y * (1.0 + (0.0 * y.detach()).sum(-1, keepdim=True))


def shares(call: Call) -> Tensor:
    """Return the weight of each entry of X in the pooled output, in the shape of X. X is prepared."""
    sets, log_P = call.sets, log_plan(call)
    if call.solver.output == "code":
        return (call.X.shape[-1] * sets.fill_absent(log_P, -torch.inf).exp()).to(call.X.dtype)
    return sets.softmax_n(log_P).to(call.X.dtype)  # eq. 4, from log P up to one constant per feature


def log_plan(call: Call) -> Tensor:
    """Return log P like X, in at least its dtype, with finite filler at absent rows. X is prepared."""
    problem, solver = call.to_solve(), call.solver
    if solver.K == 0:
        return problem.start()
    return solver.solve(problem.double() if _beyond_float32(solver, problem) else problem)


def _beyond_float32(solver: Solver, problem: SolverInput) -> bool:
    """Whether the coefficients are too far apart for float32, in an eager call on the CPU.

    Elsewhere their values are not read: that waits for a GPU, and no compiled graph can depend on them.
    """
    if not problem.X.is_cpu or problem.X.dtype != torch.float32:
        return False
    values = [value for value in problem.c if value is not None]
    if not differentiated_in_reverse() or not all_eager((problem.X, *values)):
        return False
    rows = [value.tolist() for value in values]
    rows += [[0.0] * len(rows[0])] * (4 - len(rows))
    return solver.beyond_float32(zip(*rows, strict=True))


REFERENCE = ReferenceBackend()
