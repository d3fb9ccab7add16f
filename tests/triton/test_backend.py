"""When the GPU kernels are taken, and what is said where they are not; nothing here needs triton or a GPU."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from uotpool import Newton, Sinkhorn, cli, explain_impl, published, uot_pool
from uotpool.backends.triton import backend


@pytest.fixture
def usable(monkeypatch):
    """As where triton is installed and passed its self-test."""
    monkeypatch.setattr(backend, "_REASON", "")
    monkeypatch.setenv("UOTPOOL_SELF_TEST", "0")


def fake(D=3, device="cuda", dtype=torch.float32):
    """Return a tensor on a GPU that is not there."""
    with FakeTensorMode():
        return torch.empty(2, 5, D, device=device, dtype=dtype)


def chosen(solver="sinkhorn", **tensor):
    return explain_impl(fake(**tensor), solver).partition(";")[0]


def test_what_a_gpu_tensor_gets(usable):
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert chosen(dtype=dtype) == "triton"
    assert chosen(D=1024) == "triton"
    assert chosen(D=1025) == chosen(device="meta") == "reference"
    for solver in ("badmm-e", "badmm-q", published.Sinkhorn(), Newton(), Sinkhorn(0)):
        assert chosen(solver) == "reference"


def test_reasons(usable, monkeypatch):
    assert explain_impl(fake()).startswith("triton; cpu takes tensors on the CPU")
    assert "triton takes at most 1024 features" in explain_impl(fake(1025))
    for solver in ("badmm-e", published.Sinkhorn(), Newton()):
        assert "triton has kernels for Sinkhorn alone, got" in explain_impl(fake(), solver)
    monkeypatch.setattr(backend, "_REASON", "no such thing")
    assert explain_impl(fake()).endswith("triton cannot be used: no such thing")
    assert chosen() == "reference"


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_fake_tensor_has_no_self_test(usable, monkeypatch, dtype):
    """Nor has a trace or a CUDA graph that is captured: nothing can be compared there."""
    monkeypatch.delenv("UOTPOOL_SELF_TEST")
    assert chosen(dtype=dtype) == "reference"
    reason = explain_impl(fake(dtype=dtype))
    assert f'uotpool.self_test("cuda:0", 3, {dtype})' in reason


def test_an_old_gpu_gets_the_reference(usable, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 0))
    assert "triton takes a GPU of compute capability 7.5 or newer (this one has 7.0)" in explain_impl(fake())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (7, 5))
    assert chosen() == "triton"


@pytest.mark.parametrize(("version", "reason"), [("3.1.0", "triton 3.2 or newer, got 3.1.0"), ("3.10.0", "")])
def test_versions_of_triton(monkeypatch, version, reason):
    monkeypatch.setattr(backend.util, "find_spec", lambda name: object())
    monkeypatch.setattr(metadata, "version", lambda name: version)
    assert reason in backend._missing()
    assert bool(reason) == bool(backend._missing())
    monkeypatch.setattr(backend.util, "find_spec", lambda name: None)
    assert "not installed" in backend._missing()


def test_a_named_backend_that_cannot_be_used(monkeypatch):
    X = torch.rand(2, 3, 4)
    monkeypatch.setattr(backend, "_REASON", "no triton")
    with pytest.raises(ValueError, match="impl: 'triton' cannot be used: no triton; use impl='auto'"):
        uot_pool(X, 1.0, 1.0, 1.0, impl="triton")
    monkeypatch.setattr(backend, "_REASON", "")
    with pytest.raises(ValueError, match=r"impl: .* CUDA or ROCm GPU"):
        uot_pool(X, 1.0, 1.0, 1.0, impl="triton")


def test_info(usable, monkeypatch):
    assert "triton    available (the steps of Sinkhorn on CUDA and ROCm" in cli.info()
    monkeypatch.setattr(backend, "_REASON", "no triton")
    assert "triton    not available: no triton" in cli.info()


def test_import_leaves_triton_alone():
    """Nor does a call on the CPU import it, or ask for a backend."""
    code = (
        "import sys, torch, uotpool; X = torch.rand(2, 3, 4); uotpool.uot_pool(X, 1.0, 1.0, 1.0);"
        "uotpool.explain_impl(X.to('meta')); print('triton' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
