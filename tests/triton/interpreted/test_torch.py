"""The GPU kernels as torch operators: schemas, compilers, exporters, and derivatives that they do not have."""

from __future__ import annotations

import pytest
import torch

from tests import tolerances as tol
from tests.kernels.harness import dense, equal, masked, modules, rand, randn, solved
from tests.spelling import make_layer, uot_plan, uot_pool
from uotpool import backends, check, explain_impl
from uotpool.backends.triton import calls, ops
from uotpool.backends.triton.arguments import Arguments, Saved
from uotpool.backends.triton.backend import TRITON
from uotpool.solvers import as_solver

D = 3
PTR, ORDER = torch.tensor([0, 2, 2, 6]), torch.tensor([3, 1, 0, 5, 2, 4])


def arguments(*, plan=False, grad=True):
    """Of torch.ops.uotpool.triton_solve, but for `save`."""
    weights = torch.stack([w for w in modules("sinkhorn", 1) if w is not None])
    floats = [t.requires_grad_(grad) for t in (rand(6, D), randn(3, D), randn(6), weights, randn(D, seed=2))]
    X, log_p0, log_q0, weights, scale = floats
    present = torch.ones(6, dtype=torch.bool)
    return X, PTR, ORDER, present, 0, log_p0, log_q0, weights, scale, 3, "sinkhorn", plan


def test_opcheck():
    torch.library.opcheck(torch.ops.uotpool.triton_solve.default, (*arguments(), True))
    given = arguments(grad=False)
    out, *saved = torch.ops.uotpool.triton_solve(*given, True)
    wanted = [True, False, True, True, True]
    torch.library.opcheck(
        torch.ops.uotpool.triton_solve_backward.default, (torch.ones_like(out), *saved, *given, wanted)
    )


def test_operators_refuse_what_does_not_fit():
    given = arguments(grad=False)
    for i, other in (
        (0, given[0].float()),
        (1, PTR[:2]),
        (2, ORDER.int()),
        (7, given[7].float()),
        (8, randn(2)),
    ):
        with pytest.raises(ValueError, match="uotpool::triton_solve"):
            torch.ops.uotpool.triton_solve(*given[:i], other, *given[i + 1 :], True)
    out, *saved = torch.ops.uotpool.triton_solve(*given, True)
    with pytest.raises(ValueError, match="dout has not the shape"):
        torch.ops.uotpool.triton_solve_backward(out[:1], *saved, *given, [True] * 5)
    with pytest.raises(ValueError, match="expected what triton_solve saved"):
        torch.ops.uotpool.triton_solve_backward(out, *saved[1:], saved[0], *given, [True] * 5)


def test_operator_and_function_are_one(monkeypatch):
    """An eager call takes a shorter way than a traced one, which sees operators: to the same bits."""
    problem, weights = masked(2, 4, 5)._replace(scale=randn(5, seed=4)), modules("sinkhorn", 1)
    want = solved(problem, weights, "sinkhorn", impl="triton")
    monkeypatch.setattr(ops, "all_eager", lambda tensors: False)
    assert equal(want, solved(problem, weights, "sinkhorn", impl="triton")) == []


def test_a_sum_readout():
    """N times the mean, with gradients; N is counted in float32 where X of half precision is read as it is."""
    X = randn(2, 5, D).requires_grad_()
    mask = torch.tensor([[True] * 5, [True, False, True, False, False]])
    y = {
        impl: uot_pool(X, 1.0, 0.7, 0.7, K=2, mask=mask, readout="sum", impl=impl)
        for impl in ("triton", "reference")
    }
    torch.testing.assert_close(y["triton"], y["reference"], rtol=tol.F64, atol=tol.F64)
    ours, theirs = (torch.autograd.grad(out.sin().sum(), X)[0] for out in y.values())
    torch.testing.assert_close(ours, theirs, rtol=tol.F64, atol=tol.F64)
    ones = torch.full((1, 2049, 1), 0.25, dtype=torch.float16)
    y = uot_pool(ones, 1.0, 0.7, 0.7, K=1, readout="sum", impl="triton")
    assert y.item() == float(torch.tensor(2049 * 0.25).half())


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pool = make_layer(D, impl="triton").double()  # so that it cannot fall back

    def forward(self, X: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return self.pool(X.tanh(), index=index, dim_size=2)


def test_compiled_and_exported():
    torch._dynamo.reset()
    model = Model()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (5, 7):
        X, index = randn(rows, D).requires_grad_(), torch.arange(rows) % 2
        wanted = [X, *model.parameters()]
        found = [
            [y.detach(), *torch.autograd.grad(y.sin().sum(), wanted)]
            for y in (model(X, index), compiled(X, index))
        ]
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b, rtol=tol.F64, atol=tol.F64)
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(model, (X.detach(), index), dynamic_shapes=({0: rows}, {0: rows}))
    assert "uotpool.triton_solve" in str(program.graph)
    X, index = randn(4, D, seed=1), torch.tensor([1, 0, 0, 1])
    assert torch.equal(program.module()(X, index), model(X, index))
    torch._dynamo.reset()


@pytest.mark.parametrize("run", [uot_pool, uot_plan])
def test_second_derivative_names_the_reference(run):
    X = dense(1, 3, 3).X.requires_grad_()
    y = run(X, 0.5, 1.0, 1.0, K=1, impl="triton")
    (dX,) = torch.autograd.grad(y.square().sum(), X, create_graph=True)
    with pytest.raises(RuntimeError, match='impl="reference"'):
        torch.autograd.grad(dX.square().sum(), X)


def test_second_derivative_through_the_operators():
    given = arguments()
    y = torch.ops.uotpool.triton_solve(*given, True)[0]
    (dX,) = torch.autograd.grad(y.square().sum(), given[0], create_graph=True)
    with pytest.raises(RuntimeError, match='impl="reference"'):
        torch.autograd.grad(dX.square().sum(), given[0])


def test_transforms_are_refused():
    X = dense(2, 3, 3).X
    with check(False), pytest.raises(ValueError, match=r'for impl="triton" a tensor outside torch\.func'):
        torch.func.grad(lambda x: uot_pool(x, 0.5, 1.0, 1.0, impl="triton").sum())(X)


def test_batched_gradients():
    X = rand(1, 3, 2).requires_grad_()
    y = uot_pool(X, 0.5, 1.0, 1.0, K=1, impl="triton")
    dys = torch.eye(2).double().reshape(2, 1, 2)
    (batched,) = torch.autograd.grad(y, X, dys, is_grads_batched=True, retain_graph=True)
    single = [torch.autograd.grad(y, X, dy, retain_graph=True)[0] for dy in dys]
    torch.testing.assert_close(batched, torch.stack(single))


def test_derivatives_that_are_not_wanted():
    given = arguments(grad=False)
    p = Arguments(*given)
    out, saved = calls.forward(p)
    dout = randn(*out.shape, seed=7)
    every = calls.backward(dout, p, saved, [True] * 5)
    for i in range(5):
        alone = calls.backward(dout, p, saved, [j == i for j in range(5)])
        assert torch.equal(alone[i], every[i])
        assert [d is None for d in alone] == [j != i for j in range(5)]


def test_memory_between_the_passes():
    """At most (2 K + 4) B D + K M numbers, and nothing without derivatives."""
    for plan in (False, True):
        p = Arguments(*arguments(plan=plan, grad=False))
        B, K, M = p.num_sets, p.K, p.X.shape[0]
        out, saved = calls.forward(p)
        assert sum(t.numel() for t in saved) <= (2 * K + 4) * B * D + K * M
        assert [t.shape for t in saved] == [torch.Size(shape) for shape in Saved.shapes(p)]
        again, nothing = calls.forward(p, save=False)
        assert nothing is None
        assert torch.equal(again, out)


def test_choice_by_shapes_alone():
    """Small sets have a program each, few large ones share theirs, for any number of processors."""
    for processors in (16, 108, 304):
        assert calls.choose(10_000, 1000, 64, 1, 4, processors).chunk == 0
        assert calls.choose(10**6, 1, 512, 4, 4, processors).chunk >= 64
    for D in (1, 10, 64, 100, 512, 1024):
        for itemsize in (2, 4, 8):
            for tile in calls.choose(50, 3, D, 1, itemsize, 108)[1:]:
                assert tile.C * tile.BL >= D
                assert tile.R * tile.C * tile.W * tile.BL >= 32 * tile.warps


def test_what_the_backend_takes():
    X = dense(1, 3, 3).X
    for solver in map(as_solver, ("sinkhorn", "badmm-q")):
        assert backends.choose(X, solver, "triton") is TRITON
        assert backends.choose(X, solver).name == "cpu"  # also where kernels are interpreted
    for how in ({"X": torch.rand(2, 2, 1025)}, {"K": "converged"}, {"K": 0}):
        with pytest.raises(ValueError, match=r"^impl: "):
            uot_pool(**{"X": X, "alpha0": 1.0, "alpha1": 1.0, "alpha2": 1.0, "impl": "triton"} | how)
    assert explain_impl(X) == "cpu"
    assert "triton takes tensors on a CUDA or ROCm GPU" in explain_impl(X.to("meta"))
    assert backends.BACKENDS["triton"] is TRITON
