"""The GPU kernels in the operators of all devices: schemas, compilers, and what they refuse."""

from __future__ import annotations

import pytest
import torch

from tests.backends.harness import equal, masked, modules, rand, randn, solved
from tests.backends.test_torch import make, same, sets_of, with_gradients
from uotpool import Problem, Sinkhorn, UOTPooling, check, explain_impl
from uotpool.backends import ops
from uotpool.backends.triton import launch
from uotpool.backends.triton.backend import TRITON

D = 3
NAMES = ("all fixed", "mixed, with priors")
small_tiles = pytest.mark.usefixtures("small_tiles")
solve, solve_backward = torch.ops.uotpool.solve, torch.ops.uotpool.solve_backward


def arguments(name="mixed, with priors", *, plan=False):
    pool, (X, sets) = make(name, impl="triton"), sets_of("index", 3)
    with torch.no_grad():
        _, call = pool._call(X, None, sets["index"], None, sets["dim_size"], None)
        a = ops.arguments(TRITON, call, plan)
    present = torch.ones(X.shape[0], dtype=torch.bool)
    return a._replace(present=present, raw=[t.detach() for t in a.raw])


@small_tiles
@pytest.mark.parametrize("name", ["all fixed", "mixed, with priors"])
def test_opcheck(name):
    a = arguments(name)
    leaves = {"X": a.X.clone().requires_grad_(), "raw": [t.clone().requires_grad_() for t in a.raw]}
    torch.library.opcheck(solve.default, tuple(a._replace(**leaves)))
    out, *saved = solve(*a)
    assert [tuple(t.shape) for t in saved] == TRITON.saved_shapes(a)
    wanted = [t is not None and i != 1 for i, t in enumerate(a.differentiable())]
    torch.library.opcheck(solve_backward.default, (torch.ones_like(out), saved, *a, wanted))


def test_operators_refuse_what_does_not_fit():
    """The checks that all devices share are in tests/backends/test_torch.py."""
    a = arguments()
    for change in ({"solver": "badmm-q"}, {"X": a.X.long()}, {"present": a.present[1:]}, {"ptr": a.ptr[1:]}):
        with pytest.raises(ValueError, match="uotpool::solve"):
            solve(*a._replace(**change))
    out, *saved = solve(*a)
    for dout, tensors in ((out[:1], saved), (out, [*saved[1:], saved[0]]), (out, [])):
        with pytest.raises(ValueError, match="uotpool::solve_backward"):
            solve_backward(dout, tensors, *a, [True] * 6)


@small_tiles
def test_operator_and_function_are_one(monkeypatch):
    """An eager call goes past the operators, which a traced one sees: to the same bits."""
    problem, weights = masked(2, 4, 5)._replace(scale=randn(5, seed=4)), modules("sinkhorn", 1)
    want = solved(problem, weights, "sinkhorn", impl="triton")
    monkeypatch.setattr(ops, "all_eager", lambda tensors: False)
    assert equal(want, solved(problem, weights, "sinkhorn", impl="triton")) == []


@small_tiles
@pytest.mark.parametrize("name", NAMES)
def test_compiled_and_batched(name):
    pool = make(name, impl="triton")
    torch._dynamo.reset()
    compiled = torch.compile(pool, fullgraph=True, dynamic=True, backend="aot_eager")
    for n in (2, 3):
        X, sets = sets_of("index", n)
        same(with_gradients(compiled, pool, X, **sets), with_gradients(pool, pool, X, **sets))
    y = pool(X.requires_grad_(), **sets)
    dys = randn(2, *y.shape)
    (batched,) = torch.autograd.grad(y, X, dys, is_grads_batched=True, retain_graph=True)
    same([batched], [torch.stack([torch.autograd.grad(y, X, dy, retain_graph=True)[0] for dy in dys])])


@pytest.mark.parametrize("plan", [False, True])
def test_second_derivative_names_the_reference(plan):
    X = rand(6, D).requires_grad_()
    posed = Problem(X, alpha0=0.5, alpha1=1.0, alpha2=1.0)
    y = (posed.plan if plan else posed.pool)(Sinkhorn(1), impl="triton")
    (dX,) = torch.autograd.grad(y.square().sum(), X, create_graph=True)
    with pytest.raises(RuntimeError, match='impl="reference"'):
        torch.autograd.grad(dX.square().sum(), X)


@small_tiles
@pytest.mark.parametrize("plan", [False, True])
def test_derivatives_that_are_not_wanted(plan):
    a = arguments(plan=plan)
    out, *saved = TRITON.forward(a, save=True)
    dout, count = randn(*out.shape, seed=7), len(a.differentiable())
    every = TRITON.backward(dout, a, saved, [True] * count)
    for i in range(count):
        alone = TRITON.backward(dout, a, saved, [j == i for j in range(count)])
        assert torch.equal(alone[i], every[i])
        assert [d is None for d in alone] == [j != i for j in range(count)]


def test_offsets_out_of_range_touch_no_other_memory():
    """Kernels clamp them: an assertion on a GPU reports them later. The interpreter would crash."""
    a = arguments("the default")
    M = a.X.shape[0]
    for ptr in ([-5, 4, 100, 100, 100], [7, 2, 9, 3, 0], [0, 2**40, 9, 9, 9]):
        wrong = a._replace(ptr=torch.tensor(ptr))
        out, *saved = TRITON.forward(wrong, save=True)
        TRITON.backward(torch.ones_like(out), wrong, saved, [True] * len(a.differentiable()))
    order = torch.arange(M)
    order[:2] = torch.tensor([-1, 2**40])
    TRITON.forward(a._replace(order=order), save=True)


@pytest.mark.parametrize("dim", [1, 10, 64, 100, 512, 1024])
def test_tiles_hold_a_row_and_all_lanes(dim):
    for itemsize in (2, 4, 8):
        tile = launch.tile(dim, itemsize, 16)
        assert tile["C"] * tile["BL"] >= dim
        assert tile["R"] * tile["C"] * tile["W"] * tile["BL"] >= 32 * tile["num_warps"]


def test_what_the_backend_takes():
    assert explain_impl(rand(2, 3, D)) == "cpu"  # also where kernels are interpreted
    for X, solver in ((torch.rand(2, 2, 1025), "sinkhorn"), (torch.rand(2, 2, D), "badmm-q")):
        with pytest.raises(ValueError, match="impl"):
            UOTPooling(X.shape[-1], solver, impl="triton")(X)
    pool = UOTPooling(D, impl="triton")
    with check(False), pytest.raises(ValueError, match=r"torch\.func"):
        torch.func.grad(lambda x: pool(x).sum())(torch.rand(2, 2, D))
