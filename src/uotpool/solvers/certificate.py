"""The value of a plan, and how far it is from the optimum, from the plan alone.

For a plan P of mass 1 put u = -alpha1 log(marg_D(P) / p0), v = -alpha2 log(marg_N(P) / q0), Y = X +
u + v. At these potentials the Fenchel dual is feasible, and primal minus dual collapses to a
divergence between P and the plan Q that Y would give. So nothing cancels: the divergence is >= 0,
and 0 exactly at the optimum.
"""

from __future__ import annotations

import torch
from torch import Tensor

from uotpool.sets import logsumexp_d
from uotpool.solvers.base import ENTROPIC, QUADRATIC, SolverInput
from uotpool.solvers.simplex import project


def objective(problem: SolverInput, P: Tensor, regularizer: str) -> Tensor:
    """Return the value of the problem at plans of mass 1, as s. Absent rows do not count."""
    X, sets, log_p0, log_q0, c = problem
    P = sets.fill_absent(P, 0.0)
    smooth = P.square() if regularizer == QUADRATIC else torch.special.xlogy(P, P) - P
    p, q = sets.sum_n(P), P.sum(-1, keepdim=True)
    kl_p = (torch.special.xlogy(p, p) - p * log_p0).sum(-1, keepdim=True)
    kl_q = sets.sum_n(torch.special.xlogy(q, q) - q * log_q0)
    return sets.sum_all(c.alpha0[-1] * smooth - X * P) + c.alpha1[-1] * kl_p + c.alpha2[-1] * kl_q


def gap(problem: SolverInput, log_P: Tensor, regularizer: str) -> Tensor:
    """Return the duality gap of each set, as s. log_P may have any mass; it is normalised first.

    The coefficients are those of the last step.
    """
    X, sets, log_p0, log_q0, c = problem
    alpha0, alpha1, alpha2 = c.alpha0[-1], c.alpha1[-1], c.alpha2[-1]
    log_P = sets.fill_absent(log_P, -torch.inf)
    log_p, log_q = sets.logsumexp_n(log_P), _logsumexp_d(log_P)
    total = sets.logsumexp_n(log_q)
    log_P, log_p, log_q = log_P - sets.to_rows(total), log_p - total, log_q - sets.to_rows(total)

    # A marginal of zero under a positive prior has an infinite derivative unless its coefficient
    # is zero. We count the features without mass, since `logsumexp_n` gives 0 for them, which suits an
    # empty set only.
    count = sets.sum_n((log_P > -torch.inf).to(X.dtype))
    empty_p, empty_q = (count == 0) & (sets.count(X) > 0), log_q == -torch.inf
    u = torch.where(empty_p, 0.0, -alpha1 * (log_p - log_p0))
    v = torch.where(empty_q, 0.0, -alpha2 * (log_q - log_q0))
    infeasible = (empty_p & (alpha1 > 0)).any(-1, keepdim=True)
    lost = (empty_q & (alpha2 > 0)).to(X.dtype)
    infeasible = infeasible | (sets.sum_n(lost) > 0)

    Y = X + sets.to_rows(u) + v
    P = log_P.exp()
    if regularizer == ENTROPIC:
        top = sets.max_n(Y.amax(-1, keepdim=True))
        log_Q = (Y - sets.to_rows(top)) / alpha0
        log_Q = log_Q - sets.to_rows(sets.logsumexp_all(log_Q))
        # With the masses -P + Q added, every term of the sum is >= 0.
        terms = torch.where(P > 0, P * (log_P - log_Q), 0.0) - P + sets.fill_absent(log_Q, -torch.inf).exp()
    else:
        Y = Y / (2 * alpha0)
        Y = Y - sets.to_rows(sets.max_n(Y.amax(-1, keepdim=True)))
        Q = project(Y, sets)
        terms = (P - Q).square() + 2 * (P - Q) * (Q - Y)
    value = alpha0 * sets.sum_n(terms.sum(-1, keepdim=True))
    return torch.where(infeasible, torch.inf, value.clamp_min(0.0))


def _logsumexp_d(Y: Tensor) -> Tensor:
    """`logsumexp_d` for rows that may be -inf throughout."""
    empty = Y.amax(-1, keepdim=True) == -torch.inf
    return torch.where(empty, -torch.inf, logsumexp_d(torch.where(empty, 0.0, Y)))
