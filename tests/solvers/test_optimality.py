"""The solvers reach the optimum, and the certificate says so."""

from __future__ import annotations

import pytest
import torch
from scipy.optimize import minimize

from bench.convergence import pot_pool
from tests import tolerances as tol
from tests.cases import SHAPES, log_uniform, problem, step
from tests.spelling import duality_gap, objective, uot_plan, uot_pool
from uotpool import ConvergenceWarning, explain_impl

# What calls K modules. K="converged" is the reference's alone, and would only be the same again.
each_implementation = pytest.mark.usefixtures("every_implementation")

PROBLEMS = range(6)


def gap_of(solver, case, weights, **how):
    P = uot_plan(
        case.X, *weights, step(solver, how.pop("rho", 1.0)), p0=case.p0, q0=case.q0, solver=solver, **how
    )
    name = "quadratic" if solver == "badmm-q" else "entropic"
    return duality_gap(case.X, P, *weights, p0=case.p0, q0=case.q0, regularizer=name)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", PROBLEMS)
def test_converged_entropic_gap(shape, seed):
    case, weights = problem(4, *shape, seed=seed), log_uniform(3, 1e-2, 1e2, seed)
    P = uot_plan(case.X, *weights, p0=case.p0, q0=case.q0, K="converged")
    gaps = duality_gap(case.X, P, *weights, p0=case.p0, q0=case.q0)
    assert gaps.max() <= tol.GAP_SOLVED


@pytest.mark.parametrize("solver", ["badmm-e", "badmm-q"])
@each_implementation
def test_badmm_gap_after_3000_steps(solver):
    """One shape by the reference, which takes seconds and gives what the kernels give (tests/backends)."""
    fused = not explain_impl(torch.empty(1, 1), solver).startswith("reference")
    for shape in SHAPES if fused else SHAPES[:1]:
        for seed in range(3) if fused else [0]:
            case, weights = problem(4, *shape, seed=seed), log_uniform(3, 0.1, 10.0, seed)
            assert gap_of(solver, case, weights, K=3000).max() <= tol.GAP_BADMM, (shape, seed)


def test_pooled_output_equals_free_mass_optimum_of_pot():
    """A constant in X changes the mass of eq. 3's optimum but not p(n|d): POT solves eq. 3."""
    for seed in PROBLEMS:
        (X, p0, q0), w = problem(1, 12, 6, seed=seed), log_uniform(3, 0.2, 5.0, seed)
        y_pot = pot_pool(X[0], p0[0], q0[0], w)
        y = uot_pool(X, *w, p0=p0, q0=q0, K="converged")
        assert torch.allclose(y[0], y_pot, rtol=0, atol=tol.OPTIMUM)


@pytest.mark.parametrize("regularizer", ["entropic", "quadratic"])
def test_converged_plan_against_a_generic_convex_solver(regularizer):
    """Minimise the objective directly with scipy, independent of our duals."""
    (X, p0, q0), (a0, a1, a2) = problem(1, 4, 3, seed=3), (0.5, 1.5, 0.8)
    solver = "badmm-q" if regularizer == "quadratic" else "sinkhorn"
    P = uot_plan(X, a0, a1, a2, p0=p0, q0=q0, solver=solver, K="converged")

    def objective(P):
        R = (P * (P.clamp_min(1e-300).log() - 1)).sum() if regularizer == "entropic" else P.square().sum()
        kl = [(m * (m.clamp_min(1e-300) / r).log()).sum() for m, r in ((P.sum(0), p0[0]), (P.sum(1), q0[0]))]
        return -(X[0] * P).sum() + a0 * R + a1 * kl[0] + a2 * kl[1]

    best = minimize(
        lambda x: float(objective(torch.tensor(x).reshape(4, 3))),
        torch.full((12,), 1 / 12).numpy(),
        method="SLSQP",
        bounds=[(0, 1)] * 12,
        constraints={"type": "eq", "fun": lambda x: x.sum() - 1},
        options={"ftol": 1e-15, "maxiter": 1000},
    ).fun
    ours = float(objective(P[0]))
    assert ours <= best + tol.GAP_SOLVED
    assert ours >= best - tol.OPTIMUM


@pytest.mark.parametrize("regularizer", ["entropic", "quadratic"])
def test_gap_is_primal_minus_dual(regularizer):
    (X, p0, q0), (a0, a1, a2) = problem(1, 6, 4), (0.7, 1.3, 0.4)
    P = torch.rand_like(X)
    P = P / P.sum()
    u = -a1 * (P.sum(1) / p0).log()
    v = -a2 * (P.sum(2) / q0).log()
    Y = (X + u[:, None, :] + v[:, :, None]).flatten()
    R = (P * (P.log() - 1)).sum() if regularizer == "entropic" else P.square().sum()
    kl = a1 * (P.sum(1) * (P.sum(1) / p0).log()).sum() + a2 * (P.sum(2) * (P.sum(2) / q0).log()).sum()
    primal = -(X * P).sum() + a0 * R + kl
    if regularizer == "entropic":
        conj = a0 * (Y / a0).logsumexp(0) + a0
    else:
        Q = _project_by_sorting(Y / (2 * a0))
        conj = (Y * Q).sum() - a0 * Q.square().sum()
    dual = -conj - a1 * (p0 * (-u / a1).exp()).sum().log() - a2 * (q0 * (-v / a2).exp()).sum().log()
    gap = duality_gap(X, P, a0, a1, a2, p0=p0, q0=q0, regularizer=regularizer)
    assert abs(float(gap) - float(primal - dual)) <= tol.F64


def _project_by_sorting(y):
    s = y.sort(descending=True).values
    t = (s.cumsum(0) - 1) / torch.arange(1, y.numel() + 1)
    return (y - t[(s > t).nonzero().max()]).clamp_min(0)


@each_implementation
@pytest.mark.parametrize("regularizer", ["entropic", "quadratic"])
def test_gap_of_special_plans(regularizer):
    (X, p0, q0), w = problem(1, 6, 4), (0.7, 1.3, 0.4)
    P = uot_plan(X, *w, 1.0, p0=p0, q0=q0, solver="badmm-e", K=8)
    gap = {"p0": p0, "q0": q0, "regularizer": regularizer}
    scaled = duality_gap(X, 7.5 * P, *w, **gap)
    assert torch.allclose(scaled, duality_gap(X, P, *w, **gap), rtol=tol.F64)  # any mass
    empty_row = P.clone()
    empty_row[0, 2] = 0
    assert duality_gap(X, empty_row, *w, **gap).isinf().all()
    assert duality_gap(X, empty_row, 0.7, 1.3, 0.0, **gap).isfinite().all()  # alpha2 = 0: a free marginal
    empty_column = P.clone()
    empty_column[0, :, 2] = 0
    assert duality_gap(X, empty_column, *w, **gap).isinf().all()
    assert duality_gap(X, empty_column, 0.7, 0.0, 0.4, **gap).isfinite().all()
    nothing = torch.zeros(1, 6, dtype=torch.bool)
    assert duality_gap(X, P, *w, mask=nothing, p0=p0, regularizer=regularizer) == 0
    sparse = P.clone()
    sparse[0, 2, 1] = 0
    assert duality_gap(X, sparse, *w, **gap).isfinite().all()


def test_converged_warns_when_it_is_not():
    X, p0, q0 = problem(1, 12, 6)
    with pytest.warns(ConvergenceWarning, match="max_iter=1 with a duality gap of"):
        uot_plan(X, 1e-3, 10.0, 10.0, p0=p0, q0=q0, K="converged", max_iter=1, tol=1e-14)


@pytest.mark.parametrize("solver", ["sinkhorn", "badmm-q"])
def test_float32_optimum_far_from_zero(solver):
    """Solved in float64 from centred X: a float32 input with an offset loses nothing but its own digits."""
    X = problem(3, 6, 4).X.float()
    how = {"solver": solver, "K": "converged", "tol": 1e-6}
    regularizer = "quadratic" if solver == "badmm-q" else "entropic"
    for weights in ((0.01, 100.0, 100.0), (0.01, 1.0, 1.0)):
        P = uot_plan(X, *weights, **how)
        assert duality_gap(X, P, *weights, regularizer=regularizer).max() <= tol.GAP_F32
        far = uot_plan(X.double() + 1e6, *weights, **how)
        assert torch.allclose(far.sum((1, 2)), torch.ones(3, dtype=torch.float64))
        assert torch.allclose(far.float(), P, atol=tol.FAR_F32)


def test_objective_by_its_formula_and_in_every_layout():
    X, P = torch.randn(2, 3, 4).double(), torch.rand(2, 3, 4).double()
    P = P / P.sum((1, 2), keepdim=True)
    p, q = P.sum(1), P.sum(2)
    kl_p, kl_q = (p * (p * 4).log()).sum(-1), (q * (q * 3).log()).sum(-1)
    want = (0.5 * P * (P.log() - 1) - X * P).sum((1, 2)) + 2.0 * kl_p + 3.0 * kl_q
    torch.testing.assert_close(objective(X, P, 0.5, 2.0, 3.0), want)
    ragged = objective(X.flatten(0, 1), P.flatten(0, 1), 0.5, 2.0, 3.0, ptr=torch.tensor([0, 3, 6, 6]))
    torch.testing.assert_close(ragged, torch.cat([want, torch.zeros(1)]))
    pad = torch.nn.functional.pad
    mask = torch.tensor([[True, True, True, False]] * 2)
    padded = objective(pad(X, (0, 0, 0, 1), value=9.0), pad(P, (0, 0, 0, 1)), 0.5, 2.0, 3.0, mask=mask)
    torch.testing.assert_close(padded, want)
