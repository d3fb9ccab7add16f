"""Sets whose numbers are too far apart for float32: the kernels solve these, and no others, in double."""

from __future__ import annotations

import pytest
import torch

import uotpool
from tests import tolerances as tol
from tests.cases import SOLVERS
from tests.kernels.harness import Problem, dense, equal, masked, modules, off, ragged, solved
from tests.kernels.raw import GRADIENTS, Raw
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
