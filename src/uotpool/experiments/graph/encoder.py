"""The encoder of graphs: a graph isomorphism network (Xu et al. 2019) and any pooling of the zoo."""

from __future__ import annotations

from torch import Tensor, nn

from uotpool.experiments.graph.batches import Batch
from uotpool.zoo import Pooling

WIDTH = 32
LAYERS = 5


def draw_linear(module: nn.Module) -> None:
    """Xavier's uniform weights and zero biases for all linear layers within, as AD-GCL has them."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)


class GIN(nn.Module):
    """Layers h_i <- BN(MLP(h_i + sum_j w_ij h_j)), with a ReLU after all but the last.

    As in AD-GCL (Suresh et al. 2021): the MLPs have two layers, epsilon is fixed at 0, edges have weights.

    Args:
        in_dim: number of features of a node.
        dropout: after each layer.
    """

    def __init__(self, in_dim: int, width: int = WIDTH, layers: int = LAYERS, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(in_dim if i == 0 else width, width), nn.ReLU(), nn.Linear(width, width))
            for i in range(layers)
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(layers))
        draw_linear(self)

    def forward(self, batch: Batch, weight: Tensor | None = None) -> Tensor:
        """(N, width); `weight` is that of the edges, (E,), 1 by default."""
        H = batch.X
        if weight is None:
            weight = H.new_ones(batch.edges.index.shape[1])
        for i, (mlp, norm) in enumerate(zip(self.mlps, self.norms, strict=True)):
            H = H.relu() if i > 0 else H
            H = norm(mlp(H + batch.edges.sum_neighbours(H, weight)))
            H = nn.functional.dropout(H, self.dropout, self.training)
        return H


class GraphEncoder(nn.Module):
    """Node embeddings by a GIN, pooled."""

    def __init__(self, gin: GIN, pool: Pooling) -> None:
        super().__init__()
        self.gin = gin
        self.pool = pool

    def forward(self, batch: Batch, weight: Tensor | None = None) -> Tensor:
        """(B, pool.out_dim)."""
        H = self.gin(batch, weight)
        if not self.pool.needs_edges:
            return self.pool(H, ptr=batch.ptr)
        # The message of an edge goes from its second node to its first; PyG's layers have it the other way.
        return self.pool(H, ptr=batch.ptr, edge_index=batch.edges.index.flip(0), edge_weight=weight)
