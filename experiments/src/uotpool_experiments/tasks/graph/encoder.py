"""The encoder of graphs: a graph isomorphism network (Xu et al. 2019) and any pooling of the zoo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from uotpool.zoo import Pooling
from uotpool_experiments.tasks.graph.batches import LAYERS, Batch

WIDTH = 32


def draw_linear(module: nn.Module) -> None:
    """Draw Xavier's uniform weights and zero biases for all linear layers inside, as AD-GCL does."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)


class GIN(nn.Module):
    """Layers h_i <- BN(MLP(h_i + sum_j w_ij h_j)), with a ReLU after all but the last.

    As in AD-GCL (Suresh et al. 2021): the MLPs have two layers, epsilon is fixed at 0, edges have
    weights.

    Args:
        in_dim: number of features of a node.
        dropout: share of values that are dropped after each layer.
    """

    def __init__(self, in_dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(in_dim if i == 0 else WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
            for i in range(LAYERS)
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(WIDTH) for _ in range(LAYERS))
        draw_linear(self)

    def forward(self, batch: Batch, weight: Tensor | None = None) -> Tensor:
        """Return node embeddings (N, WIDTH); `weight` (E,) is that of the edges, 1 by default."""
        if weight is None:
            return batch.merged.spread(self.merged(batch))
        edges = batch.edges.weighted(weight)
        return self._layers(batch.X, [edges.add_neighbours] * LAYERS, [None] * LAYERS)

    def merged(self, batch: Batch) -> Tensor:
        """Return one row per final colour of `batch.merged`, (C, WIDTH), for edges without weights."""
        if self.dropout and self.training and batch.colours.merged:
            raise ValueError(
                f"batch: expected one of Batches(merge=False), as dropout {self.dropout} treats nodes of one "
                "colour differently, got one with merged nodes"
            )
        merged = batch.merged
        return self._layers(merged.X, merged.sums, merged.counts)

    def _layers(
        self, H: Tensor, sums: Sequence[Callable[[Tensor], Tensor]], counts: Sequence[Tensor | None]
    ) -> Tensor:
        for i, (mlp, norm) in enumerate(zip(self.mlps, self.norms, strict=True)):
            inner, outer = cast(nn.Sequential, mlp)[0], cast(nn.Sequential, mlp)[2]
            S = inner(sums[i](H)).relu_()
            H = outer_norm(S, cast(nn.Linear, outer), norm, counts[i])
            H = nn.functional.dropout(H, self.dropout, self.training)
            H = H.relu_() if i < LAYERS - 1 else H
        return H


def outer_norm(S: Tensor, linear: nn.Linear, norm: Any, counts: Tensor | None) -> Tensor:
    """Return norm(linear(S)), where row i stands for `counts[i]` equal rows, or for itself alone.

    With fixed statistics this is one linear map.
    """
    if not norm.training:
        scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
        bias = (linear.bias - norm.running_mean) * scale + norm.bias
        return nn.functional.linear(S, linear.weight * scale[:, None], bias)
    Y = linear(S)
    if counts is None:
        normed: Tensor = norm(Y)
        return normed
    total = counts.sum()
    H, mean, variance = _Normalised.apply(Y, norm.weight, norm.bias, counts / total, norm.eps)
    with torch.no_grad():
        norm.num_batches_tracked += 1
        norm.running_mean.lerp_(mean, norm.momentum)
        norm.running_var.lerp_(variance * (total / (total - 1)), norm.momentum)
    return H


class _Normalised(torch.autograd.Function):
    """Normalises rows that stand for shares of the batch: Z = (Y - mean) / deviation, then w Z + b.

    The gradient of the loss by row i, dH_i, is that of all nodes that the row stands for. With the
    share s_i we have dY_i = w / deviation (dH_i - s_i (sum_j dH_j + Z_i sum_j Z_j dH_j)).
    """

    @staticmethod
    def forward(
        ctx: Any, Y: Tensor, weight: Tensor, bias: Tensor, share: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        mean = share @ Y
        Z = Y - mean
        variance = share @ Z.square()
        scale = (variance + eps).rsqrt()
        Z *= scale
        ctx.save_for_backward(Z, weight, scale, share)
        ctx.mark_non_differentiable(mean, variance)
        return torch.addcmul(bias, Z, weight), mean, variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        Z, weight, scale, share = ctx.saved_tensors
        dH = gradients[0]
        dbias, dweight = dH.sum(0), (dH * Z).sum(0)
        common = torch.addcmul(dbias, Z, dweight).mul_(share[:, None])
        return (dH - common).mul_(scale * weight), dweight, dbias, None, None


class GraphEncoder(nn.Module):
    """Pools the node embeddings of a GIN."""

    def __init__(self, gin: GIN, pool: Pooling) -> None:
        super().__init__()
        self.gin = gin
        self.pool = pool

    def forward(self, batch: Batch, weight: Tensor | None = None) -> Tensor:
        """Return graph embeddings (B, pool.out_dim)."""
        H = self.gin(batch, weight)
        if not self.pool.needs_edges:
            return self.pool(H, ptr=batch.ptr)
        # Here the message of an edge goes from its second node to its first. In PyG's layers it
        # goes the other way.
        return self.pool(H, ptr=batch.ptr, edge_index=batch.edges.index.flip(0), edge_weight=weight)
