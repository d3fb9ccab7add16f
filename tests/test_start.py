"""`start="mean"`: a layer that begins as mean pooling and learns from there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests import tolerances as tol
from tests.cases import FORMULATIONS, SOLVERS
from uotpool import UOTPooling, param_groups, plan_stats

D = 6
IMPLEMENTATIONS = [("exact", "auto"), ("exact", "reference"), ("paper", "reference")]

each = pytest.mark.parametrize("solver", SOLVERS)
each_impl = pytest.mark.parametrize(("formulation", "impl"), IMPLEMENTATIONS)


def sets(seed=0, dtype=torch.float64):
    X = torch.randn(3, 7, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)
    mask = torch.ones(3, 7, dtype=torch.bool)
    mask[1, 4:] = False
    return X, mask


@each
@each_impl
def test_begins_as_the_mean_with_a_gradient(solver, formulation, impl):
    X, mask = sets()
    X.requires_grad_()
    pool = UOTPooling.classic(D, solver=solver, formulation=formulation, impl=impl, start="mean").double()
    y = pool(X, mask=mask)
    mean = torch.stack([x[m].mean(0) for x, m in zip(X, mask, strict=True)])
    torch.testing.assert_close(y, mean, rtol=0, atol=tol.F64)
    y.square().sum().backward()
    assert pool.scale.grad.abs() > 1e-3  # a weight of 1e4 in its place has 4e-9
    assert all(p.grad is not None and p.grad.isfinite().all() for p in pool.parameters())


@each
@each_impl
def test_is_the_plain_layer_at_scale_1(solver, formulation, impl):
    X, mask = sets()
    pool = UOTPooling.classic(D, solver=solver, formulation=formulation, impl=impl, start="mean").double()
    plain = UOTPooling.classic(D, solver=solver, formulation=formulation, impl=impl).double()
    plain.load_state_dict({name: value for name, value in pool.state_dict().items() if name != "scale"})
    with torch.no_grad():
        pool.scale.fill_(1.0)
        torch.testing.assert_close(pool(X, mask=mask), plain(X, mask=mask), rtol=0, atol=tol.F64)
        assert torch.equal(pool.plan(X, mask=mask), plain.plan(X, mask=mask))
        pool.scale.fill_(-2.0)
        assert torch.equal(pool.plan(X, mask=mask), plain.plan(-2 * X, mask=mask))


@each
def test_fused_is_the_reference(solver):
    X, mask = sets()
    found = []
    for impl in ("auto", "reference"):
        torch.manual_seed(0)
        pool = UOTPooling.classic(D, solver=solver, impl=impl, start="mean").double()
        with torch.no_grad():
            pool.scale.fill_(0.7)
        inputs = [X.clone().requires_grad_(), *pool.parameters()]
        y = pool(inputs[0], mask=mask)
        found.append([y, *torch.autograd.grad(y.square().sum(), inputs)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=tol.F64_GRADIENT, atol=tol.F64_GRADIENT)


@each
def test_leaves_the_mean_where_that_helps(solver):
    """The target is above the mean (or below): the plan has to lean to large (or small) values."""
    X, mask = sets()
    for sign in (1.0, -1.0):
        torch.manual_seed(0)
        pool = UOTPooling.classic(D, solver=solver, start="mean").double()
        optimiser = torch.optim.Adam(pool.parameters(), lr=0.05)
        target = pool(X, mask=mask).detach() + 0.3 * sign
        before = plan_stats(pool.plan(X, mask=mask).detach(), mask=mask).divergence.mean()
        for _ in range(30):
            optimiser.zero_grad()
            loss = (pool(X, mask=mask) - target).square().mean()
            loss.backward()
            optimiser.step()
        assert loss < 0.5 * 0.3**2
        assert pool.scale * sign > 0.01
        assert plan_stats(pool.plan(X, mask=mask).detach(), mask=mask).divergence.mean() > before + 0.01


@each
@pytest.mark.parametrize("offset", [0.0, 100.0, 1e4])
def test_a_feature_whose_mass_underflows(solver, offset):
    """One feature of the first set lies above the others, so that these have next to none of the mass."""
    X = torch.rand(3, 49, 8, generator=torch.Generator().manual_seed(0))
    X[0, :, 0] += offset
    found = []
    for impl in ("auto", "reference"):
        torch.manual_seed(0)
        pool = UOTPooling.classic(8, solver=solver, start="mean", impl=impl)
        with torch.no_grad():
            pool.scale.fill_(1.0)
        inputs = X.clone().requires_grad_()
        y = pool(inputs)
        found.append([y, *torch.autograd.grad(y.sin().sum(), [inputs, pool.scale])])
    alone = UOTPooling.classic(8, solver=solver, start="mean")
    alone.load_state_dict(pool.state_dict())
    assert torch.equal(alone(X[1:]), alone(X)[1:])  # whatever happens to the first set
    for a, b in zip(*found, strict=True):
        assert a.isfinite().all()
        torch.testing.assert_close(a, b, rtol=tol.GRADIENT_NOISE_F32, atol=tol.GRADIENT_NOISE_F32)


def test_an_empty_set_and_compiled():
    X, mask = sets(dtype=torch.float32)
    mask[2] = False
    pool = UOTPooling.classic(D, start="mean")
    with torch.no_grad():
        pool.scale.fill_(0.5)
    y = pool(X, mask=mask)
    assert (y[2] == 0).all()
    compiled = torch.compile(pool, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(X, mask=mask), y, rtol=0, atol=tol.F32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision(dtype):
    X, mask = sets(dtype=dtype)
    pool = UOTPooling.classic(D, start="mean").to(dtype)
    y = pool(X, mask=mask)
    assert y.dtype == dtype
    y.float().sum().backward()
    assert pool.scale.grad.isfinite()


def test_no_decay_and_reset():
    pool = UOTPooling.classic(D, start="mean")
    decayed, free = param_groups(pool, weight_decay=0.1)
    assert decayed["params"] == []
    assert any(p is pool.scale for p in free["params"])
    with torch.no_grad():
        pool.scale.fill_(3.0)
    pool.reset_parameters()
    assert pool.scale == 0
    assert "start='mean'" in repr(pool)
    assert UOTPooling.classic(D).scale is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"start": "max"},
        {"start": 1},
        {"start": "mean", "K": 0},
        {"start": "mean", "q0": "learned"},
        {"start": "mean", "formulation": "paper", "readout": "authors"},
    ],
)
def test_bad_input(wrong):
    with pytest.raises(ValueError, match=r"^start: "):
        UOTPooling.classic(D, **wrong)


def test_formulations_are_all_there():
    assert {f for f, _ in IMPLEMENTATIONS} == set(FORMULATIONS)


def test_nearly_max_is_near_and_can_be_left():
    """The start that docs/settings.md gives, which a small alpha0 alone is not; `UOTPooling.max` is fixed."""
    torch.manual_seed(0)
    X = torch.randn(8, 1000, 64)
    spread = X.std().item()
    pool = UOTPooling.classic(64, init={"alpha0": 0.1 * spread, "alpha1": 10 * spread, "alpha2": 0.01 * spread})
    mean, top = X.mean(1), X.amax(1)

    def way(pool=pool):
        """0 at mean pooling, 1 at max pooling."""
        return ((pool(X) - mean) / (top - mean)).mean().item()

    page = Path(__file__).parent.parent / "docs/settings.md"
    assert f"# {way():.2f} of the way from mean to max pooling" in page.read_text()
    assert 0.75 < way(UOTPooling.classic(64, init={"alpha0": 0.1 * spread})) < 0.85
    optimizer = torch.optim.Adam(pool.parameters(), lr=0.1)
    for _ in range(50):
        optimizer.zero_grad()
        (pool(X) - mean).square().mean().backward()
        optimizer.step()
    assert way() < 0.2
    assert not list(UOTPooling.max(64).parameters())
