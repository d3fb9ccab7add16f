"""`check_pooling` sees every promise broken, and leaves the pooling as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from uotpool import UOTPooling, zoo
from uotpool.testing import Failure, check_pooling

D = 4


class Mean(zoo.Pooling):
    """Keeps every promise; subclasses break one each."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.weight = nn.Parameter(torch.ones(dim))

    def _pool(self, X, sets):
        return self.weight * sets.squeeze(sets.sum_n(X) / sets.count(X).clamp_min(1.0))


class First(Mean):
    """The first sample alone."""

    def forward(self, X, index=None, ptr=None, dim_size=None, mask=None):
        y = super().forward(X, index, ptr, dim_size, mask)
        return y if X.dim() == 2 or mask is not None or X.shape[1] == 0 else self.weight * X[:, 0]


class BatchNorm(Mean):
    """Divided by the spread of the batch."""

    def _pool(self, X, sets):
        return super()._pool(X, sets) / (1 + X.abs().amax())


class ReadsPadding(Mean):
    def forward(self, X, index=None, ptr=None, dim_size=None, mask=None):
        y = super().forward(X, index, ptr, dim_size, mask)
        return y if mask is None else y + 1e-3 * X.mean(1)


class NotEmpty(Mean):
    def forward(self, X, index=None, ptr=None, dim_size=None, mask=None):
        y = super().forward(X, index, ptr, dim_size, mask)
        return y + 1e-3 * (y == 0)


class Root(Mean):
    """A standard deviation, whose root has no derivative at one sample."""

    def _pool(self, X, sets):
        count = sets.count(X).clamp_min(1.0)
        X = X - sets.to_rows(sets.sum_n(X) / count)
        return self.weight * sets.squeeze(sets.sum_n(X.square()) / count).sqrt()


class Detached(Mean):
    def _pool(self, X, sets):
        return super()._pool(X, sets) + super()._pool(X.detach(), sets)


class Float32(Mean):
    def forward(self, X, *sets, **more):
        return super().forward(X, *sets, **more).float()


class RefusesIndex(Mean):
    def forward(self, X, index=None, ptr=None, dim_size=None, mask=None):
        if index is not None:
            raise TypeError("no index here")
        return super().forward(X, index, ptr, dim_size, mask)


NOTHING: Any = torch.sum
BROKEN = {
    "permutation": First,
    "ragged": RefusesIndex,
    "padding": ReadsPadding,
    "apart": BatchNorm,
    "empty set": NotEmpty,
    "one sample": Root,
    "gradients": Detached,
    "half precision": Float32,
}


@pytest.mark.parametrize("promise", BROKEN)
def test_a_broken_promise_is_found(promise: str) -> None:
    found = {result.name: result for result in check_pooling(BROKEN[promise](D), D, raise_exception=False)}
    assert found[promise].held is False
    assert found[promise].detail
    with pytest.raises(Failure, match=promise):
        check_pooling(BROKEN[promise](D), D)
    left_out = {
        result.name: result.held
        for result in check_pooling(BROKEN[promise](D), D, skip=[promise], raise_exception=False)
    }
    assert left_out[promise] is None


def test_all_promises_are_kept_and_reports_are_no_promises() -> None:
    found = {result.name: result for result in check_pooling(Mean(D), D)}
    assert {name for name, result in found.items() if result.held} == set(BROKEN)
    assert "0.0e+00" in found["change of unit"].detail or "e-1" in found["change of unit"].detail
    assert found["added constant"].held is None


def test_the_pooling_is_as_it_was() -> None:
    pool = UOTPooling(D, q0="learned").train()
    pool.log_alpha1.grad = torch.ones(1)
    before, seed = {name: value.clone() for name, value in pool.state_dict().items()}, torch.get_rng_state()
    check_pooling(pool, D)
    assert pool.training
    assert torch.equal(pool.log_alpha1.grad, torch.ones(1))
    assert torch.equal(torch.get_rng_state(), seed)
    for name, value in pool.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, before[name])


def test_a_module_behind_an_adapter() -> None:
    """Such as an aggregation of PyTorch Geometric."""
    from torch_geometric.nn.aggr import MedianAggregation, SumAggregation

    class Adapter(nn.Module):
        def __init__(self, aggregation: nn.Module) -> None:
            super().__init__()
            self.aggregation = aggregation

        def forward(self, X, index=None, ptr=None, dim_size=None, mask=None):
            if X.dim() == 3:
                there = X.new_ones(X.shape[:2], dtype=torch.bool) if mask is None else mask
                index, dim_size = there.nonzero()[:, 0], len(X)
                X = X[there]
            elif index is None:
                index, dim_size = torch.arange(len(ptr) - 1).repeat_interleave(ptr.diff()), len(ptr) - 1
            order = index.argsort(stable=True)
            return self.aggregation(X[order], index[order], dim_size=dim_size)

    assert all(result.held is not False for result in check_pooling(Adapter(SumAggregation()), D))
    broken = [
        r.name for r in check_pooling(Adapter(MedianAggregation()), D, raise_exception=False) if r.held is False
    ]
    assert broken in ([], ["empty set"])


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("pool", lambda: check_pooling(NOTHING, D)),
        ("dim", lambda: check_pooling(Mean(D), 0)),
        ("skip", lambda: check_pooling(Mean(D), D, skip=["speed"])),
    ],
)
def test_refusals(argument, call):
    with pytest.raises((TypeError, ValueError), match=rf"^{argument}: "):
        call()


def test_what_a_class_returns_is_checked() -> None:
    class Wrong(zoo.Pooling):
        def _pool(self, X: Tensor, sets) -> Tensor:
            return X

    with pytest.raises(ValueError, match=r"^_pool: expected Wrong\._pool"):
        Wrong(D)(torch.rand(2, 5, D))
    with pytest.raises(NotImplementedError, match="Unfinished has no method _pool"):
        type("Unfinished", (zoo.Pooling,), {})(D)(torch.rand(2, 5, D))


def test_ones_own_pooling_by_its_path() -> None:
    pool = zoo.build(f"{__name__}:Mean", D)
    assert isinstance(pool, Mean)
    with pytest.raises(TypeError, match=r"^name: "):
        zoo.build(f"{__name__}:D", D)
    with pytest.raises(ModuleNotFoundError):
        zoo.build("no.such.module:Mean", D)
