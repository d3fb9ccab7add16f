"""Many equal models, one per seed, as one module with stacked parameters.

A step of a small model takes longer in Python than in arithmetic, so the layers of all seeds are one batched
product. A model comes out the same, to the bit, alone and among others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from uotpool.zoo import Pooling
from uotpool_experiments.tasks.regimes.settings import DIM, HIDDEN


class StackedLinear(nn.Module):
    """The linear layers of several models: (S, rows, in) -> (S, rows, out)."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.stack([layer.weight.detach().T for layer in layers]).contiguous())
        self.bias = nn.Parameter(torch.stack([layer.bias.detach()[None] for layer in layers]))

    def forward(self, X: Tensor) -> Tensor:
        if self.weight.shape[-1] == 1:  # of this product alone, the rounding depends on the number of models
            return (X * self.weight.mT).sum(-1, keepdim=True) + self.bias
        return torch.baddbmm(self.bias, X, self.weight)


class StackedPooling(nn.Module):
    """The poolings of several models: (S, B, N, D) -> (S, B, out).

    Poolings without parameters take the bags of all models at once. Others run one by one: `torch.vmap` would
    be 1.0 to 1.6 times as fast, but its rounding depends on the number of models.

    Args:
        pools: one per model, alike but for their numbers.
    """

    def __init__(self, pools: Sequence[Pooling]) -> None:
        super().__init__()
        self.merged = not any(True for _ in chain(pools[0].parameters(), pools[0].buffers()))
        self.pools = nn.ModuleList(pools[:1] if self.merged else pools)

    @property
    def aux_loss(self) -> Tensor | float:
        """The sum of the poolings' own losses for the last forward."""
        return sum(pool.aux_loss for pool in self.pools)  # type: ignore[misc]

    def forward(self, X: Tensor) -> Tensor:
        if self.merged:
            return self.pools[0](X.flatten(0, 1)).unflatten(0, X.shape[:2])
        return torch.stack([pool(x) for pool, x in zip(self.pools, X.unbind(), strict=True)])


class StackedModel(nn.Module):
    """Two layers with ReLU, pooling, two layers: for each of S models, (S, B, N, features) -> (S, B)."""

    def __init__(
        self, seeds: Sequence[Callable[[str], int]], features: int, pool: StackedPooling, width: int
    ) -> None:
        """Draw the layers of each model from its own seed, as `nn.Linear` does.

        Args:
            seeds: functions from the use of a seed to the seed, one per model.
            features: features of a sample.
            pool: the poolings.
            width: features of a pooled bag.
        """
        super().__init__()
        shapes = {"features": [(features, HIDDEN), (HIDDEN, DIM)], "head": [(width, DIM), (DIM, 1)]}
        stacks: dict[str, list[StackedLinear]] = {}
        for use, sizes in shapes.items():
            drawn = []
            for seed in seeds:
                torch.manual_seed(seed(use))
                drawn.append([nn.Linear(*size) for size in sizes])
            stacks[use] = [StackedLinear(layers) for layers in zip(*drawn, strict=True)]
        self.features = nn.ModuleList(stacks["features"])
        self.pool = pool
        self.head = nn.ModuleList(stacks["head"])

    def embed(self, X: Tensor) -> Tensor:
        """Return what is pooled, (S, B, N, D); nothing of it is negative."""
        rows = X.flatten(1, 2)
        for layer in self.features:
            rows = layer(rows).relu()
        return rows.unflatten(1, X.shape[1:3])

    def forward(self, X: Tensor) -> Tensor:
        pooled = self.pool(self.embed(X))
        first, last = self.head
        return last(first(pooled).relu()).squeeze(-1)
