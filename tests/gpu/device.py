"""The GPU kernels on a real GPU: `make test-gpu`. With TRITON_INTERPRET=1 the same on the CPU, with tiny sets.

pytest does not collect this file by itself, as it needs a GPU or a process of its own; `test_device.py` runs
it in the interpreter. Without either it fails: to skip would look as if the kernels had been tested.
"""

from __future__ import annotations

import copy
import os

import pytest
import torch

import uotpool
from tests.spelling import uot_plan, uot_pool
from uotpool.backends.triton import calls, choice

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.exit("test-gpu: torch sees no GPU here; TRITON_INTERPRET=1 make test-gpu interprets the kernels", 1)

DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
SIZES = {"small": ([5, 0, 9, 1], 10)}
if not INTERPRETED:
    SIZES |= {
        "wide": ([300, 0, 77, 1], 600),
        "large": ([20_000, 3], 512),
        "many": ([12] * 500, 64),
        "odd": ([999], 37),
    }
REGIMES = {"sets": 0, "chunks": 64}
# Of the largest entry: float32 sums in another order, and the approximate exponentials and logarithms of a GPU.
CLOSE = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 2e-2}
ON_GPU_ONLY = pytest.mark.skipif(INTERPRETED, reason="needs a GPU: the interpreter has no streams")


def problem(name, dtype):
    """X, offsets, and what is learned beside X: alpha0, alpha1, alpha2, scale, p0."""
    sizes, D = SIZES[name]
    g = torch.Generator().manual_seed(0)
    X = torch.randn(sum(sizes), D, generator=g, dtype=torch.float64).to(dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    weights = [0.5 + torch.rand(2, generator=g, dtype=torch.float64).to(wide) for _ in range(3)]
    scale = torch.randn(D, generator=g, dtype=torch.float64).to(wide)
    p0 = torch.randn(D, generator=g, dtype=torch.float64).softmax(-1).to(wide)
    return X, torch.tensor([0, *sizes]).cumsum(0), [*weights, scale, p0]


def solved(function, X, ptr, others, **how):
    """Output, and derivatives by X and all others."""
    leaves = [t.detach().clone().requires_grad_() for t in (X, *others)]
    x, a0, a1, a2, scale, p0 = leaves
    with uotpool.check(False):  # p0 sums to 1 in its own dtype only
        y = function(x, a0, a1, a2, scale=scale, p0=p0, ptr=ptr, **how)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return [y.detach(), *torch.autograd.grad(y, leaves, dy.to(y.dtype).to(y.device))]


def test_quadratic_admm():
    """Its large sets take the reference."""
    X, ptr, others = problem("small", torch.float32)
    rho = torch.ones(2)

    def run(impl, device, dtype):
        leaves = [t.detach().to(device, dtype).requires_grad_() for t in (X, *others[:3], rho)]
        with uotpool.check(False):
            y = uot_pool(*leaves, ptr=ptr.to(device), solver="badmm-q", impl=impl)
        return [y.detach(), *torch.autograd.grad(y, leaves, torch.ones_like(y))]

    wanted, found = run("reference", "cpu", torch.float64), run("triton", DEVICE, torch.float32)
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got.double().cpu(), want, rtol=1e-3, atol=1e-4 * float(want.abs().max()))


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize(("kernel", "stride", "padding"), [(2, 2, 0), (3, 2, 1)])
def test_windows(kernel, stride, padding, memory_format):
    torch.manual_seed(0)
    size = (1, 3, 6, 6) if INTERPRETED else (4, 64, 56, 56)
    layer = uotpool.UOTPool2d(size[1], kernel, stride, padding, solver=uotpool.Sinkhorn(2), impl="triton")
    plain = copy.deepcopy(layer).double()
    plain.pool.impl = "reference"
    X = torch.randn(size, dtype=torch.float64).contiguous(memory_format=memory_format)
    found = []
    for model, x in ((plain, X), (layer.to(DEVICE), X.float().to(DEVICE))):
        x.requires_grad_()
        y = model(x)
        found.append([y.detach(), *torch.autograd.grad(y.square().sum(), [x, *model.parameters()])])
    for want, got in zip(*found, strict=True):
        bound = 1e-4 * max(float(want.abs().max()), 1e-3)
        torch.testing.assert_close(got.double().cpu(), want, rtol=0, atol=bound)


def forced(monkeypatch, regime):
    def chosen(p):
        D, size = p.X.shape[1], p.X.element_size()
        return choice.by_chunk(D, size, REGIMES[regime]) if REGIMES[regime] else choice.by_set(D, size)

    monkeypatch.setattr(calls, "chosen", chosen)


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("name", SIZES)
def test_values_and_derivatives(name, dtype, regime, monkeypatch):
    forced(monkeypatch, regime)
    X, ptr, others = problem(name, dtype)
    wanted = solved(uot_pool, X.double(), ptr, [t.double() for t in others], impl="reference")
    found = solved(uot_pool, X.to(DEVICE), ptr.to(DEVICE), [t.to(DEVICE) for t in others], impl="triton")
    for got, want in zip(found, wanted, strict=True):
        bound = CLOSE[dtype] * max(float(want.abs().max()), 1e-3) * (100 if got is not found[0] else 1)
        torch.testing.assert_close(got.double().cpu(), want, rtol=0, atol=bound)


@pytest.mark.parametrize("regime", REGIMES)
def test_plan(regime, monkeypatch):
    forced(monkeypatch, regime)
    X, ptr, others = problem("small", torch.float32)
    wanted = solved(uot_plan, X.double(), ptr, [t.double() for t in others], impl="reference")
    found = solved(uot_plan, X.to(DEVICE), ptr.to(DEVICE), [t.to(DEVICE) for t in others], impl="triton")
    torch.testing.assert_close(found[0].double().cpu(), wanted[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("regime", REGIMES)
def test_the_same_bits_each_time(regime, monkeypatch):
    forced(monkeypatch, regime)
    X, ptr, others = problem(list(SIZES)[-1], torch.float32)
    given = (X.to(DEVICE), ptr.to(DEVICE), [t.to(DEVICE) for t in others])
    first, second = (solved(uot_pool, *given, impl="triton") for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@ON_GPU_ONLY
def test_auto_takes_the_kernels():
    assert uotpool.explain_impl(torch.empty(1, 2, 3, device=DEVICE)) == "triton"


@ON_GPU_ONLY
def test_the_host_waits_for_nothing():
    X, ptr, others = problem("wide", torch.float32)
    given = (X.to(DEVICE), ptr.to(DEVICE), [t.to(DEVICE) for t in others])
    solved(uot_pool, *given, impl="triton")  # compiles
    x = given[0].requires_grad_()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with uotpool.check(False):
            uot_pool(x, 1.0, 1.0, 1.0, ptr=given[1], impl="triton").sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@ON_GPU_ONLY
@pytest.mark.parametrize("regime", REGIMES)
def test_a_cuda_graph_replays_a_call(regime, monkeypatch):
    forced(monkeypatch, regime)
    X = torch.randn(4, 500, 64, device=DEVICE)
    weights = torch.ones(3, 2, device=DEVICE)
    with torch.no_grad(), uotpool.check(False):
        uot_pool(X, *weights, impl="triton")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = uot_pool(X, *weights, impl="triton")
        X.copy_(torch.randn(4, 500, 64))
        graph.replay()
        torch.testing.assert_close(y, uot_pool(X, *weights, impl="triton"), rtol=0, atol=0)
