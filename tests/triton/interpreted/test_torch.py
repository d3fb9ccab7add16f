"""The GPU kernels as torch operators: schemas, compilers, and derivatives that they do not have."""

from __future__ import annotations

import pytest
import torch

from tests import tolerances as tol
from tests.backends.harness import dense, equal, masked, modules, rand, randn, solved
from uotpool import UOTPooling, check, resolve_impl, uot_plan, uot_pool
from uotpool.backends.triton import launch, ops
from uotpool.backends.triton.ops import Arguments, Saved

D = 3
PTR, ORDER = torch.tensor([0, 2, 2, 6]), torch.tensor([3, 1, 0, 5, 2, 4])
solve, solve_backward = torch.ops.uotpool.triton_solve, torch.ops.uotpool.triton_solve_backward


def arguments(*, plan=False, grad=True):
    weights = torch.stack([w for w in modules("sinkhorn", 1) if w is not None])
    floats = [t.requires_grad_(grad) for t in (rand(6, D), randn(3, D), randn(6), weights, randn(D, seed=2))]
    X, log_p0, log_q0, weights, scale = floats
    present = torch.ones(6, dtype=torch.bool)
    return X, PTR, ORDER, present, 0, log_p0, log_q0, weights, scale, 3, plan


def test_opcheck():
    torch.library.opcheck(solve.default, arguments())
    given = arguments(grad=False)
    out, *saved = solve(*given)
    wanted = [True, False, True, True, True]
    torch.library.opcheck(solve_backward.default, (torch.ones_like(out), *saved, *given, wanted))


def test_operators_refuse_what_does_not_fit():
    given = arguments(grad=False)
    wrong = {0: given[0].float(), 1: PTR[:2], 2: ORDER.int(), 7: given[7].float(), 8: randn(2)}
    for i, other in wrong.items():
        with pytest.raises(ValueError, match="uotpool::triton_solve"):
            solve(*given[:i], other, *given[i + 1 :])
    out, *saved = solve(*given)
    for dout, tensors in ((out[:1], saved), (out, [*saved[1:], saved[0]])):
        with pytest.raises(ValueError, match="uotpool::triton_solve_backward"):
            solve_backward(dout, *tensors, *given, [True] * 5)


def test_operator_and_function_are_one(monkeypatch):
    """An eager call goes past the operators, which a traced one sees: to the same bits."""
    problem, weights = masked(2, 4, 5)._replace(scale=randn(5, seed=4)), modules("sinkhorn", 1)
    want = solved(problem, weights, "sinkhorn", impl="triton")
    monkeypatch.setattr(ops, "all_eager", lambda tensors: False)
    assert equal(want, solved(problem, weights, "sinkhorn", impl="triton")) == []


def test_a_sum_counts_in_float32():
    ones = torch.full((1, 2049, 1), 0.25, dtype=torch.float16)
    y = uot_pool(ones, 1.0, 0.7, 0.7, K=1, readout="sum", impl="triton")
    assert y.item() == float(torch.tensor(2049 * 0.25).half())


def test_compiled():
    torch._dynamo.reset()
    model = UOTPooling(D, impl="triton").double()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (5, 7):
        X, sets = randn(rows, D).requires_grad_(), {"index": torch.arange(rows) % 2, "dim_size": 2}
        wanted = [X, *model.parameters()]
        results = []
        for run in (model, compiled):
            y = run(X, **sets)
            results.append([y.detach(), *torch.autograd.grad(y.sin().sum(), wanted)])
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=tol.F64, atol=tol.F64)


@pytest.mark.parametrize("run", [uot_pool, uot_plan, lambda X, *rest, **how: solve(X, *arguments()[1:])[0]])
def test_second_derivative_names_the_reference(run):
    X = rand(6, D).requires_grad_()
    y = run(X, 0.5, 1.0, 1.0, K=1, impl="triton")
    (dX,) = torch.autograd.grad(y.square().sum(), X, create_graph=True)
    with pytest.raises(RuntimeError, match='impl="reference"'):
        torch.autograd.grad(dX.square().sum(), X)


def test_batched_gradients():
    X = rand(1, 3, 2).requires_grad_()
    y = uot_pool(X, 0.5, 1.0, 1.0, K=1, impl="triton")
    dys = torch.eye(2).double().reshape(2, 1, 2)
    (batched,) = torch.autograd.grad(y, X, dys, is_grads_batched=True, retain_graph=True)
    single = [torch.autograd.grad(y, X, dy, retain_graph=True)[0] for dy in dys]
    torch.testing.assert_close(batched, torch.stack(single))


@pytest.mark.parametrize("plan", [False, True])
def test_derivatives_that_are_not_wanted(plan):
    p = Arguments(*arguments(plan=plan, grad=False))
    out, saved = launch.forward(p)
    assert [t.shape for t in saved] == [torch.Size(shape) for shape in Saved.shapes(p)]
    dout = randn(*out.shape, seed=7)
    every = launch.backward(dout, p, saved, [True] * 5)
    for i in range(5):
        alone = launch.backward(dout, p, saved, [j == i for j in range(5)])
        assert torch.equal(alone[i], every[i])
        assert [d is None for d in alone] == [j != i for j in range(5)]


@pytest.mark.parametrize("dim", [1, 10, 64, 100, 512, 1024])
def test_tiles_hold_a_row_and_all_lanes(dim):
    for itemsize in (2, 4, 8):
        tile = launch.tile(dim, itemsize, 16)
        assert tile["C"] * tile["BL"] >= dim
        assert tile["R"] * tile["C"] * tile["W"] * tile["BL"] >= 32 * tile["num_warps"]


def test_what_the_backend_takes():
    X = dense(1, 3, 3).X
    assert resolve_impl(X, "sinkhorn", "triton") == "triton"
    assert resolve_impl(X, "sinkhorn") == "cpu"  # also where kernels are interpreted
    for wrong, how in (
        ("features", {"X": torch.rand(2, 2, 1025)}),
        ("solver", {"solver": "badmm-q", "rho": 1.0}),
        ("K=", {"K": "converged"}),
    ):
        with pytest.raises(ValueError, match=wrong):
            uot_pool(**{"X": X, "alpha0": 1.0, "alpha1": 1.0, "alpha2": 1.0} | how, impl="triton")
    with check(False), pytest.raises(ValueError, match=r"torch\.func"):
        torch.func.grad(lambda x: uot_pool(x, 0.5, 1.0, 1.0, impl="triton").sum())(X)
