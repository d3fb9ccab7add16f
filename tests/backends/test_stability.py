"""Finite results of the kernels for every setting of the weights in float32, and what NaN does."""

from __future__ import annotations

import pytest
import torch

import uotpool
from tests import tolerances as tol
from tests.cases import DECADES, SOLVERS, step
from tests.backends.harness import WEIGHTS, dense, modules, ragged, solved
from tests.spelling import uot_plan, uot_pool

UNIT = dense(2, 10, 5)
INPUTS = {"unit": UNIT.X, "signed": 6 * UNIT.X - 3, "large": 1e3 * UNIT.X}


def cell(solver, alpha0, alpha12, rho, dtype):
    return [
        torch.full((4,), a, dtype=dtype) if a is not None else None
        for a in (alpha0, alpha12, alpha12, step(solver, rho))
    ]


def check_cell(problem, solver, alpha0, alpha12, rho):
    where = (alpha0, alpha12, rho)
    weights = cell(solver, alpha0, alpha12, rho, torch.float32)
    X = problem.X
    width = float(X.max() - X.min())
    pooled = solved(problem, weights, solver, impl="cpu")
    plan = solved(problem, weights, solver, plan=True, impl="cpu")
    for results in (pooled, plan):
        for name, g in results.items():
            assert g.isfinite().all(), (name, where)
    assert (pooled["value"] >= X.amin(1) - tol.F32 * width).all(), where  # a weighted mean of the samples
    assert (pooled["value"] <= X.amax(1) + tol.F32 * width).all(), where
    assert (plan["value"] >= 0).all(), where
    assert (plan["value"].sum((1, 2)) - 1).abs().max() <= tol.MASS_F32, where
    return pooled


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_every_cell_of_weights_is_finite(solver, name):
    """alpha0 x (alpha1 = alpha2) in 1e-5 .. 1e4, with a rho of each magnitude along the way."""
    problem = UNIT._replace(X=INPUTS[name]).to(torch.float32)
    rhos = (1e-2, 1.0, 1e2)
    for i, alpha0 in enumerate(DECADES):
        for j, alpha12 in enumerate(DECADES):
            check_cell(problem, solver, alpha0, alpha12, rhos[(i + j) % 3])


@pytest.mark.parametrize("rho", [1e-3, 1e-1, 1e1, 1e3])
@pytest.mark.parametrize("solver", ["badmm-e", "badmm-q"])
def test_every_magnitude_of_the_step_is_finite(solver, rho):
    for X in INPUTS.values():
        problem = UNIT._replace(X=X).to(torch.float32)
        for alpha0 in (DECADES[0], DECADES[4], DECADES[-1]):
            for alpha12 in (DECADES[0], DECADES[5], DECADES[-1]):
                check_cell(problem, solver, alpha0, alpha12, rho)


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_gradients_of_a_grid_of_weights_are_those_of_the_reference(solver, name):
    """As tests/test_stability.py has it, with the reference in float64 to compare with."""
    X = INPUTS[name].float().double()
    width = float(X.max() - X.min())
    for alpha0 in DECADES[::3]:
        for alpha12 in DECADES[::3]:
            problem = UNIT._replace(X=X)
            got = check_cell(problem.to(torch.float32), solver, alpha0, alpha12, 1.0)
            weights = cell(solver, alpha0, alpha12, 1.0, torch.float64)
            want = solved(problem, weights, solver, impl="reference")
            for key, g in got.items():
                weight = weights[WEIGHTS.index(key)] if key in WEIGHTS else None
                scale = 1.0 if weight is None else weight
                error = float(((g.double() - want[key]) * scale).abs().max())
                size = float((want[key] * scale).abs().max())
                # Rounding in the exponents, X / alpha0, grows with X.
                noise = 0.0 if key in ("value", "X") else tol.GRADIENT_NOISE_F32 * width * max(1.0, width)
                times = 1.0 if key in ("value", "X") else 100.0
                assert error <= max(times * size, noise), (alpha0, alpha12, key, error, size)


@pytest.mark.parametrize("scale", [1e-20, 1e10, 1e20, 1e30])
@pytest.mark.parametrize("solver", SOLVERS)
def test_extreme_scales_of_X(solver, scale):
    problem = UNIT._replace(X=scale * (UNIT.X - 0.5)).to(torch.float32)
    weights = cell(solver, 0.5, 1.0, 1.0, torch.float32)
    got, want = (solved(problem, weights, solver, impl=impl) for impl in ("cpu", "reference"))
    assert got["X"].isfinite().all()
    assert (got["value"] <= problem.X.amax(1)).all()
    assert (got["value"] >= problem.X.amin(1)).all()
    torch.testing.assert_close(got["X"], want["X"], rtol=0.0, atol=10 * tol.F32)


@pytest.mark.parametrize(
    ("run", "bad"),
    [
        (uot_pool, torch.nan),
        (uot_pool, torch.inf),
        (uot_pool, -torch.inf),
        (uot_plan, torch.nan),
        (uot_plan, torch.inf),
    ],
)
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_spoilt_set_shows_and_spoils_no_other(solver, run, bad):
    """Without `check`: what is not finite must not come out as a number that looks right."""
    problem = ragged("ptr", [5, 6, 4], 9)
    X = problem.X.clone()
    X[7, 2] = bad  # in set 1
    weights = modules(solver, 2)
    how = {"solver": solver, "impl": "cpu", **problem.layout}
    with uotpool.check(False):
        clean, spoilt = (run(x, *weights, **how) for x in (problem.X, X))
    mine = slice(1, 2) if run is uot_pool else slice(5, 11)
    others = torch.ones(len(clean), dtype=torch.bool)
    others[mine] = False
    assert not spoilt[mine].isfinite().all()
    assert torch.equal(spoilt[others], clean[others])
