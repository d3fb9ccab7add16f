"""Derivatives of the kernels against finite differences of the kernels."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck

from tests.cases import SOLVERS
from tests.backends.harness import dense, masked, modules, ragged, sample_prior
from tests.spelling import uot_plan, uot_pool

PROBLEMS = {
    "dense": dense(2, 4, 3),
    "mask": masked(3, 4, 3),
    "index": ragged("index", [3, 0, 4], 3),
    "ptr": ragged("ptr", [0, 2, 5], 3, p0="shared"),
}


@pytest.mark.parametrize("layout", PROBLEMS)
@pytest.mark.parametrize("run", [uot_pool, uot_plan], ids=["pool", "plan"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_gradcheck(solver, run, layout):
    problem = PROBLEMS[layout]
    assert problem.p0 is not None
    assert problem.q0 is not None
    weights = [w for w in modules(solver, 2) if w is not None]
    inputs = [t.clone().requires_grad_() for t in (problem.X, problem.p0, problem.q0, *weights)]

    def solve(X, p0, q0, *weights):
        priors = {"p0": p0.softmax(-1), "q0": sample_prior(problem, q0)}
        return run(X, *weights, **priors, **problem.layout, solver=solver, impl="cpu")

    assert gradcheck(solve, inputs)


@pytest.mark.parametrize("solver", SOLVERS)
def test_gradcheck_of_one_module_with_uniform_priors(solver):
    weights = [w.requires_grad_() for w in modules(solver, 1) if w is not None]
    X = dense(2, 5, 4).X.requires_grad_()
    assert gradcheck(lambda X, *w: uot_pool(X, *w, solver=solver, impl="cpu"), (X, *weights))
    assert gradcheck(lambda X, *w: uot_plan(X, *w, solver=solver, impl="cpu"), (X, *weights))


@pytest.mark.parametrize("solver", SOLVERS)
def test_gradcheck_where_exponents_are_large(solver):
    """alpha0 = 0.02 against |X| = 4: sums relative to the largest term of each row and column."""
    weights = [torch.full((2,), a, dtype=torch.float64) for a in (0.02, 0.5, 0.8, 0.3)]
    weights = [w.requires_grad_() for w in (weights[:3] if solver == "sinkhorn" else weights)]
    X = (8 * dense(2, 4, 3).X - 4).requires_grad_()
    assert gradcheck(lambda X, *w: uot_pool(X, *w, solver=solver, impl="cpu"), (X, *weights))
