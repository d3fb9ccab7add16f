"""Batches of sets and graphs for the tests of the zoo, in every layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from uotpool import zoo

NAMES = zoo.names()
# Small settings, where the default is large.
SMALL: dict[str, dict[str, Any]] = {
    "otk": {"references": 2, "steps": 5},
    "wegl": {"references": 3, "steps": 5, "epsilon": 0.3},
    "swe": {"references": 5},
    "gmt": {"seeds": 2},
    "diffpool": {"clusters": 3},
    "netvlad": {"clusters": 3},
    "salad": {"clusters": 2, "value_dim": 3},
}
GRAPHS = [name for name in NAMES if zoo.entry(name).load().needs_edges]
FITTED = [name for name in NAMES if zoo.entry(name).load().needs_fit]
SIZES = (3, 0, 5, 1, 2, 0)


def small(name: str, dim: int = 4, seed: int = 0, dtype: torch.dtype = torch.float64) -> zoo.Pooling:
    torch.manual_seed(seed)
    return zoo.build(name, dim, **SMALL.get(name, {})).to(dtype)


@dataclass
class Batch:
    """Sets as sorted rows, with edges both ways along a path and some more at random.

    No two nodes have the same neighbours (counting itself): those have the same score by a graph convolution.
    """

    x: Tensor
    sizes: tuple[int, ...]
    edges: Tensor
    weight: Tensor

    @property
    def ptr(self) -> Tensor:
        return torch.tensor([0, *self.sizes]).cumsum(0)

    @property
    def index(self) -> Tensor:
        return torch.arange(len(self.sizes)).repeat_interleave(torch.tensor(self.sizes, dtype=torch.int64))

    @property
    def ragged(self) -> dict[str, Any]:
        return {"index": self.index, "dim_size": len(self.sizes), "edge_index": self.edges}

    def dense(self, extra: int = 2, fill: float = torch.nan) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, N, D), mask and edges; the rows of a set stand in order, with holes between them."""
        B, N = len(self.sizes), max(self.sizes, default=0) + extra
        X = self.x.new_full((B, N, self.x.shape[1]), fill)
        mask = torch.zeros(B, N, dtype=torch.bool)
        g = torch.Generator().manual_seed(7)
        for b, n in enumerate(self.sizes):
            mask[b, torch.randperm(N, generator=g)[:n]] = True
        X[mask] = self.x
        place = mask.flatten().nonzero().flatten()
        return X, mask, place[self.edges]

    def alone(self, b: int) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, edges and edge weights of one set."""
        low, high = int(self.ptr[b]), int(self.ptr[b + 1])
        of_b = (self.edges[0] >= low) & (self.edges[0] < high)
        return self.x[low:high], self.edges[:, of_b] - low, self.weight[of_b]


def batch(sizes: tuple[int, ...] = SIZES, dim: int = 4, seed: int = 0, scale: float = 1.0) -> Batch:
    g = torch.Generator().manual_seed(seed)
    pairs: list[tuple[int, int]] = []
    start = 0
    for n in sizes:
        for i in range(n - 1):
            pairs += [(start + i, start + i + 1), (start + i + 1, start + i)][: 1 if n == 2 else 2]
        for _ in range(
            n // 2
        ):  # one way, maybe parallel; so far apart that no two nodes have the same neighbours
            i, j = (int(k) for k in torch.randint(n, (2,), generator=g))
            if abs(i - j) == 1 or abs(i - j) > 2:
                pairs.append((start + i, start + j))
        start += n
    edges = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T.contiguous()
    x = scale * torch.randn(start, dim, generator=g, dtype=torch.float64)
    weight = 0.5 + torch.rand(edges.shape[1], generator=g, dtype=torch.float64)
    return Batch(x, tuple(sizes), edges, weight)


def call(pool: zoo.Pooling, X: Tensor, *args: Any, **layout: Any) -> Tensor:
    """Pool the sets, with the edges of a table of cases where the pooling needs them."""
    if not pool.needs_edges:
        layout = {name: value for name, value in layout.items() if not name.startswith("edge_")}
    y: Tensor = pool(X, *args, **layout)
    return y


def backward(pool: zoo.Pooling, x: Tensor, **layout: Any) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Output and the gradients by x and by the parameters, of a scalar that is different in every entry."""
    x = x.detach().clone().requires_grad_()
    y = call(pool, x, **layout)
    loss = weighed(y) + pool.aux_loss
    learned = list(pool.parameters())
    dx, *rest = torch.autograd.grad(loss, [x, *learned], materialize_grads=True)
    return y.detach(), dx, rest


def weighed(y: Tensor) -> Tensor:
    return (y * torch.linspace(0.5, 1.5, y.shape[-1], dtype=y.dtype)).sum()


def gradients_finite(pool: zoo.Pooling, x: Tensor, **layout: Any) -> Tensor:
    """The output, after a check that it and all gradients are finite."""
    y, dx, rest = backward(pool, x, **layout)
    assert y.isfinite().all()
    assert dx.isfinite().all()
    assert all(g.isfinite().all() for g in rest)
    return y
