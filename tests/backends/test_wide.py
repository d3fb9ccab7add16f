"""Sets whose numbers are too far apart for float32: the kernels solve these, and no others, in double."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import uotpool
from tests import tolerances as tol
from tests.cases import SOLVERS
from tests.backends.harness import Problem, dense, equal, masked, modules, off, ragged, solved
from tests.backends.raw import GRADIENTS, Raw
from tests.spelling import uot_pool

SCALES = torch.tensor([1e-6, 1.0, 1e6], dtype=torch.float64)
LAYOUTS = {
    "dense": dense(3, 9, 6),
    "dense, one p0": dense(2, 5, 9, p0="shared"),
    "dense, uniform": dense(2, 7, 3, p0="uniform", q0=False),
    "masked": masked(3, 8, 6),
    "ptr": ragged("ptr", [4, 0, 7], 6),
    "index": ragged("index", [5, 3, 8], 6),
    "a large set": ragged("index", [3, 1500], 99, p0="uniform", q0=False),
}

each_solver = pytest.mark.parametrize("solver", SOLVERS)
each_impl = pytest.mark.parametrize("impl", ["cpu", "reference"])


def spread(problem: Problem) -> Problem:
    """Features of all scales beside each other, of both signs."""
    scales = SCALES.repeat(problem.X.shape[-1] // len(SCALES))
    return problem._replace(X=((problem.X - 0.5) * scales).float().double())


@pytest.mark.parametrize("plan", [False, True], ids=["pool", "plan"])
@pytest.mark.parametrize("layout", LAYOUTS)
@each_solver
def test_features_of_every_scale(solver, layout, plan):
    """Values of each feature relative to its own scale; all derivatives relative to the largest."""
    problem, weights = spread(LAYOUTS[layout]), modules(solver, 2)
    want = solved(problem, weights, solver, plan=plan, impl="reference")
    own = [None if w is None else w.float() for w in weights]
    got = solved(problem.to(torch.float32), own, solver, plan=plan, impl="cpu")
    for name, error in off(got, want, weights, plan=plan).items():
        assert error <= tol.WIDE_F32, (name, error)
    if not plan:
        scales = SCALES.repeat(problem.X.shape[-1] // len(SCALES))
        assert ((got["value"].double() - want["value"]).abs() / scales).max() <= tol.WIDE_F32


@each_solver
def test_what_a_set_gives_does_not_depend_on_its_mates(solver):
    """Ordinary ones, wide ones and one that is not finite, together and each alone, to the bit."""
    X = torch.rand(4, 6, 9, generator=torch.Generator().manual_seed(0))
    X[1] *= SCALES.repeat(3).float()
    X[3, 2, 2] = -torch.inf
    weights = [None if w is None else w.float() for w in modules(solver, 2)]
    together, alone = X.clone().requires_grad_(), X.clone().requires_grad_()
    with uotpool.check(False):
        y = uot_pool(together, *weights, solver=solver, impl="cpu")
        each = torch.cat([uot_pool(x, *weights, solver=solver, impl="cpu") for x in alone.split(1)])
    y[:3].square().sum().backward()
    each[:3].square().sum().backward()
    assert together.grad is not None
    assert alone.grad is not None
    assert torch.equal(y[:3], each[:3])
    assert torch.equal(together.grad[:3], alone.grad[:3])
    assert y[3].isnan().all()


@each_solver
def test_any_number_of_threads_gives_the_same_bits(solver):
    results = []
    for threads in (1, 3):
        raw = Raw(solver, torch.float32, sizes=[2, 3000, 5], D=99, K=2, threads=threads, rows=True)
        raw.arrays["X"] *= SCALES.repeat(33).float()
        results.append(raw.run())
    assert equal(*results) == []


@each_solver
def test_a_derivative_that_is_not_wanted_changes_no_other(solver):
    for sizes, D in (([4, 1, 9], 6), ([1400], 99)):
        raw = Raw(solver, torch.float32, sizes=sizes, D=D, absent=2, p0="shared", scale=D)
        raw.arrays["X"] *= SCALES.repeat(D // 3).float()
        want = raw.run()
        for name in GRADIENTS:
            got = raw.run(**{name: None})
            assert got.pop(name).isnan().all(), name
            assert equal(got, {key: want[key] for key in got}) == []


@each_solver
def test_numbers_whose_difference_is_not_one_of_float32(solver):
    """They are finite, and so is what comes out."""
    X = (dense(2, 6, 6).X - 0.5) * 6e38
    weights = modules(solver, 2)
    want = uot_pool(X.float().double(), *weights, solver=solver, impl="reference")
    own = [None if w is None else w.float() for w in weights]
    got = uot_pool(X.float(), *own, solver=solver, impl="cpu").double()
    assert (X.amax(1) - X.amin(1)).max() > torch.finfo(torch.float32).max
    assert (got - want).abs().max() / X.abs().max() <= tol.WIDE_F32


@each_solver
def test_modules_whose_weights_are_decades_apart(solver):
    """A potential is rounded in the unit of its module, 1e7 times that of the next (fuzz seed 2354)."""
    problem, own = LAYOUTS["ptr"], [None if w is None else w.float() for w in modules(solver, 2)]
    for w in (own[0], own[3]):
        if w is not None:
            w[:] = torch.tensor([1e3, 1e-4])
    weights = [None if w is None else w.double() for w in own]
    want = solved(problem, weights, solver, impl="reference")
    got = solved(problem.to(torch.float32), own, solver, impl="cpu")
    for name, error in off(got, want, weights).items():
        assert error <= tol.WIDE_F32, (name, error)


def steps_far_apart(seed: int, solver: str) -> tuple[torch.Tensor, list[torch.Tensor], dict[str, Any]]:
    """X, coefficients that differ by decades from step to step, priors with most mass in one place, scales."""
    g = torch.Generator().manual_seed(seed)
    N, D, K = (int(torch.randint(low, high, (), generator=g)) for low, high in ((2, 20), (2, 12), (2, 9)))
    decades = 0.5 + 3.5 * torch.rand((), generator=g)
    weights = list(10 ** (decades * (2 * torch.rand(4, K, generator=g) - 1)))
    X = torch.randn(1, N, D, generator=g) * 10 ** torch.randint(0, 3, (), generator=g)
    q0 = (torch.tensor([1.0, 5.0, 20.0])[seed % 3] * torch.randn(1, N, generator=g)).softmax(-1)
    rest = {"q0": q0.clamp_min(1e-30), "scale": 9 * torch.rand(D, generator=g)}
    return X, weights[: 3 if solver == "sinkhorn" else 4], rest


def off_by_range(X: torch.Tensor, weights: Any, solver: str, impl: str, **rest: Any) -> float:
    """Return the error of float32 against float64, in units of the range of each feature.

    The rounding of the output itself does not count: of a feature that is large and nearly constant it is more.
    """
    got, want = (
        uot_pool(
            X.to(dtype),
            *[torch.as_tensor(w, dtype=torch.float32).to(dtype) for w in weights],
            solver=solver,
            impl=impl,
            **{name: t.to(dtype) for name, t in rest.items()},
        ).double()
        for dtype in (torch.float32, torch.float64)
    )
    error = (got - want).abs() - torch.finfo(torch.float32).eps * want.abs()
    return float((error / (X.amax(1) - X.amin(1))).max())


@each_impl
@pytest.mark.parametrize(
    ("alpha0", "rho"), [([1e4, 1e4, 1.0], [1e4, 1e-4, 100.0]), ([1e3, 1e3, 1.0], [1e3, 1e-3, 10.0])], ids=str
)
def test_alpha0_of_a_step_far_above_its_rho(alpha0, rho, impl):
    """log mu takes from log p, which was divided by rho alone: .279 came out where float64 has .254."""
    torch.manual_seed(0)
    X = torch.randn(1, 10, 5)
    weights = [torch.tensor(w) for w in (alpha0, [1e-3] * 3, [1e-3] * 3, rho)]
    assert off_by_range(X, weights, "badmm-e", impl) <= tol.RANGE_F32
    wide = [w.double() for w in weights]
    first = uot_pool(X, *weights, solver="badmm-e", impl=impl)[0, 0]
    assert abs(float(first) - float(uot_pool(X.double(), *wide, solver="badmm-e")[0, 0])) <= tol.RANGE_F32


@each_impl
def test_badmm_q_with_nearly_all_mass_on_one_sample(impl):
    """And scales up to 9: the potentials are multiples of log q0, and so is their rounding."""
    torch.manual_seed(0)
    X = torch.randn(1, 10, 5)
    q0 = torch.tensor([[60.0] + [0.0] * 9]).softmax(-1)
    rest = {"q0": q0, "scale": torch.tensor([1.0, 3.0, 5.0, 7.0, 9.0])}
    weights = [[100.0, 100.0, 0.1], [1.0] * 3, [1.0] * 3, [0.01] * 3]
    assert off_by_range(X, weights, "badmm-q", impl, **rest) <= tol.RANGE_F32 / 10


@each_solver
def test_steps_of_other_decades(solver):
    """The promise of docs/kernels.md for values, whatever the coefficients of each step and the priors are."""
    with uotpool.check(False):  # priors that are 0 in float32
        for seed in range(600):
            X, weights, rest = steps_far_apart(seed, solver)
            assert off_by_range(X, weights, solver, "cpu", **rest) <= tol.RANGE_F32, seed
