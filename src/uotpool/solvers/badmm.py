"""Exact Bregman ADMM, entropic and quadratic.

The two blocks {P, eta} and {S, mu} are tied by the soft constraints P = S, marg_D(P) = mu,
marg_N(S) = eta. Each constraint has a dual (Z, z1, z2) and a KL term with the coefficient rho. This differs
from the published Algorithm 1:

- P and S are not projected on mu and eta but weigh the coupling KL and the marginal KL together,
  which is where the factors 1/2 and rho / (alpha0 + 2 rho) come from. The projection freezes mu =
  p0 and eta = q0.
- The duals move by differences of logarithms. The published additive steps are of size rho / (N D).
- Every block has mass 1. The normaliser of a block only adds a constant to its logarithm.
- eta for the next step is updated at the end of a step. At its start the first step would leave
  eta = q0 whatever alpha2 is. The output is a closing S update that sees the last duals. So every
  coefficient of every step gets a gradient. (With constant coefficients and entropic R the iterates are the
  same.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from uotpool import checks
from uotpool.sets import Sets, logsumexp_d
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


@dataclass(frozen=True)
class BregmanADMM(Solver):
    """K unrolled steps of exact Bregman ADMM. Its coefficient rho is the step size.

    Args:
        regularizer: the R of the problem, "entropic" or "quadratic".
        K: number of steps; 0 leaves the plan at the priors.
    """

    regularizer: Regularizer = ENTROPIC
    K: int = DEFAULT_K
    uses_rho = True

    @property
    def kernel(self) -> str:  # type: ignore[override]
        return "badmm-e" if self.regularizer == ENTROPIC else "badmm-q"

    def __post_init__(self) -> None:
        checks.one_of("regularizer", self.regularizer, REGULARIZERS)
        check_steps(self.K)

    def units(self, alpha0: float, alpha1: float, alpha2: float, rho: float) -> tuple[float, float]:
        # log S is divided by alpha0 + rho, log mu and log eta by alpha1 + rho and alpha2 + rho; Z is left. The
        # rho of the quadratic problem may have nothing added.
        least = min(alpha0, alpha1, alpha2) if self.regularizer == ENTROPIC else 0.0
        return least + rho, alpha0 + rho

    def solve(self, problem: SolverInput) -> Tensor:
        """Return log S after K steps and a closing primal update with the coefficients of the last one."""
        s, quadratic = start(problem), self.regularizer == QUADRATIC
        for k in range(problem.c.num_steps()):
            s = step(problem, s, k, quadratic)
        return primal(problem, s, problem.c.num_steps() - 1, quadratic).log_S


class State(NamedTuple):
    log_S: Tensor
    log_mu: Tensor
    log_eta: Tensor
    Z: Tensor
    z1: Tensor
    z2: Tensor
    largest: Tensor  # max over the set of P and S; sets the step of the quadratic problem


class Primal(NamedTuple):
    log_P: Tensor
    log_p: Tensor  # log marg_D(P)
    log_S: Tensor
    log_q: Tensor  # log marg_N(S)
    rho: Tensor  # as used; for the quadratic problem each set has its own


def start(problem: SolverInput) -> State:
    X, sets, log_p0, log_q0, _ = problem
    log_q0 = sets.fill_absent(sets.log_softmax_n(log_q0), 0.0)
    log_p0 = log_p0.log_softmax(-1)
    largest = (log_p0.amax(-1, keepdim=True) + sets.max_n(log_q0)).exp()
    return State(
        log_S=sets.fill_absent(sets.to_rows(log_p0) + log_q0, 0.0),
        log_mu=log_p0,
        log_eta=log_q0,
        Z=torch.zeros_like(X),
        z1=torch.zeros_like(log_p0),
        z2=torch.zeros_like(log_q0),
        largest=largest,
    )


def primal(problem: SolverInput, s: State, k: int, quadratic: bool) -> Primal:
    """Do the P update, then the S update, with the coefficients of step k.

    Each block is a conditional distribution times a marginal, and the two are normalised
    separately. Where an entry of Y is large, the logarithm of a sum over both would be lost to
    rounding, and with it the mass of the plan. Absent rows are held at 0, as they would overflow.
    """
    X, sets, _, _, c = problem
    assert c.rho is not None
    alpha0, rho = c.alpha0[k], c.rho[k]
    if quadratic:
        # <P, S> is curved by up to alpha0 max(P, S) in the geometry of the KL terms, and a step
        # that ignores this overshoots. The maximum is per set, so that batch mates do not matter.
        rho = rho + alpha0 * s.largest
        rho_n = sets.to_rows(rho)
        Y = _stepped(s.log_S, X - s.Z + sets.to_rows(s.z1) - alpha0 * s.log_S.exp(), rho_n, sets)
    else:
        rho_n = rho
        Y = s.log_S + (X - s.Z + sets.to_rows(s.z1)) / rho

    log_p = (0.5 * (s.log_mu + sets.logsumexp_n(Y))).log_softmax(-1)
    log_P = sets.fill_absent(sets.log_softmax_n(Y) + sets.to_rows(log_p), 0.0)

    if quadratic:
        Y = _stepped(log_P, s.Z + s.z2 - alpha0 * log_P.exp(), rho_n, sets)
        share: Tensor | float = 0.5
    else:
        Y = (s.Z + s.z2 + rho * log_P) / (alpha0 + rho)
        share = rho / (alpha0 + 2 * rho)
    lse = logsumexp_d(Y)
    log_q = sets.fill_absent(sets.log_softmax_n(lse + share * (s.log_eta - lse)), 0.0)
    log_S = sets.fill_absent(Y.log_softmax(-1) + log_q, 0.0)
    return Primal(log_P, log_p, log_S, log_q, rho)


def _stepped(log_T: Tensor, slope: Tensor, rho_n: Tensor, sets: Sets) -> Tensor:
    """Return log T + slope / rho less a constant per set: slope / rho at the place where this sum is largest.

    The constant changes no plan, and the derivatives by the entries of a set add up to 0. With
    rounding they do not quite, so a large slope would turn the rest into a derivative by rho.
    Unlike the entropic one, this rho depends on the previous plan (by `largest`), so the rest would
    be magnified again in every step, beyond what float32 can hold. Without the constant, the
    entries that have mass have next to no slope.
    """
    Y = (log_T + slope / rho_n).detach()
    top = sets.to_rows(sets.max_n(Y.amax(-1, keepdim=True)))
    at_top = sets.max_n(torch.where(Y == top, slope.detach(), -torch.inf).amax(-1, keepdim=True))
    return log_T + sets.fill_absent(slope - sets.to_rows(at_top), 0.0) / rho_n


def step(problem: SolverInput, s: State, k: int, quadratic: bool) -> State:
    """Do step k."""
    _, sets, log_p0, log_q0, c = problem
    alpha1, alpha2 = c.alpha1[k], c.alpha2[k]
    log_P, log_p, log_S, log_q, rho = primal(problem, s, k, quadratic)
    rho_n = sets.to_rows(rho) if quadratic else rho

    log_mu = (alpha1 * log_p0 + rho * log_p - s.z1) / (alpha1 + rho)
    log_mu = log_mu.log_softmax(-1)
    Z = s.Z + rho_n * (log_P - log_S)
    z1 = s.z1 + rho * (log_mu - log_p)
    z2 = s.z2 + rho_n * (s.log_eta - log_q)
    log_eta = (alpha2 * log_q0 + rho_n * log_q - z2) / (alpha2 + rho_n)
    log_eta = sets.fill_absent(sets.log_softmax_n(log_eta), 0.0)

    largest = s.largest
    if quadratic:
        largest = sets.max_n(torch.maximum(log_P, log_S).amax(-1, keepdim=True)).exp()
    return State(log_S, log_mu, log_eta, Z, z1, z2, largest)
