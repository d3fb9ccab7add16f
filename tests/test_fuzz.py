"""What fuzzing found, as cases of its own, and a part of the fuzzer (`python -m tests.fuzz 10000` for more)."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch

import uotpool
from tests import tolerances as tol
from tests.backends.harness import solved
from tests.cases import SOLVERS, step
from tests.fuzz import converged, large, sets
from tests.spelling import uot_plan, uot_pool
from uotpool import ConvergenceWarning

CASES = 240
GROUPS = 5  # odd: every second case is beyond what is promised

each_impl = pytest.mark.parametrize("impl", ["cpu", "reference"])
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


@pytest.fixture(autouse=True)
def unchecked() -> Iterator[None]:
    """Turn `check` off: these tests are about values that it refuses."""
    with uotpool.check(False):
        yield


@pytest.mark.parametrize("group", range(GROUPS))
def test_random_weights_of_each_module(group):
    """Finite, of mass 1, a mean of the samples, and the kernels as exact as the reference."""
    run(sets, range(group, CASES, GROUPS))


@pytest.mark.parametrize(("family", "count"), [(converged, 16), (large, 4)])
def test_random_problems_of_other_kinds(family, count):
    run(family, range(count))


def run(family: Any, seeds: Iterable[int]) -> None:
    compared = 0
    for seed in seeds:
        case = family.draw(seed)
        found = family.check(case)
        assert found.wrong == [], (seed, case.describe())
        compared += found.compared
    assert compared > 0


def test_derivatives_of_badmm_e_are_compared_by_what_float64_can_hold():
    """All of the derivative is lost in float32 here, which passed for a small error; float64 is off by 2e-9."""
    found = sets.check(sets.draw(2542))
    assert found.wrong == []
    assert found.compared > 0


def randn(*size: int) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("rho", [[10.0, 0.1] * 8, [100.0, 0.01] * 8, [0.01, 100.0] * 4], ids=str)
@each_dtype
def test_derivatives_of_badmm_e_do_not_magnify_rounding(dtype, rho):
    """The plan is one-hot here: X has the derivative of one sample for each feature, the weights have none."""
    X, steps = randn(1, 10, 8).to(dtype).requires_grad_(), torch.tensor(rho, dtype=dtype, requires_grad=True)
    y = uot_pool(X, 0.1, 1.0, 1.0, steps, solver="badmm-e", impl="cpu")
    dX, drho = torch.autograd.grad(y.sum(), [X, steps])
    torch.testing.assert_close(dX.sum(1), torch.ones(1, 8, dtype=dtype))
    torch.testing.assert_close(dX.amax(1), torch.ones(1, 8, dtype=dtype))
    assert drho.abs().max() <= tol.STRUCTURAL_ZERO


@each_impl
@each_dtype
@pytest.mark.parametrize("rho", [1e-2, 1.0, 1e2])
@pytest.mark.parametrize("solver", SOLVERS)
def test_gradients_are_finite_beside_absent_rows(solver, rho, dtype, impl):
    mask = randn(4, 20) < 0.3
    mask[:, 0] = True
    X = randn(4, 20, 8).to(dtype).requires_grad_()
    for alpha0 in (1e-5, 1.0, 1e4):
        y = uot_pool(X, alpha0, 1.0, 1.0, step(solver, rho), mask=mask, solver=solver, impl=impl)
        (dX,) = torch.autograd.grad(y.sum(), X)
        assert dX.isfinite().all(), alpha0
        assert (dX[~mask] == 0).all()


@each_dtype
@pytest.mark.parametrize("solver", SOLVERS)
def test_gradients_of_the_optimum_are_finite_beside_absent_rows(solver, dtype):
    """The filler of an absent row, 0, is far above all samples here."""
    mask = torch.tensor([[True, True, False, True]])
    X = -1e3 * (1 + randn(1, 4, 3).abs()).to(dtype).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        y = uot_pool(X, 1e-3, 1e3, 1e-5, mask=mask, solver=solver, K="converged", max_iter=20)
    (dX,) = torch.autograd.grad(y.sum(), X)
    assert dX.isfinite().all()
    assert (dX[~mask] == 0).all()


@each_impl
@each_dtype
@pytest.mark.parametrize("K", [8, 16])
@pytest.mark.parametrize("solver", ["badmm-e", "badmm-q"])
def test_mass_where_steps_differ_by_orders_of_magnitude(solver, K, dtype, impl):
    rho = torch.tensor([1e3, 1e-2] * (K // 2), dtype=dtype)
    P = uot_plan(randn(2, 10, 8).to(dtype), 0.01, 0.01, 0.01, rho, solver=solver, impl=impl)
    assert (P.sum((1, 2)) - 1).abs().max() <= tol.MASS_F32


@each_impl
@each_dtype
@pytest.mark.parametrize("solver", SOLVERS)
def test_gradients_by_the_smallest_priors_are_finite(solver, dtype, impl):
    tiny = torch.finfo(dtype).tiny
    q0 = torch.tensor([[tiny / 8, tiny, 10 * tiny, 0.25, 0.75]], dtype=dtype).requires_grad_()
    p0 = torch.tensor([tiny / 8, tiny, 0.5, 0.5], dtype=dtype).requires_grad_()
    X = 1e3 * randn(1, 5, 4).to(dtype)
    for alpha2 in (1e-3, 1.0, 1e3):
        y = uot_pool(X, 1.0, 1.0, alpha2, step(solver), p0=p0, q0=q0, solver=solver, impl=impl)
        for g in torch.autograd.grad(y.sum(), [p0, q0]):
            assert g.isfinite().all(), alpha2


@each_impl
@pytest.mark.parametrize("seed", [2079, 8711])
def test_derivatives_of_badmm_q_are_finite_where_rounding_makes_ties(seed, impl):
    """The plan has one entry, so all derivatives are 0; rounding makes several of log 1e22 and more alike."""
    case = sets.draw(seed)
    assert case.solver == "badmm-q"
    own = [None if w is None else w.float() for w in case.weights]
    found = solved(case.problem.to(torch.float32), own, case.solver, plan=True, impl=impl)
    assert all(t.isfinite().all() for t in found.values())
    if impl == "reference":  # the kernels are finite, and no more
        assert all((t == 0).all() for name, t in found.items() if name != "value")
