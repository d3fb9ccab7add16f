"""The layers in place of torch's pooling layers."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import uotpool
from tests import tolerances as tol
from uotpool import (
    AdaptiveUOTPool2d,
    BregmanADMM,
    Learned,
    Sinkhorn,
    UOTPool2d,
    check,
)

AXES = (1, 2, 3)
MAX: dict[str, Any] = {"alpha0": 1e-3, "alpha1": 1e4, "alpha2": 0.0, "solver": Sinkhorn(1)}


def layer(name, axes):
    return getattr(uotpool, f"{name}{axes}d")


def torchs(name, axes):
    return getattr(F, f"{name}{axes}d")


def randn(*size, seed=0, dtype=torch.float64):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def geometries():
    sizes = itertools.product((1, 2, 3, 5), (1, 2, 3), (0, 1, 2), (False, True))
    return [(k, s, p, ceil) for k, s, p, ceil in sizes if p <= k // 2]


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize(("size", "stride", "padding", "ceil"), geometries())
def test_local_pools_have_torchs_sizes_and_limits(axes, size, stride, padding, ceil):
    """As the mean without padding, and as the maximum; unequal axes, windows that overlap or leave gaps."""
    for length in (5, 6, 8):
        x = randn(2, 3, *[length] * (axes - 1), length + 1)
        mean = layer("UOTPool", axes)(3, size, stride, padding, ceil, scale=Learned(0.0)).double()(x)
        options = {"ceil_mode": ceil, "count_include_pad": False}
        expected = torchs("avg_pool", axes)(x, size, stride, padding, **options)
        assert mean.shape == expected.shape
        torch.testing.assert_close(mean, expected, rtol=0, atol=tol.F64)
        most = torchs("max_pool", axes)(x, size, stride, padding, ceil_mode=ceil)
        found = layer("UOTPool", axes)(3, size, stride, padding, ceil, **MAX)(x)
        assert (most - found).abs().max() <= MAX["alpha0"] * torch.tensor(float(size**axes)).log() + tol.F64


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("out", [1, 2, 3, 5, 9, None])
def test_adaptive_pools_have_torchs_windows(axes, out):
    for length in (1, 4, 5, 7):
        x = randn(2, 3, *[length] * (axes - 1), length + 1)
        y = layer("AdaptiveUOTPool", axes)(3, out, scale=Learned(0.0)).double()(x)
        sizes = list(x.shape[2:]) if out is None else out
        torch.testing.assert_close(y, torchs("adaptive_avg_pool", axes)(x, sizes), rtol=0, atol=tol.F64)


def test_each_window_is_a_problem_of_its_own():
    """Against the layer for sets, window by window; in padding nothing is there."""
    x = randn(2, 3, 5, 7)
    pool = UOTPool2d(3, (3, 2), (2, 3), (1, 1)).double()
    assert "kernel_size=(3, 2), stride=(2, 3), padding=(1, 1)" in repr(pool)
    y, P = pool(x), pool.plan(x)
    assert P.shape == (2, 3, *y.shape[2:], 3, 2)
    for b, i, j in itertools.product(range(2), range(y.shape[2]), range(y.shape[3])):
        top, left = 2 * i - 1, 3 * j - 1
        inside = x[b, :, max(top, 0) : top + 3, max(left, 0) : left + 2]
        X = inside.flatten(1).T
        torch.testing.assert_close(y[b, :, i, j], pool.pool(X)[0], rtol=0, atol=tol.F64)
        there = P[b, :, i, j].flatten(1)
        present = torch.tensor(
            [0 <= top + a < 5 and 0 <= left + c < 7 for a, c in itertools.product(range(3), range(2))]
        )
        torch.testing.assert_close(there[:, present].T, pool.pool.plan(X), rtol=0, atol=tol.F64)
        assert (there[:, ~present] == 0).all()


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("options", [{}, {"scale": Learned(0.0)}, {"reduce": "sum"}], ids=str)
@pytest.mark.parametrize("geometry", [(2,), (3, 2, 1), (3, 1, 1), (2, 3), ((1, 4), (1, 2), (0, 2))], ids=str)
def test_local_pools_agree_with_the_reference(geometry, options, memory_format):
    """On windows side by side, overlapping, with gaps and with padding: the output and all derivatives."""
    x = randn(2, 5, 7, 9).contiguous(memory_format=memory_format)
    results = []
    for impl in ("cpu", "reference"):
        torch.manual_seed(0)
        pool = UOTPool2d(5, *geometry, ceil_mode=True, impl=impl, **options).double()
        leaf = x.clone().requires_grad_()
        y = pool(leaf)
        leaves = [leaf, *pool.parameters()]
        results.append([y.detach(), *torch.autograd.grad(y, leaves, randn(*y.shape, seed=1))])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=tol.F64_GRADIENT, atol=tol.F64_GRADIENT)


@pytest.mark.parametrize("solver", [Sinkhorn(2), BregmanADMM(K=2), BregmanADMM("quadratic", K=2)], ids=str)
@pytest.mark.parametrize(
    "make",
    [
        lambda **uot: AdaptiveUOTPool2d(3, **uot),
        lambda **uot: AdaptiveUOTPool2d(3, (2, 3), **uot),
        lambda **uot: UOTPool2d(3, 3, 2, 1, **uot),
    ],
    ids=["global", "adaptive", "local"],
)
def test_gradients(solver, make):
    pool = make(solver=solver).double()
    x = randn(1, 3, 4, 5).requires_grad_()
    names, values = zip(*pool.named_parameters(), strict=True)

    def f(x, *weights):
        return torch.func.functional_call(pool, dict(zip(names, weights, strict=True)), x)

    assert torch.autograd.gradcheck(f, (x, *(v.detach().clone().requires_grad_() for v in values)))


def test_channels_last_gives_the_same_without_a_copy():
    x = randn(2, 8, 4, 6, dtype=torch.float32)
    last = x.to(memory_format=torch.channels_last)
    for pool in (AdaptiveUOTPool2d(8), AdaptiveUOTPool2d(8, (2, 3)), UOTPool2d(8, 2), UOTPool2d(8, 3, 2, 1)):
        torch.testing.assert_close(pool(x), pool(last), rtol=0, atol=tol.F32)
        assert pool(last).is_contiguous(memory_format=torch.channels_last)
    seen = []
    pool = AdaptiveUOTPool2d(8)
    pool.pool.register_forward_pre_hook(lambda _, args, sets: seen.append(sets["X"]), with_kwargs=True)
    pool(last)
    assert seen[0].data_ptr() == last.data_ptr()
    assert seen[0].is_contiguous()


def test_a_bad_pixel_spoils_its_windows_only():
    x = randn(1, 3, 6, 6)
    clean = UOTPool2d(3, 2).double()
    expected = clean(x)
    x[0, 1, 2, 3] = torch.nan
    with check(False):
        y = clean(x)
    spoilt = torch.zeros(3, 3, dtype=torch.bool)
    spoilt[1, 1] = True
    assert torch.equal(y[..., ~spoilt], expected[..., ~spoilt])
    assert y[..., spoilt].isnan().any()
