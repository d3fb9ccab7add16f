"""Which implementation runs."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests import tolerances as tol
from tests.cases import SOLVERS, step
from tests.backends.harness import dense, rand
from tests.spelling import CLASSIC, make_layer, uot_plan, uot_pool
from uotpool import backends, explain_impl
from uotpool.backends.cpu import ops
from uotpool.backends.cpu.backend import CPU
from uotpool.solvers import SOLVERS as SOLVERS_IN_TORCH

X = dense(2, 6, 5).X
LOW = {torch.float16: tol.F16, torch.bfloat16: tol.BF16}

each_solver = pytest.mark.parametrize("solver", SOLVERS)


class Ran(Exception):
    """The kernels were called."""


@pytest.fixture
def trap(monkeypatch):
    def fail(*_, **__):
        raise Ran

    monkeypatch.setattr(ops, "solve", fail)


@each_solver
def test_resolve_impl(solver):
    assert resolve_impl(X, solver) == "cpu"
    assert resolve_impl(X, solver, "cpu") == "cpu"
    assert resolve_impl(X, solver, "reference") == "reference"
    assert resolve_impl(torch.empty(2, 3, 4, device="meta"), solver) == "reference"
    with pytest.raises(ValueError, match=r'X: expected for impl="cpu" a tensor on the CPU .*, got .* on meta'):
        resolve_impl(torch.empty(2, 3, 4, device="meta"), solver, "cpu")


@pytest.mark.parametrize("run", [uot_pool, uot_plan])
@each_solver
def test_what_runs_on_the_kernels(trap, solver, run):
    given = (X, 0.5, 1.0, 1.0)
    for impl in ("auto", "cpu"):
        with pytest.raises(Ran):
            run(*given, step(solver), solver=solver, impl=impl)
    for dtype in (torch.float32, *LOW):
        with pytest.raises(Ran):
            run(X.to(dtype), 0.5, 1.0, 1.0, step(solver), solver=solver)
    run(*given, step(solver), solver=solver, impl="reference")
    run(*given, step(solver), solver=solver, formulation="paper")
    run(*given, step(solver), solver=solver, K=0)
    run(*given, solver=solver, K="converged")


@each_solver
def test_layer_honours_impl(trap, solver):
    for impl in ("auto", "cpu"):
        layer = make_layer(5, **CLASSIC, solver=solver, impl=impl).double()
        with pytest.raises(Ran):
            layer(X)
        with pytest.raises(Ran):
            layer.plan(X)
    layer = make_layer(5, **CLASSIC, solver=solver, impl="reference").double()
    layer(X)
    layer.plan(X)


@pytest.mark.parametrize("setting", [{"formulation": "paper"}, {"K": "converged"}], ids=str)
@each_solver
def test_the_kernels_refuse_what_they_have_not(solver, setting):
    rho = None if "K" in setting else step(solver)
    message = r'impl: "cpu" has the K modules of formulation="exact" only, got (K|formulation)=.*; use "auto"'
    for run in (uot_pool, uot_plan):
        with pytest.raises(ValueError, match=message):
            run(X, 0.5, 1.0, 1.0, rho, solver=solver, impl="cpu", **setting)
    with pytest.raises(ValueError, match=message):
        make_layer(5, **CLASSIC, solver=solver, impl="cpu", **setting)


@each_solver
def test_the_kernels_refuse_other_devices(solver):
    with pytest.raises(ValueError, match='X: expected for impl="cpu" a tensor on the CPU'):
        uot_pool(torch.empty(2, 3, 4, device="meta"), 0.5, 1.0, 1.0, step(solver), solver=solver, impl="cpu")


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("run", [uot_pool, uot_plan])
@each_solver
def test_low_precision(solver, run, dtype):
    """Solved in float32; the input and the output are rounded, and so is the derivative by X."""
    results = []
    for x in (X.to(dtype), X.to(dtype).float()):
        x.requires_grad_()
        y = run(x, 0.5, 1.0, 1.0, step(solver), solver=solver, impl="cpu")
        assert y.dtype == x.dtype
        (dX,) = torch.autograd.grad(y, x, rand(*y.shape).to(y.dtype))
        assert dX.dtype == x.dtype
        results.append((y.detach().float(), dX.float()))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=LOW[dtype], atol=LOW[dtype])


@each_solver
def test_no_modules_at_all(solver):
    """K = 0 has nothing to fuse: impl="cpu" too runs the reference, and its result is the same."""
    for run in (uot_pool, uot_plan):
        results = [
            run(X, 0.5, 1.0, 1.0, step(solver), solver=solver, K=0, impl=i) for i in ("cpu", "reference")
        ]
        assert results[0].isfinite().all()
        assert torch.equal(*results)


def test_a_default_device_does_not_matter():
    X = torch.rand(2, 5, 3)
    mask = torch.rand(2, 5) > 0.3
    want = uot_pool(X, 0.5, 1.0, 1.0, mask=mask)
    with torch.device("meta"):
        assert torch.equal(uot_pool(X, 0.5, 1.0, 1.0, mask=mask), want)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("K", [0, 1, 3, "converged"])
def test_layers_of_every_length(K, shared):
    for fixed in ({}, {"alpha1": 0.7}):
        layer = make_layer(3, **CLASSIC, K=K, shared=shared, **fixed)
        assert layer(torch.rand(2, 5, 3)).shape == (2, 3)


def test_a_sign_that_only_a_flag_knows_of():
    X = torch.complex(torch.zeros(2, 4, 3), torch.rand(2, 4, 3)).conj().imag
    assert X.is_neg()
    want = uot_pool(X, 0.5, 1.0, 1.0, impl="reference")
    torch.testing.assert_close(uot_pool(X, 0.5, 1.0, 1.0), want)
    Y = torch.rand(2, 4, 3, requires_grad=True)
    dy = torch._neg_view(torch.rand(2, 3))
    grads = [torch.autograd.grad(uot_pool(Y, 0.5, 1.0, 1.0, impl=i), Y, dy)[0] for i in ("cpu", "reference")]
    torch.testing.assert_close(*grads)


def test_batched_gradients():
    X = torch.rand(2, 4, 3, requires_grad=True)
    y = uot_pool(X, 0.5, 1.0, 1.0)
    dys = torch.eye(6).reshape(6, 2, 3)
    (batched,) = torch.autograd.grad(y, X, dys, is_grads_batched=True, retain_graph=True)
    single = [torch.autograd.grad(y, X, dy, retain_graph=True)[0] for dy in dys]
    torch.testing.assert_close(batched, torch.stack(single))


def test_an_operator_refuses_what_does_not_fit():
    X, w = torch.rand(6, 3), torch.ones(3, 2)
    solve = torch.ops.uotpool.solve
    good = solve(X, None, None, 3, None, None, w, None, 2, "sinkhorn", False)
    turned = X.t().contiguous().t()
    for one in (None, torch.ones(1), torch.ones(1).expand(3)):
        same = solve(turned, None, None, 3, None, None, w, one, 2, "sinkhorn", False)
        torch.testing.assert_close(same, good)
    for X_, w_, scale, solver in (
        (X, w.double(), None, "sinkhorn"),
        (X, w, None, "badmm-e"),
        (X.half(), w.half(), None, "sinkhorn"),
        (X, w, torch.ones(2), "sinkhorn"),
        (X, w, torch.ones(()), "sinkhorn"),
        (X, w, torch.ones(3).double(), "sinkhorn"),
    ):
        with pytest.raises(ValueError, match="uotpool::solve"):
            solve(X_, None, None, 3, None, None, w_, scale, 2, solver, False)


def test_explain_impl():
    assert explain_impl(X) == "cpu"
    assert explain_impl(X.to("meta")).startswith(
        "reference; cpu expects a tensor on the CPU outside torch.func"
    )
    assert explain_impl(X, formulation="paper").endswith("only, got formulation='paper'")
    assert explain_impl(X, "badmm-q", converged=True).endswith('only, got K="converged"')
    with pytest.raises(ValueError, match="formulation: expected one of 'exact', 'paper', got 'print'"):
        explain_impl(X, formulation="print")
    with pytest.raises(ValueError, match="dim_size: expected"):
        explain_impl(X, dim_size=0)


def test_explain_impl_without_kernels(monkeypatch):
    monkeypatch.setattr(CPU, "unavailable", lambda: "no compiler")
    assert explain_impl(X) == "reference; cpu cannot be used: no compiler"


def test_more_modules_than_the_kernels_take_are_named():
    K = int(CPU.most_modules) + 1
    with pytest.raises(ValueError, match=f'K: expected at most {K - 1} modules for impl="cpu", got {K}'):
        backends.choose(X, K, backends.solver_options("sinkhorn", K, "exact", None, None, "cpu"))
    auto = backends.solver_options("sinkhorn", K, "exact", None, None, "auto")
    assert backends.choose(X, K, auto).name == "reference"
    assert backends.choose(X, K - 1, auto).name == "cpu"


def test_a_solver_without_a_kernel_runs_in_torch(monkeypatch):
    mine = dataclasses.replace(SOLVERS_IN_TORCH["sinkhorn"], name="mine")
    monkeypatch.setitem(SOLVERS_IN_TORCH, "mine", mine)
    assert torch.equal(uot_pool(X, 1.0, 1.0, 1.0, solver="mine"), uot_pool(X, 1.0, 1.0, 1.0, impl="reference"))
    assert explain_impl(X, "mine") == "reference; cpu has no kernel for solver='mine'"


@pytest.mark.parametrize("name", ["p0", "q0"])
def test_a_prior_on_another_device_is_refused(name):
    """Its address would be read as one of this machine's memory."""
    pool = make_layer(5, **CLASSIC, **{name: Elsewhere()}).double()
    with pytest.raises(ValueError, match=rf"{name}: expected the device of X \(cpu\), got meta"):
        pool(X)


class Elsewhere(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x if x.dim() == 2 else x[..., :1]).to("meta")
