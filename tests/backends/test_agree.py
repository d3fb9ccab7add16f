"""The CPU kernels against the reference, values and all derivatives, for everything that a call can have."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

import uotpool
from tests import tolerances as tol
from tests.backends.harness import (
    EMPTY,
    INPUTS,
    WEIGHTS,
    Problem,
    Weights,
    cast,
    compare,
    dense,
    masked,
    modules,
    off,
    priors_of,
    ragged,
    rand,
    randn,
    sizes_like,
    solved,
    solver_of,
)
from tests.cases import DECADES, SOLVERS, step
from uotpool import uot_pool

LAYOUTS = ("dense", "mask", "index", "ptr", "sorted")
PRIORS = ({"p0": "each"}, {"p0": "shared"}, {"p0": "uniform", "q0": False}, {"p0": "shared", "q0": False})
# Around the widths of vectors, 2 to 16 numbers, and around the blocks of four rows.
WIDTHS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 20, 33, 64)

each_solver = pytest.mark.parametrize("solver", SOLVERS)
each_head = pytest.mark.parametrize("plan", [False, True], ids=["pool", "plan"])
each_impl = pytest.mark.parametrize("impl", ["cpu", "reference"])


def mixed(D: int) -> Tensor:
    """Scales of both signs, every fifth 0."""
    scale = randn(D, seed=21)
    scale[1::5] = 0
    return scale


def decades(D: int) -> Tensor:
    """1e-5 to 1e2, of both signs: what these features have of each other's weights differs as much."""
    scale = 10 ** (7 * rand(D, seed=22) - 5)
    scale[::3] *= -1
    return scale.float().double()


SCALES: dict[str, Any] = {
    "none": lambda D: None,
    "one": lambda D: torch.tensor([-0.75], dtype=torch.float64),
    "zeros": lambda D: torch.zeros(D, dtype=torch.float64),
    "mixed": mixed,
    "decades": decades,
}


def laid_out(layout: str, B: int, N: int, D: int, seed: int = 0, **priors: Any) -> Problem:
    if layout == "dense":
        return dense(B, N, D, seed, **priors)
    if layout == "mask":
        return masked(B, N, D, seed, **priors)
    return ragged(layout, sizes_like(B, N), D, seed, **priors)


# --- everything together


class Case(NamedTuple):
    """What `compare` takes."""

    problem: Problem
    weights: Weights
    transforms: tuple[str, ...]
    slack: float


FORMS = ("identity", "exp", "softplus", "number", "numbers")


@st.composite
def cases(draw: Any, solver: str) -> Case:
    """Every layout, width, prior, scale and input, with each coefficient in a form of its own."""
    K, D = draw(st.integers(1, 7)), draw(st.sampled_from(WIDTHS))
    N = draw(st.sampled_from(WIDTHS).filter(lambda n: n * D > 1))  # one entry: test_one_entry
    seed, layout = draw(st.integers(0, 99)), draw(st.sampled_from(LAYOUTS))
    problem = laid_out(layout, draw(st.integers(1, 4)), N, D, seed, **draw(st.sampled_from(PRIORS)))
    wanted, slack = modules(solver, K, seed), 1.0
    if draw(st.integers(0, 3)) == 0 and D > 1 and N > 1:
        problem = problem._replace(X=INPUTS[draw(st.sampled_from(sorted(INPUTS)))](problem.X))
        slack = tol.KERNEL_HARD
    scale = SCALES[draw(st.sampled_from(sorted(SCALES)))](D)
    if scale is not None and float(problem.X.abs().max() if problem.X.numel() else 0.0) > 5e3:
        scale = None  # of an offset and several scales the sums cancel, in torch too
    slack = slack if scale is None else tol.KERNEL_HARD
    linear = scale is not None and draw(st.booleans())
    weights: Weights = []
    transforms = []
    for value in wanted:
        form = draw(st.sampled_from(FORMS)) if value is not None else "identity"
        if value is None or form == "identity":
            raw: Any = value
        elif form.startswith("number"):
            raw = tuple(value.tolist()) if form == "numbers" and K > 1 else float(value[0])
        else:
            raw = (value.log() / 10 if form == "exp" else value.expm1().log()).float().double()
        if isinstance(raw, Tensor) and draw(st.booleans()):
            raw = raw[:1].clone()  # one for all steps
        weights.append(raw)
        transforms.append("identity" if form.startswith("number") else form)
    if not any((isinstance(w, Tensor) and len(w) == K) or isinstance(w, tuple) for w in weights):
        weights[0], transforms[0] = wanted[0], "identity"  # so that there are K steps
    problem = problem._replace(scale=scale / 10 if linear else scale)
    return Case(problem, weights, (*transforms, "linear" if linear else "identity"), slack)


@each_head
@each_solver
@given(data=st.data())
@settings(max_examples=50, deadline=None, derandomize=True)  # `python -m tests.fuzz` draws new ones
def test_everything(solver, plan, data):
    case = data.draw(cases(solver))
    compare(case.problem, case.weights, solver, plan=plan, slack=case.slack, transforms=case.transforms)


@each_head
@each_solver
def test_fixed_numbers_are_those_of_tensors(solver, plan):
    """All coefficients fixed, and the scale too: to the bit what tensors of the same numbers give."""
    problem, weights = ragged("index", [5, 0, 12], 7)._replace(scale=mixed(7)), modules(solver, 3)
    want = solved(problem, weights, solver, plan=plan, impl="cpu")
    numbers = [None if w is None else tuple(w.tolist()) for w in weights]
    fixed = problem._replace(scale=tuple(mixed(7).tolist()))
    got = solved(fixed, numbers, solver, plan=plan, impl="cpu")
    assert got.keys() == {"value", "X", "p0", "q0"}
    assert all(torch.equal(t, want[name]) for name, t in got.items())


@each_solver
@given(data=st.data())
@settings(max_examples=4, deadline=None, derandomize=True)
def test_gradcheck(solver, data):
    """Derivatives of the kernels against finite differences of the kernels."""
    layout, plan = data.draw(st.sampled_from(LAYOUTS)), data.draw(st.booleans())
    problem = laid_out(layout, 2, 4, 3)._replace(scale=data.draw(st.sampled_from([None, mixed(3)])))
    weights = [w for w in modules(solver, 2) if w is not None]
    if data.draw(st.booleans()):  # each sum relative to the largest term of its row or column
        weights[0] = weights[0] * 0.02
    leaves = {"X": problem.X, "p0": problem.p0, "q0": problem.q0, "scale": problem.scale}
    inputs = {name: t.clone().requires_grad_() for name, t in leaves.items() if t is not None}

    def solve(*leaves):
        named = dict(zip(inputs, leaves, strict=False))
        priors = priors_of(problem, named.get("p0"), named.get("q0"))
        alphas = dict(zip(WEIGHTS, leaves[len(inputs) :], strict=False))
        posed = uotpool.Problem(named["X"], **alphas, scale=named.get("scale"), **priors, **problem.layout)
        run = posed.plan if plan else posed.pool
        return run(solver_of(solver, 2), impl="cpu")

    assert gradcheck(solve, [*inputs.values(), *[w.clone().requires_grad_() for w in weights]])


# --- shapes at the edge


@pytest.mark.parametrize("case", EMPTY)
@each_head
@each_solver
def test_empty_sets(solver, plan, case):
    for D, layout in ((1, "index"), (5, "ptr")):
        problem = ragged(layout, EMPTY[case], D)._replace(scale=mixed(D) if D > 1 else None)
        compare(problem, modules(solver, 2), solver, plan=plan, slack=tol.KERNEL_HARD)


@each_solver
def test_one_entry(solver):
    """Its plan is 1 and the pooled value X, whatever the weights: all other derivatives are zero."""
    problem, weights = dense(3, 1, 1), modules(solver, 4)
    value, dX, *rest = solved(problem, weights, solver, impl="cpu").values()
    assert torch.equal(value, problem.X[:, 0])
    assert torch.equal(dX, randn(3, 1, seed=11)[..., None])
    plan = solved(problem, weights, solver, plan=True, impl="cpu")
    assert (plan["value"] == 1).all()
    for g in (*rest, *list(plan.values())[1:]):
        assert g.abs().max() <= tol.STRUCTURAL_ZERO


@each_head
@each_solver
def test_equal_entries(solver, plan):
    """The largest entry of P and S, which sets a step of badmm-q, is many: they share its derivative."""
    for priors in PRIORS:
        rows = dense(2, 6, 5, **priors)
        rows = rows._replace(X=rows.X[:, :1].expand(-1, 6, -1).contiguous())
        compare(rows, modules(solver, 3), solver, plan=plan)
    equal = dense(2, 6, 5, p0="uniform", q0=False)
    compare(equal._replace(X=torch.full_like(equal.X, 0.5)), modules(solver, 3), solver, plan=plan)


@pytest.mark.parametrize(("alpha0", "times"), [(0.1, 1.0), (0.01, 1.0), (1.0, 1e3), (1.0, 1e4)])
@each_solver
def test_large_exponents(solver, alpha0, times):
    """Beyond what one reference for all columns can carry: the ways around it are taken."""
    for N, D in ((12, 6), (33, 17)):
        weights = modules(solver, 4)
        weights[0] = (alpha0 * weights[0]).float().double()
        problem = dense(2, N, D)
        scale = (times * mixed(D)).float().double() if times > 1 else None
        problem = problem._replace(X=8 * problem.X - 4, scale=scale)
        compare(problem, weights, solver, slack=tol.KERNEL_HARD)
        if times == 1:  # beyond, the plan is 0 or 1, and its derivatives rounding
            compare(problem, weights, solver, plan=True, slack=tol.KERNEL_HARD)


# A piece that one thread works on has 131072 entries. A bag of several is left where it is, with rows that end
# in the middle of a vector; from four of them on, all threads work on one bag. BADMM-Q keeps its state after
# every third update only. (K, plan, problem)
LARGE: dict[str, Any] = {
    "2 chunks": (1, False, lambda: dense(1, 3000, 60, p0="shared")),
    "one feature": (1, False, lambda: dense(1, 200_000, 1, p0="shared")),
    "4 chunks": (1, True, lambda: dense(1, 4000, 130, p0="shared")),
    "wide rows": (1, False, lambda: dense(1, 20, 40_000, p0="shared")),
    "large and small": (1, True, lambda: ragged("index", [5, 4000, 0, 1500, 4010, 0], 101)),
    "in place, masked": (3, False, lambda: masked(2, 700, 201)._replace(scale=mixed(201))),
    "in place, by an index": (7, True, lambda: ragged("index", [700, 3, 660], 201)),
    "in place, many largest entries": (4, False, lambda: tied(dense(1, 1400, 96, p0="uniform", q0=False))),
}


def tied(problem: Problem) -> Problem:
    return problem._replace(X=(3 * problem.X).round())


@pytest.mark.parametrize("case", LARGE)
@each_solver
def test_bags_of_several_chunks(solver, case):
    K, plan, problem = LARGE[case]
    compare(problem(), modules(solver, K), solver, plan=plan, slack=tol.KERNEL_LARGE)


COTANGENTS: dict[str, Any] = {
    "of a sum": lambda y: y.sum(),
    "of one feature": lambda y: y[..., 0].sum(),
    "of the transposed": lambda y: (y.transpose(0, -1) * randn(*y.transpose(0, -1).shape, seed=5)).sum(),
    "of a sum over sets": lambda y: (y.sum(0) * randn(*y.shape[1:], seed=5)).sum(),
    "negative by a flag": lambda y: (y * torch._neg_view(randn(*y.shape))).sum(),
}


@pytest.mark.parametrize("name", COTANGENTS)
def test_derivatives_of_what_follows(name):
    """Autograd hands over derivatives by the output with any strides; `sum` gives one number in all places."""
    X = torch.complex(torch.zeros(3, 10, 5).double(), rand(3, 10, 5)).conj().imag.requires_grad_()
    assert X.is_neg()
    results = []
    for impl in ("cpu", "reference"):
        posed = uotpool.Problem(X, alpha0=0.5, alpha1=1.0, alpha2=0.7)
        results.append(
            [torch.autograd.grad(COTANGENTS[name](run(impl=impl)), X)[0] for run in (posed.pool, posed.plan)]
        )
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=0.0, atol=tol.F64)


# --- float32 where numbers are far apart: such a set is solved in double

APART = torch.tensor([1e-6, 1.0, 1e6], dtype=torch.float64)
WIDE: dict[str, Any] = {
    "features": lambda: spread(dense(3, 9, 6)),
    "masked": lambda: spread(masked(3, 8, 6)),
    "by an index": lambda: spread(ragged("index", [5, 3, 8], 6)),
    "a large set": lambda: spread(ragged("index", [3, 1500], 99, p0="uniform", q0=False)),
    "scales": lambda: masked(3, 9, 6)._replace(scale=3e5 * torch.tensor([1, 0, 3e-6, -1e-9, -1, 0]).double()),
}


def spread(problem: Problem) -> Problem:
    """Features of all scales beside each other, of both signs."""
    scales = APART.repeat(problem.X.shape[-1] // len(APART))
    return problem._replace(X=((problem.X - 0.5) * scales).float().double())


def check_wide(problem: Problem, weights: Weights, solver: str, *, plan: bool = False) -> None:
    problem = problem.to(torch.float32).to(torch.float64)
    want = solved(problem, weights, solver, plan=plan, impl="reference")
    got = solved(problem.to(torch.float32), cast(weights, torch.float32), solver, plan=plan, impl="cpu")
    errors = off(got, want, problem, weights, plan=plan)
    assert all(error <= tol.WIDE_F32 for error in errors.values()), errors


@pytest.mark.parametrize("case", WIDE)
@each_head
@each_solver
def test_features_of_every_scale(solver, plan, case):
    check_wide(WIDE[case](), modules(solver, 2), solver, plan=plan)


@each_solver
def test_steps_whose_weights_are_decades_apart(solver):
    """A potential is rounded in the unit of its step, 1e7 times that of the next (fuzz seed 2354)."""
    weights = modules(solver, 2)
    for w in (weights[0], weights[3]):
        if w is not None:
            w[:] = torch.tensor([1e3, 1e-4]).double()
    check_wide(ragged("ptr", [4, 0, 7], 6), weights, solver)


@each_solver
def test_products_and_differences_beyond_float32(solver):
    """Only a result that float32 cannot hold is infinite."""
    weights = (1.0, 1.0, 1.0, step(solver))
    for X, scale in ((1e30 * rand(2, 4, 3), [1e30, -1e30, 0.0]), (6e38 * (rand(2, 6, 3) - 0.5), [1.0] * 3)):
        found = []
        for dtype in (torch.float32, torch.float64):
            leaves = [t.float().to(dtype).requires_grad_() for t in (X, torch.tensor(scale))]
            y = uot_pool(leaves[0], *weights, scale=leaves[1], solver=solver, impl="cpu")
            found.append([t.float() for t in (y, *torch.autograd.grad(y.sum(), leaves))])
        for narrow, wide in zip(*found, strict=True):
            torch.testing.assert_close(
                narrow, wide, rtol=tol.WIDE_F32, atol=tol.WIDE_F32 * float(X.max()) / 1e30
            )


@each_solver
def test_every_magnitude_is_finite(solver):
    """alpha0 x (alpha1 = alpha2) x rho in float32, for every kind of X: means of samples, plans of mass 1."""
    for name, change in INPUTS.items():
        problem = dense(2, 10, 5)
        problem = problem._replace(X=change(problem.X)).to(torch.float32)
        low, high, size = problem.X.amin(1), problem.X.amax(1), float(problem.X.abs().max())
        for i, alpha0 in enumerate(DECADES[::3]):
            for j, alpha12 in enumerate(DECADES[::3]):
                rho = step(solver, (1e-3, 1.0, 1e3)[(i + j) % 3])
                weights = [None if w is None else torch.full((4,), w) for w in (alpha0, alpha12, alpha12, rho)]
                pooled, plan = (
                    solved(problem, weights, solver, plan=plan, impl="cpu") for plan in (False, True)
                )
                assert all(t.isfinite().all() for t in (*pooled.values(), *plan.values())), (name, weights)
                assert (pooled["value"] >= low - tol.F32 * size).all(), (name, weights)
                assert (pooled["value"] <= high + tol.F32 * size).all(), (name, weights)
                assert (plan["value"] >= 0).all(), (name, weights)
                assert (plan["value"].sum((1, 2)) - 1).abs().max() <= tol.MASS_F32, (name, weights)


@each_solver
def test_a_tiny_scale_is_as_exact_as_none(solver):
    """X is not found again as Z / s: values and derivatives at 1e-30 are those at 0, in float32 too."""
    for dtype, rtol in ((torch.float32, tol.F32), (torch.float64, tol.F64)):
        problem, weights = dense(2, 9, 5).to(dtype), cast(modules(solver, 3), dtype)
        scales = (torch.full((5,), s, dtype=dtype) for s in (1e-30, 0.0))
        tiny, none = (solved(problem._replace(scale=s), weights, solver, impl="cpu") for s in scales)
        for name, g in none.items():
            torch.testing.assert_close(tiny[name], g, rtol=rtol, atol=0)


# --- coefficients that differ by decades from step to step


def steps_far_apart(seed: int, solver: str) -> tuple[Tensor, list[Tensor], dict[str, Any]]:
    """X, such coefficients, priors with most mass in one place, and scales."""
    g = torch.Generator().manual_seed(seed)
    N, D, K = (int(torch.randint(low, high, (), generator=g)) for low, high in ((2, 20), (2, 12), (2, 9)))
    spread = 0.5 + 3.5 * torch.rand((), generator=g)
    weights = list(10 ** (spread * (2 * torch.rand(4, K, generator=g) - 1)))
    X = torch.randn(1, N, D, generator=g) * 10 ** torch.randint(0, 3, (), generator=g)
    q0 = (torch.tensor([1.0, 5.0, 20.0])[seed % 3] * torch.randn(1, N, generator=g)).softmax(-1)
    rest = {"q0": q0.clamp_min(1e-30), "scale": 9 * torch.rand(D, generator=g)}
    return X, weights[: 3 if solver == "sinkhorn" else 4], rest


def off_by_range(X: Tensor, weights: Any, solver: str, impl: str, **rest: Any) -> float:
    """Return the error of float32 against float64, in units of the range of each feature.

    The rounding of the output itself does not count: of a feature that is large and nearly constant it is more.
    """
    algorithm = solver_of(solver, len(weights[0]))
    got, want = (
        uot_pool(
            X.to(dtype),
            *[torch.as_tensor(w, dtype=torch.float32).to(dtype) for w in weights],
            solver=algorithm,
            impl=impl,
            **{name: t.to(dtype) for name, t in rest.items()},
        ).double()
        for dtype in (torch.float32, torch.float64)
    )
    error = (got - want).abs() - torch.finfo(torch.float32).eps * want.abs()
    return float((error / (X.amax(1) - X.amin(1))).max())


@each_impl
@pytest.mark.parametrize("unit", [1e4, 1e3])
def test_alpha0_of_a_step_far_above_its_rho(unit, impl):
    """log mu takes from log p, which was divided by rho alone: .279 came out where float64 has .254."""
    torch.manual_seed(0)
    weights = [[unit, unit, 1.0], [1e-3] * 3, [1e-3] * 3, [unit, 1 / unit, unit / 100]]
    assert off_by_range(torch.randn(1, 10, 5), weights, "badmm-e", impl) <= tol.RANGE_F32


@each_impl
def test_badmm_q_with_nearly_all_mass_on_one_sample(impl):
    """And scales up to 9: the potentials are multiples of log q0, and so is their rounding."""
    torch.manual_seed(0)
    rest = {"q0": torch.tensor([[60.0] + [0.0] * 9]).softmax(-1), "scale": torch.arange(1.0, 10.0, 2.0)}
    weights = [[100.0, 100.0, 0.1], [1.0] * 3, [1.0] * 3, [0.01] * 3]
    assert off_by_range(torch.randn(1, 10, 5), weights, "badmm-q", impl, **rest) <= tol.RANGE_F32 / 10


@each_solver
def test_steps_of_other_decades(solver):
    """The promise of docs/kernels.md for values, whatever the coefficients of each step and the priors are."""
    with uotpool.check(False):  # priors that are 0 in float32
        for seed in range(600):
            X, weights, rest = steps_far_apart(seed, solver)
            assert off_by_range(X, weights, solver, "cpu", **rest) <= tol.RANGE_F32, seed
