"""Exact Sinkhorn for the entropic problem, one sweep a step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from uotpool.sets import Sets
from uotpool.solvers.base import DEFAULT_K, Solver, SolverInput, check_steps


@dataclass(frozen=True)
class Sinkhorn(Solver):
    """K unrolled steps of exact Sinkhorn, for the entropic problem.

    Args:
        K: number of steps; 0 leaves the plan at the priors.
    """

    K: int = DEFAULT_K
    kernel = "sinkhorn"

    def __post_init__(self) -> None:
        check_steps(self.K)

    def units(self, alpha0: float, alpha1: float, alpha2: float, rho: float) -> tuple[float, float]:
        return alpha0, alpha0

    def solve(self, problem: SolverInput) -> Tensor:
        """Return log P after K sweeps from v = 0. The alpha0 of the last step forms the plan."""
        u, v = problem.zero_potentials()
        for k in range(problem.c.num_steps()):
            u, v = sweep(problem, v, k)
        return log_plan(problem.X, problem.sets, u, v, problem.c.alpha0[-1])


def smax_n(sets: Sets, Y: Tensor, alpha0: Tensor) -> Tensor:
    """Return the smooth maximum alpha0 log sum_n exp(Y / alpha0), in the units of Y."""
    # Subtracting before dividing keeps the digits of Y for alpha0 down to 1e-5.
    m = sets.max_n(Y.detach())
    E = sets.fill_absent((Y - sets.to_rows(m)) / alpha0, -torch.inf).exp()
    return m + alpha0 * sets.sum_n(E).clamp_min(1.0).log()  # the sum is >= 1 except for an empty set


def smax_d(Y: Tensor, alpha0: Tensor) -> Tensor:
    """Return the smooth maximum alpha0 log sum_d exp(Y / alpha0), in the units of Y."""
    m = Y.detach().amax(-1, keepdim=True)
    return m + alpha0 * ((Y - m) / alpha0).exp().sum(-1, keepdim=True).log()


def sweep(problem: SolverInput, v: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Do step k: maximise the dual in u, then in v (Gauss-Seidel: v sees the new u).

    The published update moves both from the same iterate and mixes up the units of the potentials.
    It has another fixed point unless alpha0 = 1 (`solvers/published.py`).
    """
    X, sets, log_p0, log_q0, c = problem
    alpha0, alpha1, alpha2 = c.alpha0[k], c.alpha1[k], c.alpha2[k]
    tau1, tau2 = alpha1 / (alpha0 + alpha1), alpha2 / (alpha0 + alpha2)
    u = tau1 * (alpha0 * log_p0 - smax_n(sets, X + v, alpha0))
    # A constant in u or v cancels in the plan. Without it the potentials stay of the size of X,
    # while those of free mass grow like 1 / (1 - tau1 tau2).
    u = u - u.detach().amax(-1, keepdim=True)
    v = tau2 * (alpha0 * log_q0 - smax_d(X + sets.to_rows(u), alpha0))
    v = v - sets.to_rows(sets.max_n(v.detach()))
    return u, v


def log_plan(X: Tensor, sets: Sets, u: Tensor, v: Tensor, alpha0: Tensor) -> Tensor:
    """Return the log softmax of (X + u + v) / alpha0 over all entries of each set."""
    Y = X + sets.to_rows(u) + v
    top = sets.max_n(Y.detach().amax(-1, keepdim=True))
    Y = (Y - sets.to_rows(top)) / alpha0
    return Y - sets.to_rows(sets.logsumexp_all(Y))
