"""Value and all derivatives in float64 against autograd of the reference."""

from __future__ import annotations

import contextlib

import pytest
import torch

from tests import tolerances as tol
from tests.backends.harness import dense, masked, modules, off, ragged, solved
from tests.triton.interpreted.harness import scaled, small

pytestmark = pytest.mark.usefixtures("poisoned_memory")


def check(problem, weights, tiles, *, plan=False):
    want = solved(problem, weights, "sinkhorn", plan=plan, impl="reference")
    with tiles:
        got = solved(problem, weights, "sinkhorn", plan=plan, impl="triton")
    errors = off(got, want, weights, plan=plan)
    bounds = {name: tol.F64_GRADIENT if name.startswith("alpha") else tol.F64 for name in errors}
    assert all(errors[name] <= bound for name, bound in bounds.items()), errors


def zero_priors(problem):
    """With every third sample of prior 0, hence absent."""
    q0 = problem.q0.clone()
    q0.view(-1)[::3] = -torch.inf
    return problem._replace(q0=q0)


# name: (K, plan, problem)
CASES = {
    "dense": (2, False, lambda: dense(2, 5, 10)),
    "the default layer": (1, False, lambda: scaled(dense(2, 6, 10, p0="uniform", q0=False), 10)),
    "plan of the default layer": (1, True, lambda: scaled(dense(2, 6, 10, p0="uniform", q0=False), 10)),
    "one scale, four modules": (4, False, lambda: scaled(dense(1, 12, 5, p0="shared"), 1)),
    "plan, four modules": (4, True, lambda: dense(1, 12, 5, p0="shared")),
    "holes and an absent set": (2, False, lambda: scaled(masked(3, 6, 7), 7)),
    "plan with holes": (2, True, lambda: masked(3, 6, 7)),
    "ptr, sets empty or of one row": (2, False, lambda: scaled(ragged("ptr", [4, 0, 1, 13], 10), 10)),
    "plan by ptr": (1, True, lambda: scaled(ragged("ptr", [4, 0, 1, 13], 10), 10)),
    "index in any order": (2, False, lambda: ragged("index", [3, 1, 0, 15], 6, p0="shared")),
    "plan by index": (2, True, lambda: scaled(ragged("index", [3, 1, 0, 5], 6), 6)),
    "priors of 0": (2, False, lambda: zero_priors(dense(2, 6, 4, p0="shared"))),
    "one feature": (2, False, lambda: dense(2, 9, 1)),
    "one row": (2, False, lambda: dense(2, 1, 9)),
    "several chunks": (1, False, lambda: scaled(dense(1, 40, 3), 3)),
    "plan of several chunks": (2, True, lambda: scaled(dense(1, 40, 3), 3)),
    "width 37": (1, False, lambda: scaled(dense(1, 9, 37), 37)),
    "width 130": (1, False, lambda: scaled(dense(1, 9, 130), 130)),
    "width 600": (1, False, lambda: dense(1, 9, 600, p0="shared")),
    "plan of width 600": (1, True, lambda: dense(1, 5, 600, p0="shared")),
}


@pytest.mark.parametrize("case", CASES)
def test_case_table(case):
    K, plan, make = CASES[case]
    check(make(), modules("sinkhorn", K), small(), plan=plan)


@pytest.mark.parametrize("D", [10, 130])
def test_with_the_tiles_of_a_gpu(D):
    check(scaled(ragged("ptr", [3, 140], D), D), modules("sinkhorn", 2), contextlib.nullcontext())


@pytest.mark.parametrize("zero", [1, 2])
def test_coefficients_of_0(zero):
    weights = modules("sinkhorn", 2)
    weights[zero] = torch.zeros(2, dtype=torch.float64)
    check(dense(1, 6, 5), weights, small())


@pytest.mark.parametrize("plan", [False, True])
def test_no_rows_and_no_sets(plan):
    for problem in (ragged("ptr", [0, 0], 3), ragged("index", [], 3)):
        check(problem, modules("sinkhorn", 2), small(), plan=plan)
