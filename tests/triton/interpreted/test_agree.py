"""The GPU kernels against the reference: values and all derivatives, float32, half precision, NaN, and bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import uotpool
from tests import tolerances as tol
from tests.backends.harness import dense, masked, modules, off, ragged, randn, solved
from tests.cases import DECADES
from uotpool import Problem, Sinkhorn, uot_pool

pytestmark = pytest.mark.usefixtures("poisoned_memory")
small_tiles = pytest.mark.usefixtures("small_tiles")
LEARNED = ("exp", "softplus", "identity", "identity", "linear")


def check(problem, weights, *, plan=False, transforms=("identity",) * 5):
    results = [
        solved(problem, weights, "sinkhorn", plan=plan, impl=impl, transforms=transforms)
        for impl in ("triton", "reference")
    ]
    errors = off(*results, problem, weights, plan=plan, transforms=transforms)
    bounds = {name: tol.F64_GRADIENT if name.startswith("alpha") else tol.F64 for name in errors}
    assert all(errors[name] <= bound for name, bound in bounds.items()), errors


def scaled(problem, length):
    """With scales of both signs, one of them 0."""
    scale = randn(length, seed=4)
    scale[1::4] = 0.0
    return problem._replace(scale=scale)


def zero_priors(problem):
    """With every third sample of prior 0, hence absent."""
    q0 = problem.q0.clone()
    q0.view(-1)[::3] = -torch.inf
    return problem._replace(q0=q0)


# name: (K, plan, problem)
CASES: dict[str, Any] = {
    "dense": (2, False, lambda: dense(2, 5, 10)),
    "the default layer": (1, False, lambda: scaled(dense(2, 6, 10, p0="uniform", q0=False), 10)),
    "plan of the default layer": (1, True, lambda: scaled(dense(2, 6, 10, p0="uniform", q0=False), 10)),
    "one scale, four steps": (4, False, lambda: scaled(dense(1, 12, 5, p0="shared"), 1)),
    "plan, four steps": (4, True, lambda: dense(1, 12, 5, p0="shared")),
    "holes and an absent set": (2, False, lambda: scaled(masked(3, 6, 7), 7)),
    "plan with holes": (2, True, lambda: masked(3, 6, 7)),
    "ptr, sets empty or of one row": (2, False, lambda: scaled(ragged("ptr", [4, 0, 1, 13], 10), 10)),
    "index in any order": (2, False, lambda: ragged("index", [3, 1, 0, 15], 6, p0="shared")),
    "plan by index": (2, True, lambda: scaled(ragged("index", [3, 1, 0, 5], 6), 6)),
    "priors of 0": (2, False, lambda: zero_priors(dense(2, 6, 4, p0="shared"))),
    "one feature": (2, False, lambda: dense(2, 9, 1)),
    "one row": (2, False, lambda: dense(2, 1, 9)),
    "several chunks": (1, False, lambda: scaled(dense(1, 40, 3), 3)),
    "plan of several chunks": (2, True, lambda: scaled(dense(1, 40, 3), 3)),
    "width 130": (1, False, lambda: scaled(dense(1, 9, 130), 130)),
    "width 600": (1, False, lambda: dense(1, 9, 600, p0="shared")),
    "no rows": (2, False, lambda: ragged("ptr", [0, 0], 3)),
    "no sets": (2, True, lambda: ragged("index", [], 3)),
}


@small_tiles
@pytest.mark.parametrize("case", CASES)
def test_case_table(case):
    K, plan, make = CASES[case]
    check(make(), modules("sinkhorn", K), plan=plan)


@small_tiles
@pytest.mark.parametrize("plan", [False, True])
def test_every_form_of_coefficient(plan):
    """Learned ones through their transforms, for all steps or each; fixed ones, 0 among them."""
    problem = scaled(ragged("index", [3, 0, 6], 5), 5)
    raw = [0.1 * randn(n, seed=n) for n in (1, 2, 2)]
    check(
        problem._replace(scale=problem.scale / 10),
        [*raw[:2], raw[2].exp(), None],
        plan=plan,
        transforms=LEARNED,
    )
    check(problem, [0.5, (0.0, 2.0), raw[1].exp(), None], plan=plan)
    fixed = problem._replace(scale=tuple(problem.scale.tolist()))
    check(fixed, [(0.5, 1.0), 1.0, 0.0, None], plan=plan)


@pytest.mark.parametrize("D", [10, 130])
def test_with_the_tiles_of_a_gpu(D):
    check(scaled(ragged("ptr", [3, 140], D), D), modules("sinkhorn", 2))


UNIT = dense(1, 10, 5)
INPUTS = (UNIT.X, (UNIT.X + 1e4).float().double(), (1e3 * UNIT.X).float().double())
ORDERS = 4  # of rows, in which the reference is computed: its error is a matter of luck too


def relative(got, want):
    return float((got.double() - want).abs().max() / want.abs().max())


def reference_error(problem, weights, want):
    """Return the largest error of dX of the reference in float32 over some orders of the rows."""
    errors = []
    for turn in range(ORDERS):
        X, q0 = problem.X.roll(turn, 1), problem.q0.roll(turn, 1)
        turned = problem._replace(X=X, q0=q0).to(torch.float32)
        dX = solved(turned, weights, "sinkhorn", impl="reference")["X"]
        # The cotangent of the pooled output is the same whatever the order of rows.
        errors.append(relative(dX.roll(-turn, 1), want))
    return max(errors)


@small_tiles
def test_every_cell_of_coefficients():
    """Results are finite, plans have mass 1, and dX is as good as the reference's."""
    for i, alpha0 in enumerate(DECADES[::2]):
        for j, alpha12 in enumerate(DECADES[::2]):
            problem = UNIT._replace(X=INPUTS[(i + j) % len(INPUTS)])
            wide = [torch.full((2,), a, dtype=torch.float64) for a in (alpha0, alpha12, alpha12)]
            weights = [*(w.float() for w in wide), None]
            want = solved(problem, [*wide, None], "sinkhorn", impl="reference")["X"]
            got = solved(problem.to(torch.float32), weights, "sinkhorn", impl="triton")
            for name, value in got.items():
                assert value.isfinite().all(), (alpha0, alpha12, name)
            bound = max(2 * reference_error(problem, weights, want), tol.TRITON_F32)
            assert relative(got["X"], want) <= bound, (alpha0, alpha12, (i + j) % len(INPUTS))
        plan = solved(problem.to(torch.float32), weights, "sinkhorn", plan=True, impl="triton")["value"]
        assert (plan >= 0).all()
        assert abs(float(plan.double().sum()) - 1) <= tol.MASS_F32


@small_tiles
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_read_directly(dtype):
    """The results are those of the same numbers in float32, rounded; the interpreter cuts bfloat16 off."""
    results = []
    for X in (UNIT.X.to(dtype), UNIT.X.to(dtype).float()):
        X.requires_grad_()
        pool = uotpool.UOTPooling(5, alpha1=1.0, alpha2=1.0, scale=[1.0, 2.0, 3.0, 4.0, 5.0], impl="triton")
        y = pool(X)
        (dX,) = torch.autograd.grad(y, X, torch.ones_like(y))
        assert y.dtype == dX.dtype == X.dtype
        results.append((y.detach().to(dtype), dX.to(dtype)))
    eps = torch.finfo(dtype).eps
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=eps, atol=eps * float(want.abs().max()))


def test_a_sum_counts_in_float32():
    ones = torch.full((1, 2049, 1), 0.25, dtype=torch.float16)
    y = uot_pool(ones, 1.0, 0.7, 0.7, solver=Sinkhorn(1), reduce="sum", impl="triton")
    assert y.item() == float(torch.tensor(2049 * 0.25).half())


@small_tiles
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_spoils_its_set_alone(bad):
    """Even where the scale of its feature is 0, in values and derivatives."""
    problem = ragged("ptr", [3, 4, 12], 4, p0="uniform", q0=False)
    problem = problem._replace(scale=torch.tensor([1.0, 0.0, -1.0, 2.0]).double())
    spoilt = problem.X.clone()
    spoilt[5, 1] = bad
    others = [*range(3), *range(7, 19)]
    for plan in (False, True):
        clean, got = (results(problem._replace(X=X), plan) for X in (problem.X, spoilt))
        mine = slice(3, 7) if plan else 1
        rest = others if plan else [0, 2]
        assert got["value"][mine].isnan().all()
        assert torch.equal(got["value"][rest], clean["value"][rest])
        assert torch.equal(got["X"][others], clean["X"][others])


def results(problem, plan):
    with uotpool.check(False):
        return solved(problem, modules("sinkhorn", 1), "sinkhorn", plan=plan, impl="triton")


@small_tiles
@pytest.mark.parametrize("plan", [False, True])
def test_bits_of_a_set_alone_and_in_a_batch(plan):
    """Whatever the other sets and the padding are, and if it comes by an index."""
    problem, part = ragged("ptr", [3, 25, 2], 6), slice(3, 28)

    def run(X, **layout):
        X = X.clone().requires_grad_()
        posed = Problem(X, alpha0=0.5, alpha1=1.0, alpha2=0.7, scale=randn(6, seed=3), **layout)
        y = (posed.plan if plan else posed.pool)(Sinkhorn(2), impl="triton")
        return y.detach(), torch.autograd.grad(y.sin().sum(), X)[0]

    y, dX = run(problem.X, **problem.layout)
    y_alone, dX_alone = run(problem.X[part])
    padded, mask = torch.full((2, 30, 6), torch.nan, dtype=torch.float64), torch.zeros(2, 30, dtype=torch.bool)
    padded[1, :25], mask[1, :25] = problem.X[part], True
    y_padded, dX_padded = run(padded, mask=mask)
    places = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    places = torch.cat([places[problem.set_of == b].sort()[0] for b in range(3)])  # each set keeps its order
    index, rows = torch.empty(30, dtype=torch.int64), torch.empty_like(problem.X)
    index[places], rows[places] = problem.set_of, problem.X
    y_index, dX_index = run(rows, index=index, dim_size=3)
    assert torch.equal(y[part] if plan else y[1:2], y_alone)
    assert torch.equal(y_padded[1, :25] if plan else y_padded[1:], y_alone)
    assert torch.equal(y_index[places] if plan else y_index, y)
    assert torch.equal(dX[part], dX_alone)
    assert torch.equal(dX_padded[1, :25], dX_alone)
    assert (y_padded[0] == 0).all()
    assert (dX_padded[0] == 0).all()
    assert torch.equal(dX_index[places], dX)
