"""The algorithms as published (Algorithms 1 and 2), for reproduction only.

We resolve misprints where the appendix or the derivation decides: the S update divides by (alpha0 +
rho), the dual Z moves by rho, and the quadratic S update uses P^(k+1), as R = <P, S> implies.
Everything else is as printed, with the consequences (`docs/published-algorithms.md`,
tests/solvers/test_paper_facts.py): Sinkhorn's fixed point is not the optimum unless alpha0 = 1, and Bregman
ADMM keeps mu = p0 and eta = q0, so alpha1 and alpha2 have no effect. Rows are samples here, so the
paper's "col" reduction is over n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from uotpool import checks
from uotpool.sets import logsumexp_d
from uotpool.solvers.base import (
    DEFAULT_K,
    ENTROPIC,
    QUADRATIC,
    REGULARIZERS,
    Regularizer,
    Solver,
    SolverInput,
    check_steps,
)

Output = Literal["equation", "code"]


@dataclass(frozen=True)
class Sinkhorn(Solver):
    """Algorithm 2 as published.

    Args:
        K: number of steps; 0 leaves the plan at the priors.
        output: "equation" for the paper's eq. 4, as everywhere; "code" for D sum_n X P, the output of the
            authors' code, which is not normalised.
    """

    K: int = DEFAULT_K
    output: Output = "equation"
    is_exact = False

    def __post_init__(self) -> None:
        check_steps(self.K)
        checks.one_of("output", self.output, ("equation", "code"))

    def solve(self, problem: SolverInput) -> Tensor:
        """Return log P of free mass."""
        return _sinkhorn(problem)


@dataclass(frozen=True)
class BregmanADMM(Solver):
    """Algorithm 1 as published.

    Args:
        regularizer: the R of the problem, "entropic" or "quadratic".
        K: number of steps; 0 leaves the plan at the priors.
        output: as for `Sinkhorn`.
    """

    regularizer: Regularizer = ENTROPIC
    K: int = DEFAULT_K
    output: Output = "equation"
    is_exact = False
    uses_rho = True

    def __post_init__(self) -> None:
        checks.one_of("regularizer", self.regularizer, REGULARIZERS)
        check_steps(self.K)
        checks.one_of("output", self.output, ("equation", "code"))

    def solve(self, problem: SolverInput) -> Tensor:
        """Return log P^(K)."""
        return _badmm(problem, self.regularizer == QUADRATIC)


def _sinkhorn(problem: SolverInput) -> Tensor:
    X, sets, log_p0, log_q0, c = problem
    a, b = problem.zero_potentials()
    Y = X / c.alpha0[0]
    for k in range(c.num_steps()):
        alpha0, alpha1, alpha2 = c.alpha0[k], c.alpha1[k], c.alpha2[k]
        log_p, log_q = sets.logsumexp_n(Y), logsumexp_d(Y)
        a = alpha1 * (a + alpha0 * (log_p0 - log_p)) / (alpha0 * (alpha0 + alpha1))
        b = alpha2 * (b + alpha0 * (log_q0 - log_q)) / (alpha0 * (alpha0 + alpha2))
        Y = X / alpha0 + sets.to_rows(a) + b
    return Y


def _badmm(problem: SolverInput, quadratic: bool) -> Tensor:
    X, sets, log_p0, log_q0, c = problem
    assert c.rho is not None
    log_P = log_S = sets.to_rows(log_p0) + log_q0
    log_mu, log_eta = log_p0, log_q0
    Z, (z1, z2) = torch.zeros_like(X), problem.zero_potentials()
    for k in range(c.num_steps()):
        alpha0, alpha1, alpha2, rho = c.alpha0[k], c.alpha1[k], c.alpha2[k], c.rho[k]
        # Line 3, log-primal update.
        if quadratic:
            Y = log_S + (X - alpha0 * log_S.exp() - Z) / rho
        else:
            Y = log_S + (X - Z) / rho
        log_P = sets.to_rows(log_mu - sets.logsumexp_n(Y)) + Y
        P = log_P.exp()
        # Line 4, log-auxiliary update.
        if quadratic:
            Y = log_P + (Z - alpha0 * P) / rho
        else:
            Y = (Z + rho * log_P) / (alpha0 + rho)
        log_S = log_eta - logsumexp_d(Y) + Y
        S = log_S.exp()
        log_mu = (rho * log_mu + alpha1 * log_p0 - z1) / (rho + alpha1)
        log_eta = (rho * log_eta + alpha2 * log_q0 - z2) / (rho + alpha2)
        # Line 5, dual update.
        Z = Z + rho * (P - S)
        z1 = z1 + rho * (log_mu.exp() - sets.sum_n(P))
        z2 = z2 + rho * (log_eta.exp() - S.sum(-1, keepdim=True))
    return log_P
