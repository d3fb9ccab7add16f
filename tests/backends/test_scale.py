"""A scale per feature in the kernels: against the reference, and what no scale may change."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd import gradcheck

from tests import tolerances as tol
from tests.cases import SOLVERS, step
from tests.backends.harness import (
    EMPTY,
    INPUTS,
    Problem,
    compare,
    dense,
    masked,
    modules,
    off,
    ragged,
    rand,
    randn,
    sample_prior,
    sizes_like,
    solved,
)
from tests.spelling import uot_plan, uot_pool
from uotpool import check

each_solver = pytest.mark.parametrize("solver", SOLVERS)
each_head = pytest.mark.parametrize("plan", [False, True], ids=["pool", "plan"])


def number(D: int) -> torch.Tensor:
    return torch.tensor(-0.75, dtype=torch.float64)


def mixed(D: int) -> torch.Tensor:
    """Of both signs, every fifth 0."""
    s = randn(D, seed=21)
    s[1::5] = 0
    return s


def decades(D: int) -> torch.Tensor:
    """1e-5 to 1e2, of both signs: what these features have of each other's weights differs as much."""
    s = 10 ** (7 * rand(D, seed=22) - 5)
    s[::3] *= -1
    return s.float().double()


SCALES = {
    "number": number,
    "(1,)": lambda D: number(D).reshape(1),
    "zeros": lambda D: torch.zeros(D, dtype=torch.float64),
    "mixed": mixed,
    "decades": decades,
}


def problem(layout: str, B: int, N: int, D: int, seed: int = 0, **priors) -> Problem:
    if layout == "dense":
        return dense(B, N, D, seed, **priors)
    if layout == "mask":
        return masked(B, N, D, seed, **priors)
    return ragged(layout, sizes_like(B, N), D, seed, **priors)


@pytest.mark.parametrize("layout", ["dense", "mask", "index", "ptr"])
@pytest.mark.parametrize("scale", SCALES)
@each_head
@each_solver
def test_against_the_reference(solver, plan, scale, layout):
    for i, (N, D, K) in enumerate([(12, 6, 1), (5, 20, 4), (1, 4, 2), (7, 1, 3), (9, 33, 2)]):
        given = problem(layout, 3, N, D, seed=i, p0="each" if i % 2 else "uniform", q0=i % 3 > 0)
        given = given._replace(scale=SCALES[scale](D))
        compare(given, modules(solver, K, seed=i), solver, plan=plan, slack=tol.KERNEL_HARD)


@pytest.mark.parametrize("case", EMPTY)
@each_head
@each_solver
def test_empty_sets(solver, plan, case):
    for D in (1, 5):
        given = ragged("ptr", EMPTY[case], D)._replace(scale=mixed(D))
        compare(given, modules(solver, 2), solver, plan=plan)


# Of several chunks: such a bag is left where it is.
IN_PLACE = {
    "dense": (4, False, lambda: dense(1, 700, 201)),
    "masked": (3, False, lambda: masked(2, 700, 201)),
    "by an index": (7, True, lambda: ragged("index", [700, 3, 660], 201)),
}


@pytest.mark.parametrize("case", IN_PLACE)
@each_solver
def test_bags_in_place(solver, case):
    K, plan, problem = IN_PLACE[case]
    given = problem()._replace(scale=mixed(201))
    compare(given, modules(solver, K), solver, plan=plan, slack=tol.KERNEL_LARGE)


@pytest.mark.parametrize("name", INPUTS)
@each_head
@each_solver
def test_inputs_away_from_the_unit_interval(solver, plan, name):
    """Not with an offset and several scales: the sums of X times a derivative cancel there, in torch too."""
    for scale in ("number",) if name == "offset" else ("number", "mixed"):
        given = dense(2, 33, 17)
        given = given._replace(X=INPUTS[name](given.X), scale=SCALES[scale](17))
        compare(given, modules(solver, 4), solver, plan=plan, slack=tol.KERNEL_HARD)


@pytest.mark.parametrize("times", [10.0, 1e3, 1e4])
@each_solver
def test_large_scales(solver, times):
    """Exponents beyond what one reference for all columns can carry: the ways around it are taken."""
    for N, D in ((12, 6), (33, 17)):
        given = dense(2, N, D)
        given = given._replace(X=8 * given.X - 4, scale=(times * mixed(D)).float().double())
        compare(given, modules(solver, 4), solver, slack=tol.KERNEL_HARD)
        if times < 1e3:  # beyond, the plan is 0 or 1, and its derivatives rounding
            compare(given, modules(solver, 4), solver, plan=True, slack=tol.KERNEL_HARD)


@each_solver
def test_a_tiny_scale_is_as_exact_as_none(solver):
    """X is not found again as Z / s: values and derivatives at 1e-30 are those at 0, in float32 too."""
    for dtype in (torch.float32, torch.float64):
        weights = [None if w is None else w.to(dtype) for w in modules(solver, 3)]
        given = dense(2, 9, 5).to(dtype)
        tiny, none = (
            solved(given._replace(scale=torch.full((5,), s, dtype=dtype)), weights, solver, impl="cpu")
            for s in (1e-30, 0.0)
        )
        for name, g in none.items():
            torch.testing.assert_close(
                tiny[name], g, rtol=tol.F32 if dtype == torch.float32 else tol.F64, atol=0
            )


@each_solver
def test_one_scale_is_that_of_all_features(solver):
    given, weights = ragged("index", [5, 0, 12], 7), modules(solver, 3)
    one, each = (
        solved(given._replace(scale=torch.full(shape, -0.6).double()), weights, solver, impl="cpu")
        for shape in ((), (7,))
    )
    each["scale"] = each["scale"].sum()
    for name, g in one.items():
        torch.testing.assert_close(each[name], g, rtol=tol.F64_GRADIENT, atol=tol.F64_GRADIENT)


@pytest.mark.parametrize("plan", [False, True], ids=["pool", "plan"])
@each_solver
def test_a_set_that_float32_cannot_carry_is_solved_in_double(solver, plan):
    """By what the plan is of: X alone would be harmless."""
    given = masked(3, 9, 6)._replace(scale=torch.tensor([3e5, 1.0, 0.0, -1e-3, -3e5, 1.0]).double())
    weights = modules(solver, 2)
    want = solved(given, weights, solver, plan=plan, impl="reference")
    own = [None if w is None else w.float() for w in weights]
    got = solved(given.to(torch.float32), own, solver, plan=plan, impl="cpu")
    for name, error in off(got, want, weights, plan=plan).items():
        assert error <= tol.WIDE_F32, name


@each_solver
def test_products_beyond_float32(solver):
    """Such a set is solved in double, so that only a result that float32 cannot hold is infinite."""
    found = []
    for dtype in (torch.float32, torch.float64):
        X = (1e30 * rand(2, 4, 3)).float().to(dtype).requires_grad_()
        scale = torch.tensor([1e30, -1e30, 0.0]).to(dtype).requires_grad_()
        y = uot_pool(X, 1.0, 1.0, 1.0, step(solver), scale=scale, solver=solver, impl="cpu")
        found.append([t.float() for t in (y, *torch.autograd.grad(y.sum(), [X, scale]))])
    for narrow, wide in zip(*found, strict=True):
        torch.testing.assert_close(narrow, wide, rtol=tol.WIDE_F32, atol=tol.WIDE_F32)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@each_solver
def test_what_is_not_finite_spoils_its_set_alone(solver, bad):
    """Even where the scale of its feature is 0."""
    X = rand(3, 5, 4)
    scale = torch.tensor([1.0, 0.0, -1.0, 2.0]).double()
    spoilt = X.clone()
    spoilt[1, 2, 1] = bad
    with check(False):
        clean, got = (
            uot_pool(x, 0.5, 1.0, 1.0, step(solver), scale=scale, solver=solver, impl="cpu")
            for x in (X, spoilt)
        )
    assert got[1].isnan().all()
    assert torch.equal(got[::2], clean[::2])


@each_solver
def test_gradcheck(solver):
    weights = [w for w in modules(solver, 2) if w is not None]
    scale = mixed(3).requires_grad_()
    small = [weights[0] * 0.02, *weights[1:]]
    for own in (weights, small):  # small: each sum with exponentials of its own
        inputs = [t.clone().requires_grad_() for t in (2 * rand(7, 3), *own)]
        for run in (uot_pool, uot_plan):
            assert gradcheck(
                lambda s, X, *w, run=run: run(
                    X, *w, scale=s, index=torch.tensor([2, 0, 0, 2, 2, 0, 0]), solver=solver, impl="cpu"
                ),
                (scale, *inputs),
            )


@each_solver
def test_order_padding_and_other_sets_do_not_matter(solver):
    X, scale, how = rand(5, 4), mixed(4), {"solver": solver, "impl": "cpu"}
    weights = (0.5, 1.0, 0.7, step(solver))
    alone = uot_pool(X[None], *weights, scale=scale, **how)[0]
    padded = torch.cat([X, torch.full((3, 4), torch.nan)])
    batch = torch.stack([rand(8, 4, seed=1), padded])
    mask = torch.ones(2, 8, dtype=torch.bool)
    mask[1, 5:] = False
    assert torch.equal(uot_pool(batch, *weights, mask=mask, scale=scale, **how)[1], alone)
    turned = uot_pool(X.flip(0)[None], *weights, scale=scale, **how)[0]
    torch.testing.assert_close(turned, alone, rtol=0, atol=tol.F64)
    permuted = uot_pool(X.flip(1)[None], *weights, scale=scale.flip(0), **how)[0]
    torch.testing.assert_close(permuted.flip(0), alone, rtol=0, atol=tol.F64)


@pytest.fixture
def dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Scaled(torch.nn.Module):
    def __init__(self, solver: str) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(mixed(4))
        self.solver = solver

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        how: dict[str, Any] = {"solver": self.solver, "K": 2, "impl": "cpu"}  # so that it cannot fall back
        return uot_pool(X, 0.5, 1.0, 1.0, step(self.solver), scale=self.scale, **how)


@each_solver
def test_compiled_and_exported(dynamo, solver):
    model, X = Scaled(solver), rand(3, 5, 4).requires_grad_()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    wanted = [X, model.scale]
    found = [[y, *torch.autograd.grad(y.sin().sum(), wanted)] for y in (model(X), compiled(X))]
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    program = torch.export.export(model, (X.detach(),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    assert "uotpool.solve" in str(program.graph)
    other = rand(6, 5, 4, seed=1)
    assert torch.equal(program.module()(other), model(other))


@each_solver
def test_a_derivative_that_is_not_wanted(solver):
    """The derivative by the scale alone, and all but that, are those of all together."""
    given, weights = dense(3, 6, 5)._replace(scale=mixed(5)), modules(solver, 2)
    want = solved(given, weights, solver, impl="cpu")
    cotangent = randn(3, 5, seed=11)
    for name in ("X", "scale"):
        leaf = getattr(given, name).clone().requires_grad_()
        p = given._replace(**{name: leaf})
        y = uot_pool(
            p.X,
            *weights,
            p0=p.p0.softmax(-1),
            q0=sample_prior(p, p.q0),
            scale=p.scale,
            solver=solver,
            impl="cpu",
        )
        assert torch.equal(torch.autograd.grad(y, leaf, cotangent)[0], want[name])
