"""One number per sample: the marginal of the plan, and contributions to an output."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.spelling import classic, make_layer
from tests.tolerances import F64
from uotpool import UOTPooling

D = 5
SIZES = [4, 0, 1, 7]
PTR = torch.tensor([0, 4, 4, 5, 12])
INDEX = torch.repeat_interleave(torch.arange(4), torch.tensor(SIZES))


@pytest.fixture
def X():
    return torch.randn(12, D, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


@pytest.fixture
def head():
    torch.manual_seed(1)
    return nn.Linear(D, 2, dtype=torch.float64)


def layers():
    torch.manual_seed(0)
    yield make_layer(D, dtype=torch.float64)
    yield classic(D, solver="badmm-q", dtype=torch.float64)
    yield UOTPooling.attention(D, dtype=torch.float64)
    yield classic(D, formulation="paper", readout="authors", dtype=torch.float64)


def test_marginals_are_those_of_the_plan_and_add_up_to_one(X):
    for pool in list(layers())[:3]:
        found = pool.scores(X, ptr=PTR)
        torch.testing.assert_close(found, pool.plan(X, ptr=PTR).sum(-1), rtol=F64, atol=F64)
        total = torch.zeros(4, dtype=X.dtype).index_add(0, INDEX, found)
        torch.testing.assert_close(total, torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=X.dtype), rtol=F64, atol=F64)
        assert not found.requires_grad


def test_contributions_to_a_linear_output_add_up_to_it(X, head):
    for pool in layers():
        found = pool.scores(X, ptr=PTR, output=lambda y: head(y)[:, 1])
        total = torch.zeros(4, dtype=X.dtype).index_add(0, INDEX, found)
        expected = head(pool(X, ptr=PTR))[:, 1] - head.bias[1]
        torch.testing.assert_close(total, expected.detach(), rtol=F64, atol=F64)
        given = pool.scores(X, ptr=PTR, output=head.weight[1])
        torch.testing.assert_close(given, found, rtol=F64, atol=F64)
        per_set = pool.scores(X, ptr=PTR, output=head.weight[1].expand(4, D))
        torch.testing.assert_close(per_set, found, rtol=F64, atol=F64)


def test_contributions_by_an_independent_computation(X, head):
    """sum_d w_nd X_nd g_d, set by set, from the plan; the output is not linear here."""
    pool = next(layers())
    found = pool.scores(X, ptr=PTR, output=lambda y: head(y).square().sum(-1, keepdim=True))
    P = pool.plan(X, ptr=PTR).detach()
    for begin, end in ((0, 4), (4, 5), (5, 12)):
        W = P[begin:end] / P[begin:end].sum(0)
        y = (W * X[begin:end]).sum(0).requires_grad_()
        (g,) = torch.autograd.grad(head(y).square().sum(), y)
        torch.testing.assert_close(found[begin:end], (W * X[begin:end]) @ g, rtol=F64, atol=F64)


@pytest.mark.parametrize("outputs", [0, 1, 2])
def test_every_layout_gives_the_same_scores(X, head, outputs):
    """The mass of the plan, contributions to one output, and to two."""
    pool = next(layers())
    options = {"output": (None, lambda y: head(y)[:, 0], head)[outputs]}
    expected = pool.scores(X, ptr=PTR, **options)
    torch.testing.assert_close(pool.scores(X, INDEX, dim_size=4, **options), expected, rtol=F64, atol=F64)
    mixed = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        pool.scores(X[mixed], INDEX[mixed], **options), expected[mixed], rtol=F64, atol=F64
    )
    mask = torch.arange(7) < torch.tensor(SIZES)[:, None]
    dense = torch.full((4, 7, D), torch.nan, dtype=X.dtype)
    dense[mask] = X
    found = pool.scores(dense, mask=mask, **options)
    torch.testing.assert_close(found[mask], expected, rtol=F64, atol=F64)
    assert bool((found[~mask] == 0).all())
    nested = torch.nested.nested_tensor_from_jagged(X, PTR)
    torch.testing.assert_close(pool.scores(nested, **options).values(), expected, rtol=F64, atol=F64)
    one = pool.scores(X[:4], **options)
    torch.testing.assert_close(one, expected[:4], rtol=F64, atol=F64)
    head.half()
    half = pool.scores(X.half(), ptr=PTR, **options)
    assert half.dtype == torch.float32
    assert bool(half.isfinite().all())


def test_contributions_where_the_mass_of_a_feature_underflows():
    """The weights of its samples are known all the same, as they are in the pooled output."""
    pool = make_layer(2, scale=None, alpha0=1e-3, alpha1=1e-3, alpha2=1e-3)
    X = torch.tensor([[[1000.0, 1.0], [999.0, 2.0]]])
    assert float(pool.plan(X)[..., 1].sum()) == 0.0
    found = pool.scores(X, output=torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(found.sum(1), pool(X)[:, 1])
    assert float(found.sum()) > 0.9
