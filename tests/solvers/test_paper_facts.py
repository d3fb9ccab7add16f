"""What the published algorithms do, tested as facts (docs/published-algorithms.md)."""

from __future__ import annotations

import pytest
import torch

from tests import tolerances as tol
from tests.cases import problem
from tests.spelling import duality_gap, uot_plan, uot_pool

CASE = problem(3, 10, 5, seed=4)
X, P0, Q0 = CASE


def paper(alpha0, alpha1, alpha2, rho=None, K=4, solver="sinkhorn", **more):
    how = {"p0": P0, "q0": Q0, "solver": solver, "formulation": "paper", "K": K}
    return uot_plan(X, alpha0, alpha1, alpha2, rho, **how | more)


@pytest.mark.parametrize("K", [1, 4, 50])
@pytest.mark.parametrize("solver", ["badmm-e", "badmm-q"])
def test_badmm_keeps_the_feature_marginal_at_its_prior(solver, K):
    """P is projected on mu, which never leaves p0: it solves balanced OT, slowly."""
    P = paper(0.5, 0.1, 0.1, 1.0, K=K, solver=solver)
    assert torch.allclose(P.sum(1), P0, atol=tol.F64)


def test_badmm_tends_to_the_balanced_plan():
    balanced = uot_plan(X, 0.5, 1e6, 1e6, p0=P0, q0=Q0, K=400)
    off = [
        float((paper(0.5, 0.1, 0.1, 1.0, K=K, solver="badmm-e") - balanced).abs().sum()) for K in (4, 64, 2000)
    ]
    assert off[0] > off[1] > off[2]
    assert off[2] <= 1e-2
    unbalanced = uot_plan(X, 0.5, 0.1, 0.1, p0=P0, q0=Q0, K="converged")
    assert float((balanced - unbalanced).abs().sum()) > 0.3  # and that is another plan


def test_sinkhorn_is_right_at_alpha0_1_only():
    right = paper(1.0, 0.5, 0.8, K=2000)
    assert duality_gap(X, right, 1.0, 0.5, 0.8, p0=P0, q0=Q0).max() <= tol.GAP_SOLVED
    wrong = paper(2.0, 0.5, 0.8, K=2000)
    settled = paper(2.0, 0.5, 0.8, K=2001)
    assert torch.allclose(wrong, settled, atol=tol.F64)  # a fixed point, but not the optimum
    assert duality_gap(X, wrong, 2.0, 0.5, 0.8, p0=P0, q0=Q0).min() > 1e-3


def test_sinkhorn_diverges_for_small_alpha0():
    """For alpha1 = alpha2 when alpha1 / (alpha0 + alpha1) |1 / alpha0 - 2| > 1: 9 x 0.91 at 0.1."""
    P = paper(0.1, 1.0, 1.0, K=400)
    assert not (P.isfinite().all() and (P.sum((1, 2)) > 1e-3).all())
    exact = uot_plan(X, 0.1, 1.0, 1.0, p0=P0, q0=Q0, K=400)
    assert torch.allclose(exact.sum((1, 2)), torch.ones(3, dtype=torch.float64))


def test_authors_readout_is_D_times_add_pooling_for_a_huge_alpha0():
    """Table 5 fixes alpha0 = 1e10 .. 1e12: the plan is flat with entries near 1, not 1 / (N D)."""
    how = {"formulation": "paper", "K": 4}
    y = uot_pool(X, 1e10, 0.7, 0.7, readout="authors", **how)
    assert torch.allclose(y, 5 * X.sum(1), rtol=tol.OPTIMUM)
    assert torch.allclose(
        uot_pool(X, 1e10, 0.7, 0.7, **how), X.mean(1), atol=tol.OPTIMUM
    )  # eq. 4: mean pooling


def test_first_steps_by_hand():
    """One module of each published algorithm, written out with torch's own operations."""
    log_p0, log_q0 = P0.log()[:, None, :], Q0.log()[:, :, None]
    a0, a1, a2, rho = 0.6, 0.9, 1.1, 0.8
    Y = X / a0
    a = a1 * a0 * (log_p0 - Y.logsumexp(1, keepdim=True)) / (a0 * (a0 + a1))
    b = a2 * a0 * (log_q0 - Y.logsumexp(2, keepdim=True)) / (a0 * (a0 + a2))
    assert torch.allclose(paper(a0, a1, a2, K=1), (Y + a + b).exp(), atol=tol.F64)
    for solver in ("badmm-e", "badmm-q"):
        S = (log_p0 + log_q0).exp()
        Y = S.log() + (X - (a0 * S if solver == "badmm-q" else 0)) / rho
        P = (log_p0 - Y.logsumexp(1, keepdim=True) + Y).exp()
        assert torch.allclose(paper(a0, a1, a2, rho, K=1, solver=solver), P, atol=tol.F64)
