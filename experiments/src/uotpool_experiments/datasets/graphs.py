"""Graphs of the TU collection: all nodes and edges in one table, from which batches are cut."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from uotpool import checks
from uotpool_experiments.datasets import archives, catalog, digests, fetch, unpinned
from uotpool_experiments.datasets.catalog import GraphStatistics
from uotpool_experiments.datasets.errors import DatasetRefusedError


@dataclass(frozen=True, eq=False)
class Graphs:
    """Labelled graphs, ragged: graph g has the nodes ptr[g] .. ptr[g + 1] - 1, also those without an edge.

    The tensors are on the CPU; a batch is cut there and then moved.

    Attributes:
        name: of the data set.
        x: the labels of the nodes, 0 .. num_node_labels - 1, int64, (nodes,); None if the data set
            has none.
        edge_index: the two nodes of each edge, int64, (2, edges), numbered over all graphs. Each
            edge is there in both directions, a self-loop once; sorted by the first node, then the
            second, so also by graph.
        ptr: where the nodes of the graphs start and end, int64, (graphs + 1,).
        edge_ptr: where the edges of the graphs start and end, int64, (graphs + 1,).
        y: the labels of the graphs, 0 .. num_classes - 1, int64, (graphs,).
        num_node_labels: the number of node labels of the whole data set, also in a subset; 0 if
            there are none.
        num_classes: the number of classes of the whole data set.
    """

    name: str
    x: Tensor | None
    edge_index: Tensor
    ptr: Tensor
    edge_ptr: Tensor
    y: Tensor
    num_node_labels: int
    num_classes: int

    def __post_init__(self) -> None:
        graphs = self.y.numel()
        _check("y", self.y, (graphs,))
        _check("ptr", self.ptr, (graphs + 1,))
        _check("edge_ptr", self.edge_ptr, (graphs + 1,))
        _check("edge_index", self.edge_index, (2, self.edge_index.shape[-1]))
        if self.x is not None:
            _check("x", self.x, (self.num_nodes,))
        if int(self.edge_ptr[-1]) != self.edge_index.shape[1]:
            edges = self.edge_index.shape[1]
            raise ValueError(f"edge_ptr: expected {edges} (edges) at its end, got {int(self.edge_ptr[-1])}")

    def __len__(self) -> int:
        return len(self.y)

    @cached_property
    def num_nodes(self) -> int:
        return int(self.ptr[-1])

    @property
    def sizes(self) -> Tensor:
        """The number of nodes of each graph, (graphs,)."""
        return self.ptr.diff()

    @cached_property
    def batch(self) -> Tensor:
        """The graph of each node, (nodes,)."""
        return torch.from_numpy(np.repeat(np.arange(len(self)), self.sizes.numpy()))

    def features(self, kind: str) -> Tensor:
        """Features of the nodes, float32, (nodes, d).

        Args:
            kind: "constant" for a one at each node, as in the paper, or "labels" for one-hot labels
                of the nodes, with one column per label of the whole data set.
        """
        checks.one_of("kind", kind, ("constant", "labels"))
        if kind == "constant":
            return torch.ones(self.num_nodes, 1)
        if self.x is None:
            raise ValueError(f"kind: expected 'constant', as {self.name} has no node labels, got {kind!r}")
        return torch.nn.functional.one_hot(self.x, self.num_node_labels).float()

    def subset(self, indices: Tensor | np.ndarray | Sequence[int]) -> Graphs:
        """Return the graphs with these numbers, in this order; a number may come more than once."""
        which = torch.as_tensor(indices)
        if which.numel() == 0:
            which = which.reshape(-1).long()  # the dtype of an empty list says nothing
        checks.integers("indices", which)
        if which.numel() and not 0 <= int(which.min()) <= int(which.max()) < len(self):
            found = f"{int(which.min())} to {int(which.max())}"
            raise ValueError(f"indices: expected numbers of graphs, >= 0 and < {len(self)}, got {found}")
        # We use numpy: torch starts its threads for the least repeat_interleave, which on busy
        # cores takes milliseconds for what one core does in microseconds.
        chosen = which.numpy()
        ptr, nodes, moves = cut(self.ptr.numpy(), chosen)
        edge_ptr, edges, _ = cut(self.edge_ptr.numpy(), chosen)
        ends = self.edge_index.numpy().take(edges, axis=1)
        ends += np.repeat(moves, np.diff(edge_ptr))  # the ends of an edge move with the nodes of its graph
        return Graphs(
            self.name,
            None if self.x is None else torch.from_numpy(self.x.numpy()[nodes]),
            torch.from_numpy(ends),
            torch.from_numpy(ptr),
            torch.from_numpy(edge_ptr),
            torch.from_numpy(self.y.numpy()[chosen]),
            self.num_node_labels,
            self.num_classes,
        )

    def without_loops(self) -> Graphs:
        """Return the same graphs without edges from a node to itself."""
        kept = self.edge_index[0] != self.edge_index[1]
        before = torch.cat([kept.new_zeros(1, dtype=torch.long), kept.cumsum(0)])
        return replace(self, edge_index=self.edge_index[:, kept], edge_ptr=before[self.edge_ptr])

    def statistics(self) -> GraphStatistics:
        """Count as Table 4 of the paper does: each edge once for both directions, self-loops included."""
        loops = int((self.edge_index[0] == self.edge_index[1]).sum())
        edges = (self.edge_index.shape[1] + loops) / 2
        count = max(len(self), 1)
        means = round(self.num_nodes / count, 2), round(edges / count, 2)
        return GraphStatistics(len(self), *means, len(self.y.unique()))


def _check(name: str, x: Tensor, shape: tuple[int, ...]) -> None:
    if x.shape != shape or x.dtype != torch.int64:
        checks.fail(name, f"an int64 tensor of shape {shape}", x)


def cut(ptr: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the ptr of the chosen parts, their rows, and the distance by which the rows of each part move."""
    starts = ptr[chosen]
    sizes = ptr[chosen + 1] - starts
    new = np.zeros(len(chosen) + 1, np.int64)
    sizes.cumsum(out=new[1:])
    moves = new[:-1] - starts
    return new, np.arange(new[-1]) - np.repeat(moves, sizes), moves


def load(name: str) -> Graphs:
    """Load the graphs of a TU data set; verify its file, its texts and its statistics.

    Args:
        name: the name of a data set of the task "graph" in the catalogue, or of any other one in
            the TU collection. No checksum of the others is known: a file in the data folder must be
            listed in SHA256SUMS there; a fetched one is taken as it comes, with a warning, and
            listed for the next time.

    Raises:
        DatasetMissingError: the file is not there and cannot be fetched.
        DatasetRefusedError: the file does not hold this data set, or any.
    """
    if not isinstance(name, str):
        checks.fail("name", "the name of a data set", name, TypeError)
    path = locate(name)
    graphs = read(path)
    known = catalog.CATALOG.get(name)
    if known is not None and graphs.statistics() != known.statistics:
        raise DatasetRefusedError(f"{path}: expected {known.statistics}, found {graphs.statistics()}")
    return graphs


def locate(name: str) -> Path:
    """Return the verified file of a data set; fetch it if need be."""
    known = catalog.CATALOG.get(name)
    if known is None:
        return unpinned.locate(name, read)
    if known.task != "graph":
        names = [entry.name for entry in catalog.CATALOG.values() if entry.task == "graph"]
        checks.fail("name", f"a data set of graphs ({', '.join(names)}, or another TU data set)", name)
    return fetch.locate(known)


def read(path: Path) -> Graphs:
    """Read the graphs in the TU archive `NAME.zip`; unlike `load`, accept any graphs.

    The result depends on the graphs only, not on the order in which the archive lists the edges or
    on how often it lists one. Archives of the TU site are reported to list some edges twice
    (github.com/dmlc/dgl, 2915).
    """
    # We do not use torch_geometric.io.read_tu_data: it needs the texts unpacked (363 MB of COLLAB),
    # takes about ten times as long, drops self-loops, and trusts the texts.
    texts = _numbers(path)
    _, y = np.unique(texts["graph_labels"], return_inverse=True)
    ptr = _node_ptr(path, texts["graph_indicator"], len(y))
    labels, x = _node_labels(path, texts.get("node_labels"), int(ptr[-1]))
    edges = _edges(path, texts.pop("A"), ptr)
    return Graphs(
        name=path.stem,
        x=None if x is None else torch.from_numpy(x),
        edge_index=torch.from_numpy(edges),
        ptr=torch.from_numpy(ptr),
        edge_ptr=torch.from_numpy(np.searchsorted(edges[0], ptr)),
        y=torch.from_numpy(y),
        num_node_labels=labels,
        num_classes=int(y.max()) + 1,
    )


def _refuse(path: Path, kind: str, expected: str, found: object) -> NoReturn:
    raise DatasetRefusedError(f"{path}: expected {expected} in {path.stem}_{kind}.txt, found {found}")


def _numbers(path: Path) -> dict[str, np.ndarray]:
    """Return the numbers in each text that we use, flat."""
    with archives.opened(path) as archive:
        members = digests.members(archive, path.stem)
        members.pop("node_attributes", None)
        return {kind: _parse(path, kind, archives.read(archive, name)) for kind, name in members.items()}


def _parse(path: Path, kind: str, text: bytes) -> np.ndarray:
    if not text or text.isspace():  # numpy finds a 0 in spaces
        return np.empty(0, np.int64)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)  # older numpy only warns, and stops there
            return np.fromstring(text.translate(bytes.maketrans(b",", b" ")), dtype=np.int64, sep=" ")
    except (ValueError, DeprecationWarning) as error:
        _refuse(path, kind, "whole numbers", error)


def _node_ptr(path: Path, indicator: np.ndarray, graphs: int) -> np.ndarray:
    """Return the ptr of the nodes from the graph of each node.

    Not all nodes have edges, so we do not count there.
    """
    kind = "graph_indicator"
    falls = np.flatnonzero(indicator[1:] < indicator[:-1])
    if len(falls):
        found = f"{indicator[falls[0] + 1]} after {indicator[falls[0]]} in line {falls[0] + 2}"
        _refuse(path, kind, "the nodes in the order of their graphs", found)
    expected = f"the graphs 1 to {graphs}, as many as there are labels, each with a node,"
    if not graphs or not len(indicator):
        _refuse(path, kind, expected, f"{len(indicator)} lines")
    if indicator[0] != 1 or indicator[-1] != graphs:
        _refuse(path, kind, expected, f"{indicator[0]} to {indicator[-1]}")
    sizes = np.bincount(indicator, minlength=graphs + 1)[1:]
    if not sizes.all():
        _refuse(path, kind, expected, f"none of graph {np.flatnonzero(sizes == 0)[0] + 1}")
    return np.append(0, np.cumsum(sizes))


def _node_labels(path: Path, labels: np.ndarray | None, nodes: int) -> tuple[int, np.ndarray | None]:
    """Return how many node labels there are, and the label of each node, numbered from 0 in sorted order."""
    if labels is None:
        return 0, None
    if len(labels) != nodes:
        _refuse(path, "node_labels", f"{nodes} numbers, one for each node,", len(labels))
    values, x = np.unique(labels, return_inverse=True)
    return len(values), x


def _edges(path: Path, ends: np.ndarray, ptr: np.ndarray) -> np.ndarray:
    """Return the edges (2, edges) between nodes numbered from 0, each once per direction, sorted."""
    nodes = int(ptr[-1])
    if len(ends) % 2:
        _refuse(path, "A", "two nodes for each edge", f"{len(ends)} numbers")
    if len(ends) and not (1 <= ends.min() and ends.max() <= nodes):
        place = np.flatnonzero((ends < 1) | (ends > nodes))[0]
        expected = f"nodes >= 1 and <= {nodes}, the lines of {path.stem}_graph_indicator.txt,"
        _refuse(path, "A", expected, f"{ends[place]} in line {place // 2 + 1}")
    ends -= 1  # in place: COLLAB has 49 million
    first, second = ends[::2], ends[1::2]
    graph = np.repeat(np.arange(len(ptr) - 1, dtype=np.int32), np.diff(ptr))
    across = np.flatnonzero(graph[first] != graph[second])
    if len(across):
        place = across[0]
        found = f"graphs {graph[first[place]] + 1} and {graph[second[place]] + 1} joined in line {place + 1}"
        _refuse(path, "A", "edges between nodes of one graph", found)
    keys = first * nodes + second  # one number per edge, in the order of the edges
    if not (keys[1:] > keys[:-1]).all():
        keys, places = np.unique(keys, return_index=True)
        first, second = first[places], second[places]
    edges = np.stack([first, second])
    _check_directions(path, keys, edges, nodes)
    return edges


def _check_directions(path: Path, keys: np.ndarray, edges: np.ndarray, nodes: int) -> None:
    """Refuse a directed graph: each edge must be there in both directions."""
    upwards, downwards = edges[0] < edges[1], edges[0] > edges[1]
    turned = edges[1, downwards] * nodes + edges[0, downwards]
    turned.sort()
    if not np.array_equal(keys[upwards], turned):
        alone = np.setxor1d(keys[upwards], turned, assume_unique=True)
        low, high = divmod(int(alone[0]), nodes)
        found = f"one direction of {len(alone)} edges, such as {low + 1}, {high + 1}"
        _refuse(path, "A", "each edge in both directions", found)
