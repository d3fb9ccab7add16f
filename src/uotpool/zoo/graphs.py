"""Poolings that use the edges, built from layers of PyTorch Geometric (extra `pyg`)."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch_geometric.nn import DenseGCNConv, GCNConv, LEConv
from torch_geometric.utils import add_remaining_self_loops, coalesce, scatter, softmax

from uotpool import checks
from uotpool.inputs import as_sets
from uotpool.nn.base import Pooling
from uotpool.sets import RaggedSets, Sets, segments
from uotpool.sets.padding import flat


class Graphs(NamedTuple):
    """A batch of graphs without absent nodes."""

    X: Tensor  # (M, D)
    graph: Tensor  # (M,), graph of each node
    num_graphs: int
    edges: Tensor  # (2, E), both ends in one graph
    weight: Tensor  # (E,)


class GraphPooling(Pooling):
    """A pooling that needs `edge_index`. Edges at absent nodes are absent too."""

    needs_edges = True

    def _pool_graphs(self, graphs: Graphs) -> Tensor:
        """Pool the graphs, (B, out_dim)."""
        raise NotImplementedError

    def forward(
        self,
        X: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        mask: Tensor | None = None,
        edge_index: Tensor | None = None,
        edge_weight: Tensor | None = None,
    ) -> Tensor:
        """Return the pooled vector of each graph, (B, out_dim), in the dtype of X.

        Args:
            X, index, ptr, dim_size, mask: as in `Pooling.forward`; nodes are the samples.
            edge_index: (2, E), the two rows of X (of X.flatten(0, 1), if dense) that an edge joins, both in one
                graph.
            edge_weight: (E,), default 1.
        """
        rows, sets = as_sets(X, index, ptr, dim_size, mask, dim=self.dim)
        return self._forward(X, rows, sets, edge_index, edge_weight)

    def _pool(
        self, X: Tensor, sets: Sets, edge_index: Tensor | None = None, edge_weight: Tensor | None = None
    ) -> Tensor:
        num_rows = X.shape[:-1].numel()
        _check_edges(X, num_rows, edge_index, edge_weight)
        assert edge_index is not None
        edges = edge_index.long()
        weight = X.new_ones(edges.shape[1]) if edge_weight is None else edge_weight.to(X.dtype)
        rows, index, kept = flat(X, sets)
        if rows.shape[0] < num_rows:
            place = edges.new_full((num_rows,), -1).index_put((kept,), torch.arange(len(kept), device=X.device))
            edges = place[edges]
            present = (edges >= 0).all(0)
            edges, weight = edges[:, present], weight[present]
        edges, weight = _sum_loops(edges, weight, rows.shape[0])
        _check_within(edges, index)
        return self._pool_graphs(Graphs(rows, index, sets.num_sets, edges, weight))


def _check_edges(X: Tensor, num_rows: int, edge_index: Tensor | None, edge_weight: Tensor | None) -> None:
    accepted = "an int64 or int32 tensor of shape (2, E)"
    checks.tensor("edge_index", edge_index, accepted)
    assert edge_index is not None
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        checks.fail("edge_index", accepted, edge_index)
    if edge_index.dtype not in (torch.int64, torch.int32):
        checks.fail("edge_index", accepted, edge_index, TypeError)
    checks.same_device("edge_index", edge_index, X)
    inside = (edge_index >= 0) & (edge_index < num_rows)
    accepted = f"rows of X, 0 to {num_rows - 1}"
    checks.values("edge_index", edge_index, inside, accepted, lambda: f"the row {int(edge_index[~inside][0])}")
    if edge_weight is not None:
        checks.floating_of_shape("edge_weight", edge_weight, X, edge_index.shape[1:])
        if checks.values_checked(edge_weight) and not bool(((edge_weight >= 0) & edge_weight.isfinite()).all()):
            raise ValueError("edge_weight: expected finite numbers >= 0, got others")


def _check_within(edges: Tensor, index: Tensor) -> None:
    within = index[edges[0]] == index[edges[1]]

    def first_between() -> str:
        return f"one between the sets {tuple(index[edges[:, ~within][:, 0]].tolist())}"

    checks.values("edge_index", edges, within, "edges within a set", first_between)


def _sum_loops(edges: Tensor, weight: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Replace several loops at a node by their sum, as PyG's layers would take only one of them."""
    loop = edges[0] == edges[1]
    if checks.readable(edges) and not bool(loop.any()):
        return edges, weight
    loops, sums = coalesce(edges[:, loop], weight[loop], num_nodes)
    return torch.cat([edges[:, ~loop], loops], dim=1), torch.cat([weight[~loop], sums])


def _ratio(ratio: float) -> float:
    if checks.number("ratio", ratio, positive=True) > 1:
        checks.fail("ratio", "a number in (0, 1]", ratio)
    return float(ratio)


def _top(logit: Tensor, ratio: float, graphs: Graphs) -> Tensor:
    """Return the numbers of the ceil(ratio N) nodes of each graph with the largest logits.

    We rank logits, as many of the scores made from them round to 1. PyG's `topk` counts in the
    dtype of the scores, and so keeps 7 or 8 of 100 nodes at a ratio of 0.07.
    """
    count = torch.bincount(graphs.graph, minlength=graphs.num_graphs)
    kept = (ratio * count.double() - 1e-9 * count).ceil().long()
    order = logit.detach().flatten().argsort(descending=True, stable=True)
    order = order[graphs.graph[order].argsort(stable=True)]  # graph by graph, the best first
    graph = graphs.graph[order]
    rank = torch.arange(len(order), device=order.device) - (count.cumsum(0) - count)[graph]
    return order[rank < kept[graph]]


def _mean_max(Y: Tensor, index: Tensor, num_graphs: int) -> Tensor:
    sets = RaggedSets(index, num_graphs, None)
    return torch.cat([sets.sum_n(Y) / sets.count(Y).clamp_min(1.0), sets.max_n(Y)], dim=-1)


class SAGPool(GraphPooling):
    r"""Self-attention graph pooling: a graph convolution selects nodes, and y is their mean and max.

    .. math::
        s &= \tanh(\text{GCN}(X, A)) \\
        i &= \text{top}_{\lceil r N \rceil}(s) \\
        y &= [\text{mean}_{n \in i}\, s_n x_n \,\|\, \max_{n \in i} s_n x_n]

    Args:
        dim: number of features.
        ratio: r, the share of nodes to keep.

    Among nodes whose scores tie (those with the same neighbours, all nodes of a complete graph) the
    order of the rows decides, as in the original.

    J. Lee, I. Lee, J. Kang, "Self-attention graph pooling", ICML 2019. The layers are PyG's. The
    result is that of its `SAGPooling` with GCNConv and this readout, except that edge weights
    count.
    """

    def __init__(self, dim: int, *, ratio: float = 0.5) -> None:
        super().__init__(dim)
        self.out_dim = 2 * dim
        self.ratio = _ratio(ratio)
        self.gnn = GCNConv(dim, 1)

    def _pool_graphs(self, graphs: Graphs) -> Tensor:
        logit = self.gnn(graphs.X, graphs.edges, graphs.weight)
        kept = _top(logit, self.ratio, graphs)
        return _mean_max((graphs.X * logit.tanh())[kept], graphs.graph[kept], graphs.num_graphs)


class ASAP(GraphPooling):
    r"""Adaptive structure-aware pooling: the best neighbourhoods are kept, and y is their mean and max.

    .. math::
        m_i &= \max_{j \in \mathcal N(i)} x_j \\
        a_{ij} &= \text{softmax}_j(\text{lrelu}(w^\top [W m_i \,\|\, x_j])) \\
        c_i &= \sum_j a_{ij} x_j \\
        \phi &= \sigma(\text{LEConv}(c, A))

    with neighbourhoods that include the node itself; y is the readout of :math:`\phi_i c_i` over
    the :math:`\lceil r N \rceil` largest phi, as in `SAGPool`. The coarsened graph is not built, as
    nothing reads it.

    Args:
        dim: number of features.
        ratio: r, the share of neighbourhoods to keep.

    E. Ranjan, S. Sanyal, P. Talukdar, "ASAP: adaptive structure aware pooling for learning
    hierarchical graph representations", AAAI 2020. The layers are PyG's. The result is that of its
    `ASAPooling` with this readout, except that edge weights count (in LEConv).
    """

    def __init__(self, dim: int, *, ratio: float = 0.5) -> None:
        super().__init__(dim)
        self.out_dim = 2 * dim
        self.ratio = _ratio(ratio)
        self.lin = nn.Linear(dim, dim)
        self.att = nn.Linear(2 * dim, 1)
        self.gnn_score = LEConv(dim, 1)

    def _pool_graphs(self, graphs: Graphs) -> Tensor:
        N = graphs.X.shape[0]
        edges: Any
        weight: Any
        edges, weight = add_remaining_self_loops(graphs.edges, graphs.weight, 1.0, N)
        x_j = graphs.X[edges[0]]
        master = self.lin(scatter(x_j, edges[1], 0, N, "max"))[edges[1]]
        logit = nn.functional.leaky_relu(self.att(torch.cat([master, x_j], -1)), 0.2)
        attention = softmax(logit, edges[1], num_nodes=N)
        clusters = segments.sum(x_j * attention, edges[1], N)
        logit = self.gnn_score(clusters, edges, weight)
        kept = _top(logit, self.ratio, graphs)
        return _mean_max((clusters * logit.sigmoid())[kept], graphs.graph[kept], graphs.num_graphs)


class DiffPool(GraphPooling):
    r"""Differentiable pooling: nodes are assigned to C clusters, and y is the mean of a graph
    convolution on them.

    .. math::
        S &= \text{softmax}(\text{GCN}_s(X, A)) \\
        Z &= \text{relu}(\text{GCN}_z(X, A)) \\
        y &= \tfrac1C 1^\top \text{GCN}(S^\top Z, S^\top A S)

    `aux_loss` is the mean over the graphs of :math:`|A - S S^\top|_F / N^2`, which puts neighbours
    in one cluster, plus that of the mean entropy of the rows of S, which gives each node one
    cluster. No N x N matrix is formed.

    Args:
        dim: number of features.
        hidden: features of Z; default `dim`.
        clusters: C.

    R. Ying, J. You, C. Morris, X. Ren, W. Hamilton, J. Leskovec, "Hierarchical graph representation
    learning with differentiable pooling", NeurIPS 2018. The layers are PyG's. Its `dense_diff_pool`
    does the same with N x N matrices.
    """

    def __init__(self, dim: int, hidden: int | None = None, *, clusters: int = 8) -> None:
        super().__init__(dim)
        hidden = self.dim if hidden is None else checks.count("hidden", hidden, 1)
        self.clusters = checks.count("clusters", clusters, 1)
        self.embed = GCNConv(dim, hidden)
        self.assign = GCNConv(dim, clusters)
        self.coarse = DenseGCNConv(hidden, dim)

    def _pool_graphs(self, graphs: Graphs) -> Tensor:
        X, index, B, edges, weight = graphs
        log_S = self.assign(X, edges, weight).log_softmax(-1)
        S = log_S.exp()
        Z = self.embed(X, edges, weight).relu()
        pooled = _outer_sums(S, Z, index, B)
        coarse = _outer_sums(weight[:, None] * S[edges[1]], S[edges[0]], index[edges[0]], B)  # to, from
        self.aux_loss = self._losses(S, log_S, graphs)
        loops = torch.eye(self.clusters, dtype=X.dtype, device=X.device)  # PyG's would replace the diagonal
        return self.coarse(pooled, coarse + loops, add_loop=False).mean(1)

    @staticmethod
    def _losses(S: Tensor, log_S: Tensor, graphs: Graphs) -> Tensor:
        _, index, B, edges, weight = graphs
        edges, weight = coalesce(edges, weight, S.shape[0])  # parallel edges are one entry of A, their sum
        sets = RaggedSets(index, B, None)
        # |A - S S'|^2 = |A|^2 - 2 <A, S S'> + |S' S|^2, by the edges and C x C matrices
        per_edge = weight * (weight - 2 * (S[edges[0]] * S[edges[1]]).sum(-1))
        square = segments.sum(per_edge[:, None], index[edges[0]], B).squeeze(-1)
        square = square + _outer_sums(S, S, index, B).square().sum((1, 2))
        count = sets.count(S).squeeze(-1)
        nonempty = count > 0
        tiny = torch.finfo(S.dtype).eps ** 2  # the root has no derivative at 0
        link = torch.where(nonempty, square, 1.0).clamp_min(tiny).sqrt() / count.clamp_min(1.0).square()
        entropy = sets.sum_n(-(S * log_S).sum(-1, keepdim=True)).squeeze(-1) / count.clamp_min(1.0)
        return torch.where(nonempty, link + entropy, 0.0).sum() / nonempty.sum().clamp_min(1)

    def __getstate__(self) -> dict[str, Any]:
        # The loss belongs to the autograd graph of the last forward, which can be neither copied nor pickled.
        return {name: value for name, value in super().__getstate__().items() if name != "aux_loss"}


def _outer_sums(U: Tensor, V: Tensor, index: Tensor, num_sets: int) -> Tensor:
    """Return sum_n u_n v_n' over the rows of each set: (M, P), (M, Q) -> (num_sets, P, Q)."""
    # We take one column of U at a time, since P x Q values per row would be a large tensor.
    columns = [segments.sum(u[:, None] * V, index, num_sets) for u in U.unbind(1)]
    return torch.stack(columns, dim=1)
