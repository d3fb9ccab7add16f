"""The solvers by the names that stored runs and figures use: "sinkhorn" with "exact" or "paper", and so on."""

from __future__ import annotations

from dataclasses import replace

from uotpool import BregmanADMM, published
from uotpool.solvers import BY_NAME, Solver

SOLVERS = tuple(BY_NAME)
FORMULATIONS = ("exact", "paper")


def solver_of(name: str, formulation: str = "exact", K: int = 4) -> Solver:
    """Return a solver with K steps, exact or as published in the paper."""
    exact = BY_NAME[name]
    if formulation == "exact":
        return replace(exact, K=K)  # type: ignore[call-arg] # all of these have steps
    if isinstance(exact, BregmanADMM):
        return published.BregmanADMM(exact.regularizer, K)
    return published.Sinkhorn(K)
