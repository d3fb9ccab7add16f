"""The readable implementation: plain torch, one algorithm a file, any layout, any number of derivatives.

`solve` maps a solver's name to log P. Every solver takes X (floating, at least float32, absent rows hold
finite filler), the `Sets`, log p0 as u, log q0 as v, and the `Weights`.
"""

from __future__ import annotations

from torch import Tensor

from uotpool.layout import Sets
from uotpool.solvers import badmm, paper, sinkhorn
from uotpool.solvers.weights import Weights

REGULARIZER = {"sinkhorn": "entropic", "badmm-e": "entropic", "badmm-q": "quadratic"}
NEEDS_RHO = ("badmm-e", "badmm-q")


def solve(
    X: Tensor, sets: Sets, log_p0: Tensor, log_q0: Tensor, w: Weights, solver: str, formulation: str
) -> Tensor:
    """log P after K modules (of mass 1 in the exact formulation)."""
    if w.K == 0:  # the common start of all: mean pooling for uniform priors
        log_P = sets.spread(log_p0) + log_q0
        return log_P - sets.spread(sets.logsumexp_all(log_P))
    quadratic = REGULARIZER[solver] == "quadratic"
    if formulation == "paper":
        if solver == "sinkhorn":
            return paper.sinkhorn(X, sets, log_p0, log_q0, w)
        return paper.badmm(X, sets, log_p0, log_q0, w, quadratic=quadratic)
    if solver == "sinkhorn":
        return sinkhorn.solve(X, sets, log_p0, log_q0, w)
    return badmm.solve(X, sets, log_p0, log_q0, w, quadratic=quadratic)
