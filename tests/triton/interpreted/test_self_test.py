"""`impl="auto"` uses the kernels after a comparison with the reference, and not where it fails."""

from __future__ import annotations

import warnings

import pytest
import torch
import triton
import triton.language as tl  # noqa: F401 # the interpreter wants it where a kernel is

import uotpool
from uotpool import Sinkhorn, explain_impl, uot_pool
from uotpool.backends.cpu.backend import CPU
from uotpool.backends.triton import launch, self_test
from uotpool.backends.triton.kernels import backward, forward, tiles

D = 3
SOLVER = Sinkhorn(2)
X = torch.rand(2, 4, D, generator=torch.Generator().manual_seed(0))


@triton.jit
def off_by_ten_percent(SCALE, d, here, STEP, CT):
    """Return what `tiles.scale_of` should not."""
    return tiles.scale_of(SCALE, d, here, STEP, CT) * 1.1


@triton.jit
def broken(SCALE, d, here, STEP, CT):
    return SCALE.there_is_no_such_method()


@pytest.fixture(autouse=True)
def without_verdicts(monkeypatch):
    """In a process where nothing was tested and "auto" takes Triton also for tensors on the CPU."""
    monkeypatch.setattr(self_test, "_verdicts", {})
    monkeypatch.setattr(CPU, "why_not", lambda X, solver: "is not what this test is of")
    monkeypatch.delenv("UOTPOOL_SELF_TEST", raising=False)


def pooled(impl="auto"):
    leaf = X.clone().requires_grad_(torch.is_grad_enabled())
    y = uot_pool(leaf, 0.5, 1.0, 0.7, solver=SOLVER, impl=impl)
    return [y.detach(), *(torch.autograd.grad(y.sum(), leaf) if torch.is_grad_enabled() else [])]


def chosen():
    return explain_impl(X).partition(";")[0]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dim", [1, 10, 130])
def test_right_kernels_pass(dim, dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert uotpool.self_test("cpu", dim, dtype)


def test_auto_tests_once(monkeypatch):
    state = torch.get_rng_state()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert chosen() == "triton"
    assert chosen() == "triton"  # with derivatives
    assert torch.equal(torch.get_rng_state(), state)
    monkeypatch.setattr(self_test, "_compare", None)  # never called again
    assert same(pooled(), pooled("triton"))
    assert uotpool.self_test("cpu", D)
    assert explain_impl(X).startswith("triton")


@pytest.mark.parametrize("kernel", [off_by_ten_percent, broken])
def test_a_wrong_kernel_is_not_used(monkeypatch, kernel):
    monkeypatch.setattr(forward, "scale_of", kernel)
    with pytest.warns(UserWarning, match="self-test"), torch.no_grad():
        values = pooled()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        results = pooled()
        assert not uotpool.self_test("cpu", D)
    assert "; triton failed its self-test: " in explain_impl(X)
    assert same(results, pooled("reference"))
    assert same(values, results[:1])
    if kernel is off_by_ten_percent:  # by name it runs all the same
        assert not torch.allclose(pooled("triton")[0], results[0], rtol=1e-3)


def test_a_wrong_derivative_leaves_values(monkeypatch):
    monkeypatch.setattr(backward, "scale_of", off_by_ten_percent)
    with torch.no_grad():
        assert same(pooled(), pooled("triton"))
    with pytest.warns(UserWarning, match="self-test"):
        assert same(pooled(), pooled("reference"))
    with torch.no_grad():
        assert chosen() == "triton"


def test_running_out_of_memory_is_no_verdict(monkeypatch):
    def forward(a, out, saved):
        raise torch.cuda.OutOfMemoryError

    with monkeypatch.context() as patch:
        patch.setattr(launch, "forward", forward)
        with pytest.raises(torch.cuda.OutOfMemoryError):
            pooled()
    assert chosen() == "triton"


def test_trust_by_the_environment(monkeypatch):
    monkeypatch.setenv("UOTPOOL_SELF_TEST", "0")
    monkeypatch.setattr(forward, "scale_of", off_by_ten_percent)
    assert same(pooled(), pooled("triton"))


class Model(torch.nn.Module):
    def forward(self, X):
        return uot_pool(X, 0.5, 1.0, 0.7, solver=SOLVER)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_trace_has_the_kernels_only_after_a_verdict(dynamic):
    def operators():
        torch._dynamo.reset()
        graphs = []
        run = torch.compile(
            Model(), fullgraph=True, dynamic=dynamic, backend=lambda graph, _: graphs.append(graph) or graph
        )
        torch.testing.assert_close(run(X), pooled()[0])
        return str(graphs[0].graph)

    with torch.no_grad():
        assert "uotpool.solve" not in operators()
        assert uotpool.self_test("cpu", D)
        assert "uotpool.solve" in operators()
    exported = torch.export.export(Model(), (X,))
    assert "uotpool.solve" in str(exported.graph)


def test_what_cannot_be_tested():
    with pytest.raises(ValueError, match="dim"):
        uotpool.self_test("cpu", 0)
    with pytest.raises(ValueError, match="features"):
        uotpool.self_test("cpu", 1025)
    with pytest.raises(ValueError, match="device"):
        uotpool.self_test("meta", D)
