"""Entropic Bregman ADMM: value and all derivatives against the reference, float32, NaN and bits."""

from __future__ import annotations

import pytest
import torch

import uotpool
from tests import tolerances as tol
from tests.kernels.harness import dense, masked, modules, off, ragged, randn, solved
from tests.spelling import uot_plan, uot_pool
from tests.triton.interpreted.harness import REGIMES, forced, real, scaled, small, zero_priors
from uotpool.backends.triton import calls
from uotpool.backends.triton.arguments import Arguments, Saved

pytestmark = pytest.mark.usefixtures("poisoned_memory")
each_regime = pytest.mark.parametrize("regime", REGIMES)
SOLVER = "badmm-e"


def check(problem, K, choice, *, plan=False, limit=tol.F64):
    weights = modules(SOLVER, K)
    want = solved(problem, weights, SOLVER, plan=plan, impl="reference")
    with forced(choice):
        got = solved(problem, weights, SOLVER, plan=plan, impl="triton")
    worst = off(got, want, weights, plan=plan)
    assert set(worst) == set(want)
    assert max(worst.values()) <= limit, worst


# name: (K, plan, regimes, problem)
CASES = {
    "uniform priors": (1, False, "set", lambda: dense(2, 6, 10, p0="uniform", q0=False)),
    "one scale, four modules": (4, False, "both", lambda: scaled(dense(1, 12, 5, p0="shared"), 1)),
    "plan, four modules": (4, True, "set", lambda: dense(1, 12, 5, p0="shared")),
    "holes and an absent set": (2, False, "both", lambda: scaled(masked(3, 6, 7), 7)),
    "plan with holes": (1, True, "chunk", lambda: masked(2, 6, 7)),
    "ptr, sets empty or of one row": (2, False, "both", lambda: scaled(ragged("ptr", [4, 0, 1, 13], 10), 10)),
    "plan by ptr": (1, True, "both", lambda: scaled(ragged("ptr", [4, 0, 1, 13], 10), 10)),
    "index in any order": (1, False, "set", lambda: ragged("index", [3, 1, 0, 5], 6, p0="shared")),
    "priors of 0": (2, False, "set", lambda: zero_priors(dense(2, 6, 4, p0="shared"))),
    "one feature": (1, False, "set", lambda: dense(1, 9, 1)),
    "one row": (2, False, "set", lambda: dense(2, 1, 9)),
    "several chunks": (1, False, "chunk", lambda: dense(1, 30, 3)),
    "width 37": (1, False, "chunk", lambda: scaled(dense(1, 9, 37), 37)),
    "width 130": (1, False, "set", lambda: scaled(dense(1, 9, 130), 130)),
}
RUNS = [(name, regime) for name, case in CASES.items() for regime in REGIMES if case[2] in (regime, "both")]


@pytest.mark.parametrize(("case", "regime"), RUNS)
def test_case_table(case, regime):
    K, plan, _, make = CASES[case]
    problem = make()
    # The logarithm of a prior of 0 is -670, so derivatives by weights round more (CPU kernels: 1e-11).
    limit = tol.F64_GRADIENT if case == "priors of 0" else tol.F64
    check(problem, K, small(regime, problem.X.shape[-1]), plan=plan, limit=limit)


@each_regime
def test_with_the_tiles_of_a_gpu(regime):
    check(scaled(ragged("ptr", [3, 30], 130), 130), 1, real(regime, 130, 8))


def test_weights_of_0():
    problem, weights = dense(1, 6, 5), modules(SOLVER, 1)
    weights[1] = weights[2] = torch.zeros(1, dtype=torch.float64)
    want = solved(problem, weights, SOLVER, impl="reference")
    with forced(small("set", 5)):
        got = solved(problem, weights, SOLVER, impl="triton")
    assert max(off(got, want, weights).values()) <= tol.F64


UNIT = dense(1, 10, 5)
# Weights at the ends of what tests/test_stability.py has, and a rho far below that of the module before.
EXTREMES = {
    "small alpha0, large X": (1e3, (1e-5, 1e-5), 1e3, (1.0, 1.0)),
    "large alpha0, small others": (1.0, (1e4, 1e4), 1e-5, (1.0, 1.0)),
    "offset": (1e4, (1e-3, 1e-3), 0.1, (1.0, 1.0)),
    "steps that differ": (1.0, (0.1, 0.1), 1.0, (10.0, 0.1)),
}


@pytest.mark.parametrize("name", EXTREMES)
def test_float32_at_extreme_weights(name):
    """Results are finite, and dX is as good as the reference's, whose error depends on the order of rows."""
    size, alpha0, alpha12, rho = EXTREMES[name]
    X = (UNIT.X + size if name == "offset" else UNIT.X * size).float().double()
    problem = UNIT._replace(X=X)
    wide = [torch.tensor(a, dtype=torch.float64) for a in (alpha0, (alpha12,) * 2, (alpha12,) * 2, rho)]
    weights = [w.float() for w in wide]
    want = solved(problem, wide, SOLVER, impl="reference")["X"]
    with forced(small("set", 5)):
        got = solved(problem.to(torch.float32), weights, SOLVER, impl="triton")
    for key, value in got.items():
        assert value.isfinite().all(), key
    errors = []
    for turn in range(4):
        turned = problem._replace(X=X.roll(turn, 1), q0=problem.q0.roll(turn, 1)).to(torch.float32)
        errors.append(solved(turned, weights, SOLVER, impl="reference")["X"].roll(-turn, 1).double() - want)
    bound = max(2 * max(float(e.abs().max()) for e in errors), tol.TRITON_F32 * float(want.abs().max()))
    assert float((got["X"].double() - want).abs().max()) <= bound


def test_mass_of_plans():
    X = (1e3 * UNIT.X).float()
    with forced(small("set", 5)):
        plan = uot_plan(X, 1e-5, 1.0, 1.0, 1.0, K=2, solver=SOLVER, impl="triton")
    assert abs(float(plan.double().sum()) - 1) <= tol.MASS_F32


def test_half_precision_is_read_as_it_is():
    """The results are those of the same numbers in float32, rounded."""
    found = []
    for X in (UNIT.X.half(), UNIT.X.half().float()):
        X.requires_grad_()
        with forced(small("set", 5)):
            y = uot_pool(X, 0.5, 1.0, 1.0, 1.0, K=1, solver=SOLVER, impl="triton")
            (dX,) = torch.autograd.grad(y, X, torch.ones_like(y))
        assert y.dtype == dX.dtype == X.dtype
        found.append((y.detach().half(), dX.half()))
    for got, want in zip(*found, strict=True):
        assert torch.equal(got, want)


@each_regime
def test_bits_of_a_set_alone_and_beside_one_that_is_not_finite(regime):
    problem, dy = ragged("ptr", [3, 14, 2], 6), randn(1, 6, seed=5)
    spoilt = problem.X.clone()
    spoilt[1, 2], part = torch.nan, slice(3, 17)

    def run(X, **layout):
        X = X.clone().requires_grad_()
        y = uot_pool(X, 0.5, 1.0, 0.7, 1.3, K=1, solver=SOLVER, impl="triton", **layout)
        return y.detach(), torch.autograd.grad(y, X, dy.expand_as(y))[0]

    with uotpool.check(False), forced(small(regime, 6)):
        y, dX = run(spoilt, **problem.layout)
        y_alone, dX_alone = run(problem.X[part])
    assert y[0].isnan().all()
    assert dX[:3].isnan().all()
    assert torch.equal(y[1:2], y_alone)
    assert torch.equal(dX[part], dX_alone)
    assert y[2].isfinite().all()


@each_regime
def test_offsets_out_of_range_touch_no_other_memory(regime):
    """Kernels clamp them: an assertion on a GPU reports them later. The interpreter would crash."""
    X, weights = randn(9, 4), torch.ones(4, 1, dtype=torch.float64)
    p = Arguments(X, torch.tensor([-5, 4, 100]), None, None, 0, None, None, weights, None, 2, SOLVER, False)
    _, saved = calls.forward(p, choice=small(regime, 4))
    calls.backward(torch.ones(2, 4).double(), p, saved, [True] * 5, choice=small(regime, 4))


def test_memory_between_the_passes():
    weights = torch.ones(4, 2, dtype=torch.float64)
    p = Arguments(randn(6, 3), None, None, None, 3, None, None, weights, None, 2, SOLVER, False)
    out, saved = calls.forward(p)
    B, D, K, M = 2, 3, 2, 6
    assert sum(t.numel() for t in saved) <= (5 * K + 12) * B * D + (5 * K + 10) * M
    assert [t.shape for t in saved] == [torch.Size(shape) for shape in Saved.shapes(p)]
    again, nothing = calls.forward(p, save=False)
    assert nothing is None
    assert torch.equal(again, out)


def test_what_the_backend_takes():
    assert resolve_impl(UNIT.X, SOLVER, "triton") == "triton"
    weights = torch.stack(modules(SOLVER, 1))
    given = (randn(4, 3), None, None, None, 2, None, None, weights, None, 2, SOLVER, False)
    # Not whether all that is saved is the same again: some places of it nobody writes or reads.
    kinds = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.uotpool.triton_solve.default, (*given, True), test_utils=kinds)
    with pytest.raises(ValueError, match="uotpool::triton_solve"):
        torch.ops.uotpool.triton_solve(*given[:7], weights[:3], *given[8:], True)
