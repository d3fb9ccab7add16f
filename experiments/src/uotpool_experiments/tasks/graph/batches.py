"""A batch of graphs for the models: features, edges as a sparse matrix, and nodes merged by colour."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from uotpool_experiments.datasets.graphs import Graphs, cut
from uotpool_experiments.tasks.graph.colours import Colours, Ints, Numbering, ones_csr
from uotpool_experiments.tasks.graph.sparse import Fixed, csr

LAYERS = 5  # of every GIN here; colours are refined as many times


@dataclass(frozen=True)
class Edges:
    """The edges of a batch as a sparse (N, N) matrix, which has the same pattern as its transpose.

    Attributes:
        index: (2, E), sorted by the first node, each edge in both directions.
        row_ptr: (N + 1,), where the edges of each first node start; int32.
        second: (E,), index[1] as int32.
        reverse: (E,), the place of the other direction of each edge.
    """

    index: Tensor
    row_ptr: Tensor
    second: Tensor
    reverse: Tensor

    @classmethod
    def of(cls, index: Tensor, num_nodes: int) -> Edges:
        degree = torch.bincount(index[0], minlength=num_nodes)
        row_ptr = torch.cat([degree.new_zeros(1), degree.cumsum(0)]).int()
        second = index[1].int()
        places = np.arange(index.shape[1], dtype=np.int64)
        edges = scipy.sparse.csr_array((places, second.numpy(), row_ptr.numpy()), shape=(num_nodes, num_nodes))
        return cls(index, row_ptr, second, torch.from_numpy(edges.tocsc().data))  # by columns, then rows

    def weighted(self, weight: Tensor) -> WeightedEdges:
        return WeightedEdges(self, weight)

    def matrix(self, weight: Tensor) -> Tensor:
        n = len(self.row_ptr) - 1
        return csr(self.row_ptr, self.second, weight, (n, n))


class WeightedEdges:
    """Edges with weights (E,). The matrices are made once for all layers."""

    def __init__(self, edges: Edges, weight: Tensor) -> None:
        self._edges, self._weight = edges, weight
        self.matrix = edges.matrix(weight.detach())

    @cached_property
    def transposed(self) -> Tensor:
        return self._edges.matrix(self._weight.detach()[self._edges.reverse])

    def add_neighbours(self, X: Tensor) -> Tensor:
        """Return x_i + sum_j w_ij x_j over the neighbours j of each node i, (N, D), differentiable
        in X and w.
        """
        out: Tensor = _AddNeighbours.apply(X, self._weight, self)
        return out


class _AddNeighbours(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, X: Tensor, weight: Tensor, edges: WeightedEdges) -> Tensor:
        ctx.save_for_backward(X)
        ctx.edges = edges
        return torch.addmm(X, edges.matrix, X)

    @staticmethod
    def backward(ctx: Any, dY: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (X,) = ctx.saved_tensors
        edges: WeightedEdges = ctx.edges
        dY = dY.contiguous()
        dX = dweight = None
        if ctx.needs_input_grad[0]:
            dX = torch.addmm(dY, edges.transposed, dY)
        if ctx.needs_input_grad[1]:
            dweight = torch.sparse.sampled_addmm(edges.matrix, dY, X.t(), beta=0.0).values()
        return dX, dweight, None


@dataclass(frozen=True, eq=False)
class Merged:
    """The nodes of a batch merged by colour, level by level (`colours.py`).

    Attributes:
        X: (C_0, d), the feature of each first colour.
        sums: for each layer, the matrix (C_k+1, C_k) that adds x_i and its neighbours. It maps rows
            of the colours before the layer to rows of the colours after it.
        counts: for each layer, how many nodes have each colour after it, (C_k+1,).
        final: the final colour of each node, (N,).
        spread: the matrix (N, C) that maps rows of final colours to rows of nodes.
    """

    X: Tensor
    sums: list[Fixed]
    counts: list[Tensor]
    final: Ints
    spread: Fixed


@dataclass(frozen=True, eq=False)
class Pairs:
    """The edges of a batch merged by the final colours of their ends.

    Attributes:
        ends: the matrix (P, 2 C) that maps two rows per final colour, one right after the other, to
            one row per pair: the sum of the first row of its first colour and the second row of its
            second colour.
        of_edge: the pair of each edge, (E,).
    """

    ends: Fixed
    of_edge: Tensor


class Batch:
    """A batch of graphs. Its costly parts are made when they are first asked for.

    Attributes:
        ptr: (B + 1,), offsets of the graphs among the nodes.
        y: (B,).
        colours: the colours of the data set.
    """

    def __init__(self, source: Batches, chosen: Tensor) -> None:
        self._source, self._chosen = source, chosen
        ptr, self._nodes, _ = cut(source.graphs.ptr.numpy(), chosen.numpy())
        self.ptr = torch.from_numpy(ptr)
        self.y = source.graphs.y[chosen]
        self.colours = source.colours

    def __len__(self) -> int:
        return len(self.y)

    @classmethod
    def of(cls, graphs: Graphs, kind: str, indices: Tensor | None = None) -> Batch:
        """Make a batch of all graphs, or of those with these numbers, of a data set that is used only once."""
        part = graphs if indices is None else graphs.subset(indices)
        return cls(Batches(part, kind), torch.arange(len(part)))

    @cached_property
    def X(self) -> Tensor:
        """Features of the nodes, (N, d)."""
        return self._source.features(self._nodes)

    @cached_property
    def edges(self) -> Edges:
        part = self._source.graphs.subset(self._chosen)
        return Edges.of(part.edge_index, part.num_nodes)

    @cached_property
    def edges_of_graphs(self) -> Tensor:
        """The number of edges of each graph, (B,)."""
        return self._source.graphs.edge_ptr.diff()[self._chosen]

    @cached_property
    def graph_of_edge(self) -> Tensor:
        """(E,)."""
        return torch.from_numpy(np.repeat(np.arange(len(self)), self.edges_of_graphs.numpy()))

    @cached_property
    def merged(self) -> Merged:
        return self._source.merged(self._nodes)

    @cached_property
    def pairs(self) -> Pairs:
        _, edges, _ = cut(self._source.graphs.edge_ptr.numpy(), self._chosen.numpy())
        numbers = self._source.pair_numbers
        kinds = self.colours.pairs[edges]
        places = numbers.start(kinds)
        first, second = self.merged.final[self.edges.index.numpy()[:, places]]
        columns = np.stack([2 * first, 2 * second + 1], axis=1).ravel()
        shape = (len(places), 2 * len(self.merged.counts[-1]))
        ends = ones_csr(columns, np.arange(0, len(columns) + 1, 2), shape)
        return Pairs(Fixed(ends), torch.from_numpy(numbers[kinds]))

    def forget_edges(self) -> None:
        """Drop the edges, which can take much memory, until they are asked for again."""
        for name in ("edges", "graph_of_edge", "pairs"):
            vars(self).pop(name, None)


class Batches:
    """A data set from which batches are cut, prepared once for all epochs.

    Args:
        graphs: the data set.
        kind: the kind of features, as in `Graphs.features`.
        merge: whether nodes of one colour share a row. With dropout they must not, as each node
            drops other values.
    """

    def __init__(self, graphs: Graphs, kind: str, *, merge: bool = True) -> None:
        self.graphs, self._kind = graphs, kind
        self.colours = Colours(graphs, LAYERS, labels=kind == "labels", merged=merge)
        self._numbers = [Numbering(level) for level in self.colours.of_node]
        self._features = graphs.features(kind)

    @cached_property
    def pair_numbers(self) -> Numbering:
        return Numbering(self.colours.pairs)

    def features(self, nodes: Ints) -> Tensor:
        return self._features[torch.from_numpy(nodes)]

    def merged(self, nodes: Ints) -> Merged:
        """Merge these nodes of the data set, which are those of whole graphs."""
        levels = [of_node[nodes] for of_node in self.colours.of_node]
        places = [numbers.start(level) for numbers, level in zip(self._numbers, levels, strict=True)]
        own = [numbers[level] for numbers, level in zip(self._numbers, levels, strict=True)]
        sums = []
        for k, matrix in enumerate(self.colours.sums):
            rows = matrix[levels[k + 1][places[k + 1]]]
            rows.indices = self._numbers[k][rows.indices]
            rows.resize(len(places[k + 1]), len(places[k]))
            sums.append(Fixed(rows))
        counts = [torch.from_numpy(np.bincount(level)).float() for level in own[1:]]
        spread = ones_csr(own[-1], np.arange(len(nodes) + 1), (len(nodes), len(places[-1])))
        return Merged(self.features(nodes[places[0]]), sums, counts, own[-1], Fixed(spread))

    def batch(self, chosen: Tensor) -> Batch:
        return Batch(self, chosen)

    def shuffled(self, size: int, order: torch.Generator) -> Iterator[Batch]:
        """Yield one pass in random order, without a last batch of one graph, which would have
        nothing to differ from.
        """
        for chosen in torch.randperm(len(self.graphs), generator=order).split(size):
            if len(chosen) > 1:
                yield Batch(self, chosen)

    def in_order(self, size: int) -> Iterator[Batch]:
        for chosen in torch.arange(len(self.graphs)).split(size):
            yield Batch(self, chosen)
