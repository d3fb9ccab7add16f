"""Values and all derivatives of the kernels against the reference, in every layout and at every width."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests import tolerances as tol
from tests.cases import SHAPES, SOLVERS
from tests.backends.harness import (
    EMPTY,
    INPUTS,
    Problem,
    compare,
    dense,
    masked,
    modules,
    ragged,
    randn,
    sizes_like,
    solved,
)
from tests.spelling import uot_plan, uot_pool

LAYOUTS = ("dense", "mask", "index", "ptr")
PRIORS = ({"p0": "each"}, {"p0": "shared"}, {"p0": "uniform", "q0": False}, {"p0": "shared", "q0": False})
# Around the widths of vectors, 2 to 16 numbers, and around the blocks of four rows.
N_WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 20, 33)
D_WIDTHS = (1, 3, 4, 7, 8, 9, 15, 16, 17, 33, 64)

each_solver = pytest.mark.parametrize("solver", SOLVERS)
each_head = pytest.mark.parametrize("plan", [False, True], ids=["pool", "plan"])


def problem(layout: str, B: int, N: int, D: int, seed: int = 0, **priors) -> Problem:
    if layout == "dense":
        return dense(B, N, D, seed, **priors)
    if layout == "mask":
        return masked(B, N, D, seed, **priors)
    return ragged(layout, sizes_like(B, N), D, seed, **priors)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("K", [1, 4, 7])
@each_head
@each_solver
def test_case_table(solver, plan, K, layout):
    """All shapes of the table and all widths of both sides; the kind of the priors goes round."""
    widths = zip(N_WIDTHS, D_WIDTHS[K:] + D_WIDTHS[:K], strict=True)
    for i, (N, D) in enumerate((*SHAPES, *widths)):
        if (i + K) % 2 == plan:
            continue  # every other one for each head: another K has the rest
        priors = PRIORS[(i + K) % len(PRIORS)]
        compare(problem(layout, 3, N, D, seed=i, **priors), modules(solver, K, seed=i), solver, plan=plan)


@pytest.mark.parametrize("priors", PRIORS, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@each_solver
def test_every_kind_of_prior_in_every_layout(solver, layout, priors):
    compare(problem(layout, 5, 6, 11, **priors), modules(solver, 3), solver)
    compare(problem(layout, 5, 6, 11, **priors), modules(solver, 3), solver, plan=True)


@given(
    layout=st.sampled_from(["index", "ptr", "sorted"]),
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    D=st.integers(1, 40),
    K=st.integers(1, 5),
    solver=st.sampled_from(SOLVERS),
    plan=st.booleans(),
    priors=st.sampled_from(PRIORS),
    seed=st.integers(0, 999),
)
@settings(max_examples=60, deadline=None)
def test_any_shape(layout, sizes, D, K, solver, plan, priors, seed):
    assume(D > 1 or max(sizes) != 1)  # of sets of one entry all derivatives are 0: `test_one_entry`
    compare(ragged(layout, sizes, D, seed, **priors), modules(solver, K, seed), solver, plan=plan)


@pytest.mark.parametrize("layout", ["index", "ptr"])
@pytest.mark.parametrize("case", EMPTY)
@each_head
@each_solver
def test_empty_sets(solver, plan, case, layout):
    for D in (1, 5):
        compare(ragged(layout, EMPTY[case], D), modules(solver, 2), solver, plan=plan)


@each_head
@each_solver
def test_one_row_and_one_feature(solver, plan):
    for B, N, D in ((1, 1, 9), (2, 9, 1), (1, 100, 1), (1, 1, 100)):
        for K in (1, 4):
            compare(dense(B, N, D), modules(solver, K), solver, plan=plan)


@each_solver
def test_one_entry(solver):
    """Its plan is 1 and the pooled value X, whatever the weights: all other derivatives are zero."""
    given, weights = dense(3, 1, 1), modules(solver, 4)
    value, *rest = solved(given, weights, solver, impl="cpu").values()
    assert torch.equal(value, given.X[:, 0])
    assert torch.equal(rest[0], randn(3, 1, seed=11)[..., None])
    plan = solved(given, weights, solver, plan=True, impl="cpu")
    assert (plan["value"] == 1).all()
    for g in (*rest[1:], *list(plan.values())[1:]):
        assert g.abs().max() <= tol.STRUCTURAL_ZERO


@each_head
@each_solver
def test_equal_entries(solver, plan):
    """The largest entry of P and S, which sets a step of badmm-q, is many: they share its derivative."""
    for priors in PRIORS:
        equal = dense(2, 6, 5, **priors)
        equal = equal._replace(X=torch.full_like(equal.X, 0.5))
        if equal.p0 is None and equal.q0 is None:
            compare(equal, modules(solver, 3), solver, plan=plan)
        rows = dense(2, 6, 5, **priors)
        rows = rows._replace(X=rows.X[:, :1].expand(-1, 6, -1).contiguous())
        compare(rows, modules(solver, 3), solver, plan=plan)


@pytest.mark.parametrize("name", INPUTS)
@each_head
@each_solver
def test_inputs_away_from_the_unit_interval(solver, plan, name):
    for N, D in ((12, 6), (33, 17), (7, 1)):
        for K in (1, 4):
            given = dense(2, N, D)
            given = given._replace(X=INPUTS[name](given.X))
            compare(given, modules(solver, K), solver, plan=plan, slack=tol.KERNEL_HARD)


@pytest.mark.parametrize("alpha0", [0.1, 0.01])
@each_head
@each_solver
def test_small_alpha0(solver, plan, alpha0):
    """Exponents beyond what one reference for all columns can carry: the ways around it are taken."""
    for N, D in ((12, 6), (33, 17)):
        weights = modules(solver, 4)
        assert weights[0] is not None
        weights[0] = (alpha0 * weights[0]).float().double()
        given = dense(2, N, D)
        compare(given._replace(X=8 * given.X - 4), weights, solver, plan=plan, slack=tol.KERNEL_HARD)


# A piece that one thread works on has 131072 entries; from four of them on, all threads work on one bag.
LARGE = {
    "2 chunks": (1, 3000, 60),
    "3 chunks": (1, 3000, 100),
    "one feature, 2 chunks": (1, 200_000, 1),
    "4 chunks": (1, 4000, 130),
    "wide rows, 5 chunks": (1, 20, 40_000),
}


@pytest.mark.parametrize("case", LARGE)
@each_solver
def test_bags_of_several_chunks(solver, case):
    B, N, D = LARGE[case]
    compare(
        dense(B, N, D, p0="shared"), modules(solver, 1), solver, plan=case == "3 chunks", slack=tol.KERNEL_LARGE
    )


@pytest.mark.parametrize("layout", ["index", "ptr"])
@each_solver
def test_large_and_small_bags_together(solver, layout):
    """All threads share a large bag, each small bag has one thread, and empty bags are between them."""
    sizes = [5, 4000, 0, 1500, 4010, 0]
    problem = ragged(layout, sizes, 101)
    compare(problem, modules(solver, 1), solver, plan=layout == "index", slack=tol.KERNEL_LARGE)


COTANGENTS = {
    "of a sum": lambda y: y.sum(),
    "of a mean": lambda y: y.mean(),
    "of one feature of all sets": lambda y: y[..., 0].sum(),
    "of the transposed": lambda y: (y.transpose(0, -1) * randn(*y.transpose(0, -1).shape, seed=5).to(y)).sum(),
    "of a sum over sets": lambda y: (y.sum(0) * randn(*y.shape[1:], seed=5).to(y)).sum(),
}


@pytest.mark.parametrize("name", COTANGENTS)
@pytest.mark.parametrize("run", [uot_pool, uot_plan], ids=["pool", "plan"])
@each_solver
def test_derivatives_of_what_follows(solver, run, name):
    """Autograd hands over derivatives by the output with any strides; `sum` gives one number in all places."""
    weights = modules(solver, 2)
    for B, N, D in ((2, 5, 3), (3, 10, 5), (20, 9, 16)):
        X = dense(B, N, D).X.requires_grad_()
        results = (run(X, *weights, solver=solver, impl=impl) for impl in ("cpu", "reference"))
        got, want = (torch.autograd.grad(COTANGENTS[name](y), X)[0] for y in results)
        torch.testing.assert_close(got, want, rtol=0.0, atol=tol.F64)


# Of several chunks: such a bag is left where it is, with rows that end in the middle of a vector, and BADMM-Q
# keeps its state after every third update only. The largest entries of the last one are many, and share a
# derivative.
IN_PLACE = {
    "dense": (4, False, lambda: dense(1, 700, 201)),
    "masked": (3, False, lambda: masked(2, 700, 201)),
    "by an index": (7, True, lambda: ragged("index", [700, 3, 660], 201)),
    "tied": (4, False, lambda: tied(dense(1, 1400, 96, p0="uniform", q0=False))),
}


def tied(problem):
    return problem._replace(X=(3 * problem.X).round())


@pytest.mark.parametrize("case", IN_PLACE)
@each_solver
def test_bags_in_place(solver, case):
    K, plan, problem = IN_PLACE[case]
    compare(problem(), modules(solver, K), solver, plan=plan, slack=tol.KERNEL_LARGE)
