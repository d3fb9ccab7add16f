"""Jagged nested tensors are sets of their own: what `ptr` says, X says itself."""

from __future__ import annotations

import pytest
import torch

from tests.spelling import duality_gap, make_layer, plan_stats, uot_plan, uot_pool
from tests.tolerances import F64

D = 5
PTR = torch.tensor([0, 4, 4, 5, 12])
WEIGHTS = (0.5, 1.0, 2.0)


@pytest.fixture
def rows():
    return torch.randn(12, D, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


@pytest.fixture
def nested(rows):
    return torch.nested.nested_tensor_from_jagged(rows, PTR)


@pytest.mark.parametrize("impl", ["reference", "auto"])
def test_functions_take_it_like_ptr(rows, nested, impl):
    q0 = torch.rand(12, dtype=torch.float64) + 0.1
    q0 = torch.nested.nested_tensor_from_jagged(q0, PTR).softmax(-1).values()
    for options in ({}, {"q0": q0}):
        expected = uot_pool(rows, *WEIGHTS, ptr=PTR, impl=impl, **options)
        assert torch.equal(uot_pool(nested, *WEIGHTS, impl=impl, **options), expected)
        P = uot_plan(nested, *WEIGHTS, impl=impl, **options)
        assert P.is_nested
        assert P.shape == nested.shape
        flat = uot_plan(rows, *WEIGHTS, ptr=PTR, impl=impl, **options)
        assert torch.equal(P.values(), flat)
        gap = duality_gap(nested, P, *WEIGHTS, **options)
        torch.testing.assert_close(
            gap, duality_gap(rows, flat, *WEIGHTS, ptr=PTR, **options), rtol=F64, atol=F64
        )
        torch.testing.assert_close(plan_stats(P).mass, plan_stats(flat, ptr=PTR).mass, rtol=F64, atol=F64)


def test_gradients_reach_the_tensors_that_it_was_made_of(rows):
    parts = [rows[begin:end].clone().requires_grad_() for begin, end in ((0, 4), (5, 12))]
    pool = make_layer(D, dtype=torch.float64)
    pool(torch.nested.as_nested_tensor(parts, layout=torch.jagged)).square().sum().backward()
    for part in parts:
        alone = part.detach().clone().requires_grad_()
        pool(alone).square().sum().backward()
        torch.testing.assert_close(part.grad, alone.grad, rtol=F64, atol=F64)


def test_a_compiled_layer_takes_it(nested):
    pool = make_layer(D, dtype=torch.float64)
    compiled = torch.compile(pool, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(nested), pool(nested), rtol=F64, atol=F64)


def test_diagnostics(rows, nested):
    pool = make_layer(D, dtype=torch.float64)
    assert pool.diagnostics(nested) == pool.diagnostics(rows, ptr=PTR)
