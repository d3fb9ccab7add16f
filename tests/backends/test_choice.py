"""Which backend runs, and what is said where it is not the fastest."""

from __future__ import annotations

import pytest
import torch

import uotpool
from tests import tolerances as tol
from tests.backends.harness import dense, rand, solver_of
from tests.cases import SOLVERS, step
from uotpool import Newton, Sinkhorn, UOTPooling, backends, explain_impl, published, uot_pool
from uotpool.backends.cpu import library
from uotpool.backends.cpu.backend import CPU
from uotpool.solvers import Solver

X = dense(2, 6, 5).X
LOW = {torch.float16: tol.F16, torch.bfloat16: tol.BF16}
WITHOUT_KERNEL: tuple[Solver, ...] = (Newton(), Newton("quadratic"), published.Sinkhorn())

each_solver = pytest.mark.parametrize("solver", SOLVERS)


class Ran(Exception):
    """The kernels were called."""


@pytest.fixture
def trap(monkeypatch):
    def fail(call):
        raise Ran

    monkeypatch.setattr(library, "forward", fail)


def problem(X=X, solver: str = "sinkhorn", **options):
    return uotpool.Problem(X, alpha0=0.5, alpha1=1.0, alpha2=1.0, rho=step(solver), **options)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *LOW], ids=str)
@each_solver
def test_what_runs_on_the_kernels(trap, solver, dtype):
    posed, kernel = problem(X.to(dtype), solver), solver_of(solver, 2)
    for run in (posed.pool, posed.plan):
        for impl in ("auto", "cpu"):
            with pytest.raises(Ran):
                run(kernel, impl=impl)
        run(kernel, impl="reference")
    for impl in ("auto", "cpu"):
        layer = UOTPooling(5, kernel, impl=impl).to(dtype)
        for run in (layer, layer.plan, layer.scores):
            with pytest.raises(Ran):
                run(X.to(dtype))
    UOTPooling(5, kernel, impl="reference").to(dtype)(X.to(dtype))


@pytest.mark.parametrize("solver", WITHOUT_KERNEL, ids=str)
def test_solvers_without_a_kernel(trap, solver):
    problem().pool(solver)
    UOTPooling(5, solver).double()(X)
    for run in (
        lambda: problem().pool(solver, impl="cpu"),
        lambda: UOTPooling(5, solver, impl="cpu").double()(X),
    ):
        with pytest.raises(ValueError, match="impl"):
            run()


@each_solver
def test_no_steps_at_all(trap, solver):
    none = solver_of(solver, 0)
    assert problem(solver=solver).pool(none).isfinite().all()
    with pytest.raises(ValueError, match="impl"):
        problem(solver=solver).pool(none, impl="cpu")


def test_reasons(monkeypatch):
    meta = torch.empty(2, 3, 4, device="meta")
    assert explain_impl(X) == "cpu"
    assert explain_impl(meta).startswith("reference; cpu takes tensors on the CPU")
    for solver in WITHOUT_KERNEL:
        assert explain_impl(X, solver) == f"reference; cpu has no kernel for {solver}"
    assert explain_impl(X, Sinkhorn(0)).startswith("reference; cpu has nothing to solve")
    with pytest.raises(ValueError, match="solver"):
        explain_impl(X, "sinkhole")
    with pytest.raises(ValueError, match="impl"):
        uotpool.Problem(meta, alpha0=1.0, alpha1=1.0, alpha2=1.0).pool(impl="cpu")
    with pytest.raises(ValueError, match="impl"):
        backends.choose(X, Sinkhorn(), "gpu")
    monkeypatch.setattr(CPU, "why_not", lambda X, solver: "cannot be used: no compiler")
    assert explain_impl(X) == "reference; cpu cannot be used: no compiler"


@pytest.mark.parametrize("dtype", LOW, ids=str)
@pytest.mark.parametrize("plan", [False, True], ids=["pool", "plan"])
@each_solver
def test_low_precision(solver, plan, dtype):
    """Solved in float32; the input and the output are rounded, and so is the derivative by X."""
    results = []
    for x in (X.to(dtype), X.to(dtype).float()):
        x.requires_grad_()
        posed = problem(x, solver)
        y = (posed.plan if plan else posed.pool)(solver, impl="cpu")
        assert y.dtype == (torch.float32 if plan else x.dtype)
        (dX,) = torch.autograd.grad(y, x, rand(*y.shape).to(y.dtype))
        assert dX.dtype == x.dtype
        results.append((y.detach().float(), dX.float()))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=LOW[dtype], atol=LOW[dtype])


def test_a_default_device_does_not_matter():
    X, mask = torch.rand(2, 5, 3), torch.rand(2, 5) > 0.3
    pool = UOTPooling(3, alpha2=[0.1, 1.0, 2.0, 3.0], scale=[1.0, 0.0, -1.0])
    results = [uot_pool(X, 0.5, 1.0, 1.0, mask=mask), pool(X, mask=mask)]
    with torch.device("meta"):
        assert torch.equal(uot_pool(X, 0.5, 1.0, 1.0, mask=mask), results[0])
        assert torch.equal(pool(X, mask=mask), results[1])


@pytest.mark.parametrize("name", ["p0", "q0"])
def test_a_prior_on_another_device_is_refused(name):
    """Its address would be read as one of this machine's memory."""
    with pytest.raises(ValueError, match=name):
        UOTPooling(5, **{name: Elsewhere()}).double()(X)


class Elsewhere(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x if x.dim() == 2 else x[..., :1]).to("meta")
