"""The solvers in plain torch, for any device, any layout and any derivative."""

from __future__ import annotations

import torch
from torch import Tensor

from uotpool.backends.base import Backend
from uotpool.backends.call import Call
from uotpool.solvers.base import Solver


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
            return sets.fill_absent(log_P, -torch.inf).exp()
        # A feature with a non-finite entry is NaN already.
        y = sets.squeeze(sets.sum_n(call.X * shares(call)))
        return y * (1.0 + (0.0 * y.detach()).sum(-1, keepdim=True))


def shares(call: Call) -> Tensor:
    """Return the weight of each entry of X in the pooled output, in the shape of X. X is prepared."""
    sets, log_P = call.sets, log_plan(call)
    if call.solver.output == "code":
        return call.X.shape[-1] * sets.fill_absent(log_P, -torch.inf).exp()
    return sets.softmax_n(log_P)  # eq. 4, from log P up to one constant per feature


def log_plan(call: Call) -> Tensor:
    """Return log P in the shape of X, with finite filler at absent rows. X is prepared."""
    problem = call.to_solve()
    return call.solver.solve(problem) if call.solver.steps else problem.start()


REFERENCE = ReferenceBackend()
