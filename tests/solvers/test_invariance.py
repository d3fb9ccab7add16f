"""What must not change the output: order, padding, batch mates, layout. In float64 to 1e-12, with gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import tolerances as tol
from tests.cases import FORMULATIONS, SOLVERS, module_weights, step
from tests.spelling import uot_plan, uot_pool

pytestmark = pytest.mark.usefixtures("every_implementation")

sizes = st.lists(st.integers(0, 9), min_size=1, max_size=5)
how = st.fixed_dictionaries(
    {
        "solver": st.sampled_from(SOLVERS),
        "formulation": st.sampled_from(FORMULATIONS),
        "scale": st.sampled_from([None, 1.0, -0.7]),
    }
)


def bag_batch(sizes, D, seed):
    g = torch.Generator().manual_seed(seed)
    bags = [torch.randn(n, D, generator=g, dtype=torch.float64) for n in sizes]
    q0 = [torch.randn(n, generator=g, dtype=torch.float64).softmax(0) for n in sizes]
    p0 = torch.randn(len(sizes), D, generator=g, dtype=torch.float64).softmax(-1)
    return bags, q0, p0


def run(X, q0, p0, how, **layout):
    """Pooled output, plan and all gradients of a scalar of the output."""
    X, q0, p0 = (t.detach().clone().requires_grad_() for t in (X, q0, p0))
    weights = module_weights(how["solver"], 3)
    y = uot_pool(X, *weights, p0=p0, q0=q0, **layout, **how)
    scale = torch.arange(1.0, y.shape[1] + 1, dtype=y.dtype)
    learned = [w for w in weights if w is not None]
    grads = torch.autograd.grad((y * scale).sin().sum(), [X, q0, p0, *learned], allow_unused=True)
    P = uot_plan(X, *weights, p0=p0, q0=q0, **layout, **how)
    return y.detach(), P.detach(), *(None if g is None else g for g in grads)


def same(a, b):
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and torch.allclose(a, b, rtol=tol.F64, atol=tol.F64)


@given(sizes, st.integers(1, 6), st.integers(0, 99), how)
@settings(max_examples=40, deadline=None)
def test_ragged_equals_padded_equals_bag_by_bag(sizes, D, seed, how):
    bags, q0, p0 = bag_batch(sizes, D, seed)
    rows, q = torch.cat(bags), torch.cat(q0)
    ptr = torch.tensor([0, *sizes]).cumsum(0)
    index = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    by_ptr = run(rows, q, p0, how, ptr=ptr)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    y, *of_rows = run(rows[order], q[order], p0, how, index=index[order], dim_size=len(sizes))
    assert same(y, by_ptr[0])
    assert all(same(got, want[order]) for got, want in zip(of_rows[:3], by_ptr[1:4], strict=True))
    assert all(map(same, of_rows[3:], by_ptr[4:]))

    N = max(sizes) + 2
    X = torch.full((len(sizes), N, D), torch.nan, dtype=torch.float64)  # padding is never read
    q_dense, mask = (
        torch.zeros(len(sizes), N, dtype=torch.float64),
        torch.zeros(len(sizes), N, dtype=torch.bool),
    )
    for b, n in enumerate(sizes):
        X[b, :n], q_dense[b, :n], mask[b, :n] = bags[b], q0[b], True
    padded = run(X, q_dense, p0, how, mask=mask)
    assert same(padded[0], by_ptr[0])
    assert all(map(same, padded[4:], by_ptr[4:]))  # p0 and the weights
    for got, want in zip(padded[1:4], by_ptr[1:4], strict=True):  # plan, dX, dq0
        assert same(got[mask], want)
        assert (got[~mask] == 0).all()

    for b, (bag, q_bag) in enumerate(zip(bags, q0, strict=True)):  # no bag sees its batch mates
        alone = run(bag, q_bag, p0[b : b + 1], how)
        rows_b = slice(int(ptr[b]), int(ptr[b + 1]))
        assert same(alone[0][0], by_ptr[0][b])
        assert same(alone[1], by_ptr[1][rows_b])
        assert same(alone[2], by_ptr[2][rows_b])


@given(st.integers(1, 8), st.integers(1, 6), st.integers(0, 99), how)
@settings(max_examples=30, deadline=None)
def test_permutation_invariance_with_an_equivariant_prior(N, D, seed, how):
    (X,), (q0,), p0 = bag_batch([N], D, seed)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(seed))
    y, P, dX, dq0, *rest = run(X, q0, p0, how)
    y2, P2, dX2, dq02, *rest2 = run(X[order], q0[order], p0, how)
    pairs = ((y, y2), (P[order], P2), (dX[order], dX2), (dq0[order], dq02), *zip(rest, rest2, strict=True))
    assert all(same(a, b) for a, b in pairs)


def test_permutation_invariance_fails_with_a_prior_by_position():
    """Theorem 1 needs q0 to be permutation-equivariant, and only then holds."""
    X = torch.rand(1, 5, 3, dtype=torch.float64)
    q0 = torch.tensor([[0.6, 0.1, 0.1, 0.1, 0.1]], dtype=torch.float64)
    for solver in SOLVERS:
        pool = {"q0": q0, "solver": solver, "K": 4}
        y = uot_pool(X, 0.5, 1.0, 1.0, step(solver), **pool)
        assert (y - uot_pool(X.flip(1), 0.5, 1.0, 1.0, step(solver), **pool)).abs().max() > 1e-3


@pytest.mark.parametrize("solver", ["sinkhorn", "badmm-e"])
def test_shift_and_scale_equivariance(solver):
    """Adding a constant to X adds it to the output; X and all weights times c give the output times c."""
    X = torch.randn(2, 6, 4, dtype=torch.float64)
    y = uot_pool(X, 0.5, 1.0, 2.0, step(solver, 0.7), solver=solver)
    shifted = uot_pool(X + 3.0, 0.5, 1.0, 2.0, step(solver, 0.7), solver=solver)
    scaled = uot_pool(8.0 * X, 4.0, 8.0, 16.0, step(solver, 5.6), solver=solver)
    assert torch.allclose(shifted, y + 3.0, atol=tol.F64)
    assert torch.allclose(scaled, 8.0 * y, atol=10 * tol.F64)


@pytest.mark.parametrize("K", [4, "converged"])
def test_batch_mates_at_convergence(K):
    """Sets that need many steps do not change those that need few."""
    X = torch.rand(4, 8, 5, dtype=torch.float64)
    X[1] *= 50
    for solver in ("sinkhorn", "badmm-q"):
        rho = step(solver) if K != "converged" else None
        together = uot_pool(X, 0.3, 2.0, 1.0, rho, solver=solver, K=K)
        for b in range(4):
            alone = uot_pool(X[b : b + 1], 0.3, 2.0, 1.0, rho, solver=solver, K=K)
            assert torch.allclose(together[b], alone[0], rtol=tol.F64, atol=tol.F64)
