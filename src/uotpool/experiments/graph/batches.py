"""A batch of graphs as the models read it: features of nodes, and edges as a sparse matrix."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from uotpool.experiments.data.graphs import Graphs

with warnings.catch_warnings():  # torch says once that this format is in beta
    warnings.simplefilter("ignore")
    torch.eye(1).to_sparse_csr()


@dataclass(frozen=True)
class Edges:
    """The edges of a batch: the rows of a sparse (N, N) matrix, which has the same pattern as its transpose.

    A sparse product (MKL's) is several times faster than gathering and scattering the ends of each edge.

    Attributes:
        index: (2, E), sorted by the first node, each edge in both directions.
        row_ptr: (N + 1,), where the edges of each first node start; int32, as MKL wants it.
        second: (E,), index[1] as int32.
        reverse: (E,), the place of each edge's other direction.
    """

    index: Tensor
    row_ptr: Tensor
    second: Tensor
    reverse: Tensor

    @classmethod
    def of(cls, index: Tensor, num_nodes: int) -> Edges:
        degree = torch.bincount(index[0], minlength=num_nodes)
        row_ptr = torch.cat([degree.new_zeros(1), degree.cumsum(0)])
        return cls(index, row_ptr.int(), index[1].int(), torch.argsort(index[1], stable=True))

    def matrix(self, weight: Tensor) -> Tensor:
        n = len(self.row_ptr) - 1
        return torch.sparse_csr_tensor(self.row_ptr, self.second, weight, (n, n), check_invariants=False)

    def sum_neighbours(self, X: Tensor, weight: Tensor) -> Tensor:
        """sum_j w_ij x_j over the neighbours j of each node i, (N, D)."""
        out: Tensor = _SumNeighbours.apply(X, weight, self)
        return out


class _SumNeighbours(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, X: Tensor, weight: Tensor, edges: Edges) -> Tensor:
        ctx.save_for_backward(X, weight)
        ctx.edges = edges
        return edges.matrix(weight) @ X

    @staticmethod
    def backward(ctx: Any, dY: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        X, weight = ctx.saved_tensors
        edges: Edges = ctx.edges
        dX = dweight = None
        if ctx.needs_input_grad[0]:
            dX = edges.matrix(weight[edges.reverse]) @ dY
        if ctx.needs_input_grad[1]:
            pattern = edges.matrix(weight)
            dweight = torch.sparse.sampled_addmm(pattern, dY.contiguous(), X.t(), beta=0.0).values()
        return dX, dweight, None


@dataclass(frozen=True)
class Batch:
    """Some graphs.

    Attributes:
        X: (N, d), features of the nodes.
        ptr: (B + 1,), offsets of the graphs among the nodes.
        graph_of_edge: (E,).
        y: (B,).
    """

    X: Tensor
    ptr: Tensor
    edges: Edges
    graph_of_edge: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    @classmethod
    def of(cls, graphs: Graphs, kind: str, indices: Tensor | None = None) -> Batch:
        """All of the graphs, or those with these numbers; `kind` is that of `Graphs.features`."""
        part = graphs if indices is None else graphs.subset(indices)
        of_edge = torch.repeat_interleave(part.edge_ptr.diff(), output_size=part.edge_index.shape[1])
        edges = Edges.of(part.edge_index, part.num_nodes)
        return cls(part.features(kind), part.ptr, edges, of_edge, part.y)


def shuffled(graphs: Graphs, kind: str, size: int, order: torch.Generator) -> Iterator[Batch]:
    """One pass in random order. A last batch of a single graph is left out: it has nothing to differ from."""
    for chosen in torch.randperm(len(graphs), generator=order).split(size):
        if len(chosen) > 1:
            yield Batch.of(graphs, kind, chosen)


def in_order(graphs: Graphs, kind: str, size: int) -> Iterator[Batch]:
    for chosen in torch.arange(len(graphs)).split(size):
        yield Batch.of(graphs, kind, chosen)
