"""Find nodes that a graph isomorphism network cannot tell apart, and compute one row for all of them.

Nodes of one colour have the same embedding. At first the colour of a node is its feature. After
each layer it stands for the earlier colour of the node and the multiset of its neighbours' colours
(Weisfeiler and Leman 1968). A layer without edge weights therefore needs one row per colour and not
one per node. The many leaves around a hub of REDDIT-BINARY share one row, and its first layer has
as many rows as there are degrees. Nothing is approximated; only the order of sums changes.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt
import scipy.sparse

from uotpool_experiments.datasets.graphs import Graphs, cut

Ints = npt.NDArray[np.integer]
EDGES_AT_ONCE = 4_000_000  # bounds the memory that sorting pairs of colours takes


class Colours:
    """The colours of all nodes of a data set before the first layer and after each layer.

    Attributes:
        merged: whether nodes share colours; if not, every node has its own.
        of_node: for each level, the colour of each node, (nodes,).
        sums: for each layer, a sparse (colours after, colours before) matrix that counts how often
            each colour occurs among a node and its neighbours. Each row comes from the first node
            of the colour in the data set, so that it is the same in every batch, down to the order
            of its entries.
    """

    def __init__(self, graphs: Graphs, layers: int, *, labels: bool, merged: bool) -> None:
        self._graphs, self.merged = graphs, merged
        index = graphs.edge_index.numpy()
        degrees = np.bincount(index[0], minlength=graphs.num_nodes)
        ptr = np.concatenate([[0], degrees.cumsum()])
        self.of_node: list[Ints]
        self.sums: list[scipy.sparse.csr_array]
        if not merged:
            own = np.arange(graphs.num_nodes, dtype=np.int32)
            self.of_node = [own] * (layers + 1)
            self.sums = [_sums(own, own, index[1], ptr)] * layers
            return
        start = np.zeros(graphs.num_nodes, np.int32)
        if labels and graphs.x is not None:
            start = graphs.x.numpy().astype(np.int32)
        self.of_node, self.sums = [start], []
        numbers = np.random.default_rng(0)
        for _ in range(layers):
            before = self.of_node[-1]
            after, first = _refined(before, index[1], ptr, numbers)
            self.of_node.append(after)
            self.sums.append(_sums(first, before, index[1], ptr))

    @cached_property
    def pairs(self) -> Ints:
        """The number of the pair of final colours of each edge of the data set, (edges,).

        Graphs that are far apart in the data set may count the same pair twice, which only costs a
        row.
        """
        final, index = self.of_node[-1], self._graphs.edge_index.numpy()
        count = np.int64(final.max(initial=0)) + 1
        found, total = np.zeros(index.shape[1], np.int32), 0
        for start in range(0, index.shape[1], EDGES_AT_ONCE):
            part = slice(start, start + EDGES_AT_ONCE)
            distinct, inverse = np.unique(
                final[index[0, part]] * count + final[index[1, part]], return_inverse=True
            )
            found[part] = inverse + total
            total += len(distinct)
        return found


class Numbering:
    """Numbers the colours that occur in a batch 0, 1, ..., by a table over all colours of the data set."""

    def __init__(self, colours: Ints) -> None:
        """Prepare the table; `colours` are those of all nodes."""
        self._table = np.zeros(int(colours.max(initial=-1)) + 1, np.int32)

    def start(self, colours: Ints) -> Ints:
        """Number the colours of a batch; return one place of each colour, in the order of the numbers."""
        place = np.arange(len(colours), dtype=np.int32)
        self._table[colours] = place
        places = np.flatnonzero(self._table[colours] == place)
        self._table[colours[places]] = np.arange(len(places))
        return places

    def __getitem__(self, colours: Ints) -> Ints:
        """Return the numbers of these colours within the batch that was started last."""
        found: Ints = self._table[colours]
        return found


def _refined(before: Ints, neighbours: Ints, ptr: Ints, numbers: np.random.Generator) -> tuple[Ints, Ints]:
    """Return the colours after a layer, and the first node of each colour.

    Each colour gets two random numbers, for a node itself and for a neighbour, and nodes are told
    apart by the sum of these modulo 2^64. Two nodes that differ have the same sum with a
    probability of some 2^-60; with the three million nodes of the largest data set that is one
    chance in a hundred thousand for any pair of them.
    """
    own, other = numbers.integers(0, 2**64, size=(2, int(before.max(initial=0)) + 1), dtype=np.uint64)
    sums = np.concatenate([np.zeros(1, np.uint64), other[before][neighbours].cumsum(dtype=np.uint64)])
    _, first, after = np.unique(
        own[before] + sums[ptr[1:]] - sums[ptr[:-1]], return_index=True, return_inverse=True
    )
    return after.astype(np.int32), first


def _sums(nodes: Ints, before: Ints, neighbours: Ints, ptr: Ints) -> scipy.sparse.csr_array:
    """Return one row per node, which counts the colours of the node and of its neighbours."""
    shape = (len(nodes), int(before.max(initial=0)) + 1)
    theirs, edges, _ = cut(ptr, nodes)
    around = ones_csr(before[neighbours[edges]], theirs, shape)
    itself = ones_csr(before[nodes], np.arange(len(nodes) + 1), shape)
    found = scipy.sparse.csr_array(around + itself)
    found.sum_duplicates()
    return found


def ones_csr(columns: Ints, ptr: Ints, shape: tuple[int, int]) -> scipy.sparse.csr_array:
    return scipy.sparse.csr_array((np.ones(len(columns), np.float32), columns, ptr), shape=shape)
