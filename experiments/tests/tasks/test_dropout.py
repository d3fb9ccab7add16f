"""ReLU and dropout in one against what torch's two do."""

from __future__ import annotations

import pytest
import torch
from uotpool_experiments.tasks.mil.dropout import ReLUDropout

N = 400_000


@pytest.mark.parametrize("p", [0.1, 0.5, 0.75, 0.9])
def test_rate_scale_and_expectation(p):
    layer = ReLUDropout(p)
    kept = round(256 * (1 - p)) / 256
    y = layer(torch.ones(N))
    assert y.unique().tolist() == pytest.approx([0, 1 / kept])
    error = 5 * (kept * (1 - kept) / N) ** 0.5
    assert float((y > 0).float().mean()) == pytest.approx(kept, abs=error)
    assert float(y.mean()) == pytest.approx(1, abs=error / kept)


def test_keeps_each_value_by_itself():
    """No byte of the random words is like another: neighbours, and values 8 apart, are independent."""
    kept = (ReLUDropout(0.5)(torch.ones(N // 8, 8)) > 0).double()
    correlation = torch.corrcoef(kept.T)
    assert (correlation - torch.eye(8)).abs().max() < 5 * (8 / N) ** 0.5
    assert (kept.mean(0) - 0.5).abs().max() < 5 * (2 / N) ** 0.5  # each of the 8 bytes of a word
    following = torch.corrcoef(torch.stack([kept[:-1].flatten(), kept[1:].flatten()]))[0, 1]
    assert following.abs() < 5 * N**-0.5


def test_is_relu_times_a_mask_and_so_is_the_gradient():
    x = torch.randn(50, 33, requires_grad=True)
    y = ReLUDropout(0.25)(x)
    dy = torch.randn_like(y)
    (dx,) = torch.autograd.grad(y, x, dy)
    scale = 256 / 192
    mask = y != 0
    assert torch.equal(y, torch.where(mask, x * scale, 0.0))
    assert not mask[x <= 0].any()
    assert 0.6 < mask[x > 0].float().mean() < 0.9
    assert torch.equal(dx, torch.where(mask, dy * scale, 0.0))


def test_evaluation_is_relu():
    x = torch.randn(100, requires_grad=True)
    layer = ReLUDropout(0.5).eval()
    y = layer(x)
    assert torch.equal(y, x.relu())
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], (x > 0).float())


def test_no_dropout():
    x = torch.randn(100)
    for p in (0.0, 1e-4):  # rounded to 0
        assert torch.equal(ReLUDropout(p)(x), x.relu())


def test_follows_the_seed_and_changes_from_call_to_call():
    layer, x = ReLUDropout(0.5), torch.ones(1000)
    torch.manual_seed(3)
    first, second = layer(x), layer(x)
    torch.manual_seed(3)
    assert torch.equal(layer(x), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (8,), (3, 5), (2, 3, 4), (0, 4)])
def test_every_shape(shape):
    x = torch.ones(shape, requires_grad=True)
    y = ReLUDropout(0.5)(x)
    assert y.shape == shape
    assert torch.autograd.grad(y.sum(), x)[0].shape == shape


def test_of_a_view_that_is_not_contiguous():
    x = torch.randn(40, 30)
    torch.manual_seed(1)
    straight = ReLUDropout(0.5)(x.T.contiguous())
    torch.manual_seed(1)
    assert torch.equal(ReLUDropout(0.5)(x.T), straight)


def test_nan_is_not_hidden():
    y = ReLUDropout(0.5)(torch.full((100,), torch.nan))
    assert y.isnan().any()


def test_float64():
    y = ReLUDropout(0.5)(torch.ones(100, dtype=torch.float64))
    assert y.dtype == torch.float64
    assert set(y.tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("p", [1.0, 0.999, -0.1, 2.0])
def test_wrong_rates(p):
    with pytest.raises(ValueError, match=r"p: expected a number in \[0, 1\)"):
        ReLUDropout(p)


def test_is_shown_with_its_rate():
    assert repr(ReLUDropout(0.5)) == "ReLUDropout(p=0.5)"
