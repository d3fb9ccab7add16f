"""Quadratic Bregman ADMM: value and all derivatives against the reference, float32, NaN and bits."""

from __future__ import annotations

import pytest
import torch

import uotpool
from tests import tolerances as tol
from tests.kernels.harness import dense, masked, modules, off, ragged, randn, solved
from tests.spelling import make_layer, uot_plan, uot_pool
from tests.triton.interpreted.harness import forced, scaled, small, zero_priors
from uotpool.backends.triton import calls
from uotpool.backends.triton.arguments import Arguments, Saved
from uotpool.backends.triton.choice import narrow

pytestmark = pytest.mark.usefixtures("poisoned_memory")
SOLVER = "badmm-q"


def check(problem, K, choice, *, plan=False):
    weights = modules(SOLVER, K)
    want = solved(problem, weights, SOLVER, plan=plan, impl="reference")
    with forced(choice):
        got = solved(problem, weights, SOLVER, plan=plan, impl="triton")
    worst = off(got, want, weights, plan=plan)
    assert set(worst) == set(want)
    assert max(worst.values()) <= tol.F64, worst


# name: (K, plan, problem)
CASES = {
    "uniform priors": (1, False, lambda: dense(1, 6, 10, p0="uniform", q0=False)),
    "one scale, four modules": (4, False, lambda: scaled(dense(1, 6, 5, p0="shared"), 1)),
    "plan of two modules": (2, True, lambda: dense(1, 7, 5, p0="shared")),
    "holes and an absent set": (1, False, lambda: scaled(masked(3, 6, 7), 7)),
    "plan with holes": (1, True, lambda: masked(2, 6, 7)),
    "ptr, sets empty or of one row": (2, False, lambda: scaled(ragged("ptr", [4, 0, 1], 10), 10)),
    "plan by ptr": (1, True, lambda: scaled(ragged("ptr", [0, 1, 9], 10), 10)),
    "index in any order": (1, False, lambda: ragged("index", [3, 1, 0, 5], 6, p0="shared")),
    "priors of 0": (2, False, lambda: zero_priors(dense(1, 6, 4, p0="shared"))),
    "one feature": (1, False, lambda: dense(1, 9, 1)),
    "one row": (2, False, lambda: dense(1, 1, 9)),
    "several tiles": (1, False, lambda: dense(1, 30, 3)),
    "width 37": (1, False, lambda: scaled(dense(1, 9, 37), 37)),
    "width 130": (1, False, lambda: scaled(dense(1, 9, 130), 130)),
}


@pytest.mark.parametrize("case", CASES)
def test_case_table(case):
    K, plan, make = CASES[case]
    problem = make()
    check(problem, K, small("set", problem.X.shape[-1]), plan=plan)


def test_with_the_tiles_of_a_gpu():
    check(scaled(ragged("ptr", [3, 20], 130), 130), 1, narrow(130, 8))


def test_weights_of_0():
    problem, weights = dense(1, 6, 5), modules(SOLVER, 1)
    weights[1] = weights[2] = torch.zeros(1, dtype=torch.float64)
    want = solved(problem, weights, SOLVER, impl="reference")
    with forced(small("set", 5)):
        got = solved(problem, weights, SOLVER, impl="triton")
    assert max(off(got, want, weights).values()) <= tol.F64


def test_entries_that_are_equally_large_share_their_derivative():
    """The step depends on max(P, S). Here it is met in two columns and two rows, which X has twice."""
    half = dense(1, 3, 2, p0="uniform", q0=False)
    X = torch.cat((half.X, half.X), 1).repeat(1, 1, 2)
    check(half._replace(X=X, set_of=torch.zeros(6).long(), present=torch.ones(6).bool()), 2, small("set", 4))


UNIT = dense(1, 10, 5)
# Weights at the ends of what tests/test_stability.py has, and a rho far below that of the module before.
EXTREMES = {
    "small alpha0, large X": (1e3, (1e-5, 1e-5), 1e3, (1.0, 1.0)),
    "large alpha0, small others": (1.0, (1e4, 1e4), 1e-5, (1.0, 1.0)),
    "offset": (1e4, (1e-3, 1e-3), 0.1, (1.0, 1.0)),
    "steps that differ": (1.0, (0.1, 0.1), 1.0, (10.0, 0.1)),
    "small steps": (1.0, (1e-2, 1e-2), 1.0, (1e-3, 1e-3)),
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


@pytest.mark.parametrize("bad", [torch.nan, -torch.inf])
def test_bits_of_a_set_alone_and_beside_one_that_is_not_finite(bad):
    problem, dy = ragged("ptr", [3, 6, 2], 6), randn(1, 6, seed=5)
    spoilt = problem.X.clone()
    spoilt[1, 2], part = bad, slice(3, 9)

    def run(X, **layout):
        X = X.clone().requires_grad_()
        y = uot_pool(X, 0.5, 1.0, 0.7, 1.3, K=1, solver=SOLVER, impl="triton", **layout)
        return y.detach(), torch.autograd.grad(y, X, dy.expand_as(y))[0]

    with uotpool.check(False), forced(small("set", 6)):
        y, dX = run(spoilt, **problem.layout)
        y_alone, dX_alone = run(problem.X[part])
    assert y[0].isnan().all()
    assert dX[:3].isnan().all()
    assert torch.equal(y[1:2], y_alone)
    assert torch.equal(dX[part], dX_alone)
    assert y[2].isfinite().all()


def test_offsets_out_of_range_touch_no_other_memory():
    """Kernels clamp them: an assertion on a GPU reports them later. The interpreter would crash."""
    X, weights = randn(9, 4), torch.ones(4, 1, dtype=torch.float64)
    p = Arguments(X, torch.tensor([-5, 4, 100]), None, None, 0, None, None, weights, None, 2, SOLVER, False)
    _, saved = calls.forward(p, choice=small("set", 4))
    calls.backward(torch.ones(2, 4).double(), p, saved, [True] * 5, choice=small("set", 4))


def test_memory_between_the_passes():
    weights = torch.ones(4, 2, dtype=torch.float64)
    p = Arguments(randn(6, 3), None, None, None, 3, None, None, weights, None, 2, SOLVER, False)
    out, saved = calls.forward(p)
    B, D, K, M = 2, 3, 2, 6
    most = (2 * K + 2) * M * D + (6 * K + 10) * B * D + (9 * K + 18) * M + (6 * K + 12) * B
    assert sum(t.numel() for t in saved) == most
    assert [t.shape for t in saved] == [torch.Size(shape) for shape in Saved.shapes(p)]
    again, nothing = calls.forward(p, save=False)
    assert nothing is None
    assert torch.equal(again, out)


def test_operator():
    weights = torch.stack(modules(SOLVER, 1))
    given = (randn(4, 3), None, None, None, 2, None, None, weights, None, 2, SOLVER, False)
    # Not whether all that is saved is the same again: some places of it nobody writes or reads.
    kinds = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.uotpool.triton_solve.default, (*given, True), test_utils=kinds)
    with pytest.raises(ValueError, match="uotpool::triton_solve"):
        torch.ops.uotpool.triton_solve(*given[:7], weights[:3], *given[8:], True)


def test_compiled_and_exported():
    torch._dynamo.reset()
    pool = make_layer(3, solver=SOLVER, K=1, impl="triton").double()
    X = randn(5, 3).requires_grad_()
    compiled = torch.compile(pool, fullgraph=True, dynamic=True, backend="aot_eager")
    found = []
    for model in (pool, compiled):
        y = model(X)
        found.append([y.detach(), *torch.autograd.grad(y.sin().sum(), [X, *pool.parameters()])])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=tol.F64, atol=tol.F64)
    # A number of rows that is not known limits nothing, though large sets are for the reference.
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(pool, (X.detach(),), dynamic_shapes=({0: rows},))
    assert "uotpool.triton_solve" in str(program.graph)
    assert torch.equal(program.module()(X.detach()), pool(X.detach()))
    torch._dynamo.reset()


def test_large_sets_take_the_reference():
    X = torch.rand(1, 129, 1024)
    with pytest.raises(ValueError, match="sets of at most 131072 entries on average for solver='badmm-q', got"):
        uot_pool(X, 1.0, 1.0, 1.0, 1.0, K=1, solver=SOLVER, impl="triton")
