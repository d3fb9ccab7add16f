"""The keyword `scale`: the plan is that of scale X, and X itself is pooled by it."""

from __future__ import annotations

import pytest
import torch

from tests import tolerances as tol
from tests.cases import REGULARIZER, SOLVERS, problem, step
from tests.spelling import duality_gap, objective, uot_plan, uot_pool

D = 5
PER_FEATURE = torch.tensor([0.7, 0.0, -1.5, 1e-5, 3.0], dtype=torch.float64)
SCALES = {"number": 0.7, "()": torch.tensor(-2.0), "(1,)": torch.tensor([0.5]), "(D,)": PER_FEATURE}

each_implementation = pytest.mark.usefixtures("every_implementation")
each_solver = pytest.mark.parametrize("solver", SOLVERS)
each_scale = pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)


def times(scale, X):
    return (scale.to(X.dtype) if isinstance(scale, torch.Tensor) else scale) * X


def weights(solver, K):
    """Numbers, and rho only where there is a step."""
    return (0.5, 1.0, 0.7, None if K == "converged" else step(solver))


@each_implementation
@each_scale
@pytest.mark.parametrize(
    ("K", "formulation"), [(0, "exact"), (1, "exact"), (3, "exact"), ("converged", "exact"), (3, "paper")]
)
@each_solver
def test_is_the_plan_of_the_product(solver, K, formulation, scale):
    X, p0, q0 = problem(3, 7, D)
    how = {"p0": p0, "q0": q0, "solver": solver, "K": K, "formulation": formulation}
    P = uot_plan(X, *weights(solver, K), scale=scale, **how)
    torch.testing.assert_close(P, uot_plan(times(scale, X), *weights(solver, K), **how), rtol=0, atol=tol.F64)
    y = uot_pool(X, *weights(solver, K), scale=scale, **how)
    torch.testing.assert_close(y, (X * P).sum(1) / P.sum(1), rtol=0, atol=tol.F64)


@each_scale
@each_solver
def test_gap_and_objective_are_of_the_product(solver, scale):
    X, p0, q0 = problem(2, 6, D)
    alphas = (0.5, 1.0, 0.7)
    P = uot_plan(X, *alphas, p0=p0, q0=q0, scale=scale, solver=solver, K="converged")
    how = {"p0": p0, "q0": q0, "regularizer": REGULARIZER[solver]}
    gap = duality_gap(X, P, *alphas, scale=scale, **how)
    assert (gap.abs() <= tol.GAP_F64).all()
    scaled = times(scale, X)
    uneven = problem(2, 6, D, seed=1).X.flatten(1).softmax(-1).view_as(X)
    for certify in (duality_gap, objective):
        found, wanted = certify(X, uneven, *alphas, scale=scale, **how), certify(scaled, uneven, *alphas, **how)
        torch.testing.assert_close(found, wanted, rtol=tol.F64, atol=tol.F64)


@each_implementation
@each_solver
def test_signs_and_zeros(solver):
    """The sign says towards which extreme a feature is pooled; with no scale at all it is the mean."""
    X = problem(4, 20, 3).X
    free = {"solver": solver, "K": 20}  # the sample marginal is free: each feature by itself
    scale = torch.tensor([50.0, 0.0, -50.0], dtype=torch.float64)
    y = uot_pool(X, 0.5, 1.0, 0.0, step(solver, 1.0), scale=scale, **free)
    assert (y[:, 0] > X[..., 0].mean(1) + 0.2).all()
    assert (y[:, 2] < X[..., 2].mean(1) - 0.2).all()
    still = uot_pool(X, 0.5, 1.0, 1.0, step(solver, 1.0), scale=torch.zeros(3), **free)
    torch.testing.assert_close(still, X.mean(1), rtol=0, atol=tol.F64)
    plain = uot_pool(X, 0.5, 1.0, 1.0, step(solver, 1.0), **free)
    torch.testing.assert_close(uot_pool(X, 0.5, 1.0, 1.0, step(solver, 1.0), scale=1.0, **free), plain)
    mirrored = uot_pool(-X, 0.5, 1.0, 1.0, step(solver, 1.0), scale=-1.0, **free)
    torch.testing.assert_close(mirrored, -plain, rtol=0, atol=tol.F64)
