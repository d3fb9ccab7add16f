"""Which implementation runs."""

from __future__ import annotations

import pytest
import torch

from tests import tolerances as tol
from tests.cases import SOLVERS, step
from tests.kernels.harness import dense, rand
from uotpool import UOTPooling, resolve_impl, uot_plan, uot_pool
from uotpool.kernels import ops

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
    with pytest.raises(ValueError, match=r'X: expected a tensor on the CPU for impl="cpu", got .* on meta'):
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
        layer = UOTPooling(5, solver=solver, impl=impl).double()
        with pytest.raises(Ran):
            layer(X)
        with pytest.raises(Ran):
            layer.plan(X)
    layer = UOTPooling(5, solver=solver, impl="reference").double()
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
        UOTPooling(5, solver=solver, impl="cpu", **setting)


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
