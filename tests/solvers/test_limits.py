"""Propositions 1 and 2: mean, max, attention and mixed pooling as settings of one problem."""

from __future__ import annotations

import pytest
import torch

from tests import tolerances as tol
from tests.cases import SOLVERS, problem, step
from tests.spelling import plan_stats, uot_plan, uot_pool
from uotpool import UOTPooling

pytestmark = pytest.mark.usefixtures("every_implementation")

X = problem(4, 10, 5, seed=2).X
ATTENTION = problem(4, 10, 5, seed=2).q0


def mean_plan():
    return torch.full_like(X, 1 / 50)


def max_plan():
    return torch.zeros_like(X).scatter(1, X.argmax(1, keepdim=True), 1 / 5)


def attention_plan(a):
    return (a / 5)[:, :, None].expand_as(X)


def L1(P, Q):
    return float((P - Q).abs().sum((1, 2)).max())


def test_sinkhorn_reproduces_mean():
    assert L1(uot_plan(X, 1e4, 1e4, 1e4), mean_plan()) <= tol.PROPOSITION


def test_sinkhorn_reproduces_attention_when_the_marginals_outweigh_the_entropy():
    P, y = (f(X, 1e2, 1e6, 1e6, q0=ATTENTION) for f in (uot_plan, uot_pool))
    assert (P - attention_plan(ATTENTION)).abs().max() <= tol.PROPOSITION
    assert (y - (X * ATTENTION[..., None]).sum(1)).abs().max() <= tol.PROPOSITION


def test_equal_weights_give_the_square_root_of_the_attention():
    """Proposition 1 as published, all weights equal and large, is not attention pooling."""
    P = uot_plan(X, 1e4, 1e4, 1e4, q0=ATTENTION, K=50)
    root = ATTENTION.sqrt() / ATTENTION.sqrt().sum(-1, keepdim=True)
    assert (P.sum(2) - root).abs().max() <= tol.F32
    assert (P.sum(2) - ATTENTION).abs().max() > 1e-2


@pytest.mark.parametrize("alpha0", [1e-2, 1e-3, 1e-4])
def test_max_is_approached_from_below(alpha0):
    """The entropy keeps y below the maximum by at most alpha0 log N (alpha2 = 0)."""
    y = uot_pool(X, alpha0, 1e4, 0.0)
    short = X.amax(1) - y
    assert (short >= -tol.F64).all()
    assert (short <= alpha0 * torch.tensor(10.0).log()).all()


@pytest.mark.parametrize("solver", SOLVERS)
def test_presets(solver):
    assert (UOTPooling.mean(5, solver=solver)(X) - X.mean(1)).abs().max() <= tol.PROPOSITION
    limit = 2e-2 if solver == "badmm-q" else 1e-3
    assert (UOTPooling.max(5, solver=solver)(X) - X.amax(1)).abs().max() <= limit
    pool = UOTPooling.attention(5, 7, solver=solver).double()
    assert pool.q0.V.shape == (7, 5)
    with torch.no_grad():
        a = (X @ pool.q0.V.T).tanh() @ pool.q0.w[0]
    direct = (X * a.softmax(1)[..., None]).sum(1)
    assert (pool(X) - direct).abs().max() <= tol.PROPOSITION


@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("solver", SOLVERS)
def test_presets_at_any_scale_in_float32(solver, scale):
    """Mean and attention hold for features of any size, with the gradients of attention."""
    x = scale * torch.randn(4, 10, 5)
    assert (UOTPooling.mean(5, solver=solver)(x) - x.mean(1)).abs().max() <= tol.MEAN_F32 * scale
    pool = UOTPooling.attention(5, solver=solver)
    direct = (x * ((x @ pool.q0.V.T).tanh() @ pool.q0.w[0]).softmax(1)[..., None]).sum(1)
    assert (pool(x) - direct).abs().max() <= tol.PROPOSITION * scale
    got, wanted = (torch.autograd.grad(y.square().sum(), pool.q0.w)[0] for y in (pool(x), direct))
    assert torch.allclose(got, wanted, rtol=tol.SLOPE, atol=tol.PROPOSITION * float(wanted.abs().max()))


@pytest.mark.parametrize("omega", [0.0, 0.3, 1.0])
def test_mixed_mean_max_is_three_uot_poolings(omega):
    """Proposition 2: UOT poolings of the mean and of the maximum, then one of these two by omega."""
    pooled = torch.stack([UOTPooling.mean(5)(X), UOTPooling.max(5)(X)], dim=1)
    weights = torch.tensor([omega, 1 - omega], dtype=X.dtype).expand(len(X), 2)
    mixed = uot_pool(pooled, 1e2, 1e6, 1e6, q0=weights)  # it keeps its prior
    assert (mixed - omega * X.mean(1) - (1 - omega) * X.amax(1)).abs().max() <= tol.PROPOSITION


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("formulation", ["exact", "paper"])
def test_K_0_is_the_product_of_the_priors(solver, formulation):
    case = problem(4, 10, 5, seed=2)
    how = {"solver": solver, "K": 0, "formulation": formulation}
    P = uot_plan(X, 1.0, 1.0, 1.0, step(solver), p0=case.p0, q0=case.q0, **how)
    assert torch.allclose(P, case.q0[:, :, None] * case.p0[:, None, :], atol=tol.F64)
    assert torch.allclose(uot_pool(X, 1.0, 1.0, 1.0, step(solver), **how), X.mean(1), atol=tol.F64)


def test_plan_stats_of_known_plans():
    mean, top = plan_stats(mean_plan()), plan_stats(max_plan())
    ones, log_N = torch.ones(4, dtype=torch.float64), torch.tensor(10.0, dtype=torch.float64).log()
    assert torch.allclose(mean.mass, ones)
    assert torch.allclose(mean.divergence, 0 * ones, atol=tol.F64)
    assert torch.allclose(top.divergence, log_N * ones)
    assert torch.allclose(mean.sample_deviation, 0 * ones, atol=tol.F64)
    off = plan_stats(attention_plan(ATTENTION), q0=torch.full((4, 10), 0.1, dtype=torch.float64))
    assert torch.allclose(off.sample_deviation, (ATTENTION - 0.1).abs().sum(1))
    assert torch.allclose(off.feature_deviation, 0 * ones, atol=tol.F64)
    assert torch.allclose(off.divergence, log_N + (ATTENTION * ATTENTION.log()).sum(1))
    twice = plan_stats(2 * max_plan())
    assert torch.allclose(twice.mass, 2 * ones)
    assert torch.allclose(twice.divergence, top.divergence)


def own_samples(seed: int = 0) -> torch.Tensor:
    """Return 32 samples in which every feature is large at samples of its own, 8 of them, in any order."""
    generator = torch.Generator().manual_seed(seed)
    X = 0.1 * torch.rand(32, 4, generator=generator, dtype=torch.float64)
    owner = torch.arange(32) % 4
    X[torch.arange(32), owner] += 1.0 + torch.rand(32, generator=generator, dtype=torch.float64)
    return X[torch.randperm(32, generator=generator)][None]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_feature_is_the_mean_of_its_share_of_the_samples(seed):
    X = own_samples(seed)
    y = uot_pool(X, 1.0, 1e4, 1e4, scale=100.0, K="converged")
    largest = X.topk(8, dim=1).values.mean(1)
    torch.testing.assert_close(y, largest, rtol=0, atol=tol.LARGEST_SHARE)
    assert (X.amax(1) - largest).min() > 0.1
    assert (largest - X.mean(1)).min() > 0.5


@pytest.mark.parametrize("alpha", [3.0, 10.0, 1e3])
def test_no_sample_holds_more_the_larger_alpha2_is(alpha):
    X = own_samples()
    most = [uot_plan(X, 1.0, 1e4, a, scale=100.0, K="converged").sum(-1).max() for a in (alpha, 3 * alpha)]
    assert most[1] < most[0]
    assert most[1] > 1 / 32
