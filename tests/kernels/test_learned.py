"""Weights that the kernels make of a layer's parameters: softplus and its derivative, as torch has them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from tests import tolerances as tol
from tests.cases import SOLVERS
from tests.kernels.harness import rand, randn
from uotpool import UOTPooling, backends
from uotpool.problem import FLOOR, LearnedWeights

each_solver = pytest.mark.parametrize("solver", SOLVERS)
each_sharing = pytest.mark.parametrize("shared", [False, True])
# Where softplus bends, where it is all but 0, and on both sides of where torch takes it for linear.
RAW = (-40.0, -3.0, 0.1, 2.0, 19.9, 20.1, 60.0)


def layer(solver: str, dtype: torch.dtype = torch.float64, **options: object) -> UOTPooling:
    return UOTPooling(4, solver=solver, dtype=dtype, **options)  # type: ignore[arg-type]


def learned(pool: UOTPooling, X: Tensor, *, by_torch: bool) -> list[Tensor]:
    """Output, and the derivatives of a combination of it by X and the parameters."""
    X = X.clone().requires_grad_()
    given = pool._problem(X, None, None, None, None)
    assert isinstance(given.weights, LearnedWeights)
    if by_torch:
        given = given._replace(weights=given.weight_rows())
    y = backends.pool(given, pool.options)
    return [
        y.detach(),
        *torch.autograd.grad(y, [X, *pool.raw_weights().values()], randn(*y.shape, seed=5).to(y)),
    ]


@each_sharing
@each_solver
def test_as_torch_has_them(solver, shared):
    pool = layer(solver, K=len(RAW), shared=shared, impl="cpu")
    X = rand(3, 5, 4)
    with torch.no_grad():
        for i, raw in enumerate(pool.raw_weights().values()):
            values = torch.tensor(RAW, dtype=raw.dtype).roll(i).clamp(-10, None if i else 2)  # alpha0 not tiny
            raw.copy_(values[: len(raw)])
    want = learned(pool, X, by_torch=True)
    for w, g in zip(want, learned(pool, X, by_torch=False), strict=True):
        assert (g - w).abs().max() <= tol.F64_GRADIENT * max(1.0, float(w.abs().max()))


@each_solver
def test_the_least_weight(solver):
    """All weights are FLOOR, in the unit of which X is then."""
    pool = layer(solver, impl="cpu")
    with torch.no_grad():
        for raw in pool.raw_weights().values():
            raw.fill_(-100.0)
    X = FLOOR * rand(3, 5, 4)
    y, *_ = learned(pool, X, by_torch=False)
    want, *_ = learned(pool, X, by_torch=True)
    assert (y - X.mean(1)).abs().max() > 0.01 * FLOOR
    assert (y - want).abs().max() <= tol.F64 * FLOOR


@each_sharing
def test_derivatives_of_one_parameter_alone(shared):
    pool = layer("badmm-e", shared=shared, impl="cpu")
    X = rand(2, 3, 4)
    everything = torch.autograd.grad(pool(X).square().sum(), list(pool.raw_weights().values()))
    for (_, raw), want in zip(pool.raw_weights().items(), everything, strict=True):
        for other in pool.raw_weights().values():
            other.requires_grad_(other is raw)
        (got,) = torch.autograd.grad(pool(X).square().sum(), [raw])
        assert torch.equal(got, want)


@each_sharing
@each_solver
def test_gradients_of_a_batch_of_directions(solver, shared):
    """`is_grads_batched=True` hands down directions without memory of their own, to the operators."""
    pool = layer(solver, shared=shared, impl="cpu")
    X = rand(2, 3, 4).requires_grad_()
    y, inputs = pool(X), [X, *pool.raw_weights().values()]
    directions = randn(5, *y.shape)
    together = torch.autograd.grad(y, inputs, directions, is_grads_batched=True, retain_graph=True)
    for i, direction in enumerate(directions):
        each = torch.autograd.grad(y, inputs, direction, retain_graph=True)
        for a, b in zip(together, each, strict=True):
            assert (a[i] - b).abs().max() <= tol.F64_GRADIENT


def test_parameters_that_are_views():
    """With strides, or with a sign that is only a flag."""
    pool = layer("sinkhorn", impl="cpu")
    X, names = rand(2, 3, 4), ("raw_alpha0", "raw_alpha1", "raw_alpha2")
    values = [randn(4, seed=i) for i in range(3)]
    want = functional_call(pool, dict(zip(names, values, strict=True)), (X,))
    strided = [torch.stack([v, v], dim=1)[:, 0] for v in values]
    negative = [torch.complex(v, -v).conj().imag for v in values]
    assert all(v.is_neg() for v in negative)
    for views in (strided, negative):
        assert torch.equal(functional_call(pool, dict(zip(names, views, strict=True)), (X,)), want)


def test_parameters_of_another_precision_are_converted():
    pool = layer("sinkhorn", torch.float32, impl="cpu")
    X = rand(2, 3, 4)
    assert isinstance(pool._weights_for(X.float()), LearnedWeights)
    assert isinstance(pool._weights_for(X), Tensor)
    assert pool(X).dtype == torch.float64
    assert (pool(X) - pool(X.float())).abs().max() <= tol.F32
