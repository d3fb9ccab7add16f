"""Figure 4: where the plans of trained models look in a graph; like nodes and bridging nodes compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from uotpool_experiments.datasets.graphs import Graphs
from uotpool_experiments.figures import trained
from uotpool_experiments.tasks.graph.encoder import GraphEncoder
from uotpool_experiments.tasks.graph.settings import MOST_EPOCHS, Settings

DATASETS = ("MUTAG", "IMDB-BINARY")
DRAWN = 2  # graphs of each data set
SIZES = (12, 20)  # nodes of a graph that can be drawn
MEASURED = 60  # graphs that are compared
STEPS = 2  # nodes whose surroundings are the same to so many steps are called alike


@dataclass(frozen=True)
class Looked:
    """A graph, its plan (D, nodes), and a name for the neighbourhood of each node."""

    graph: nx.Graph
    P: np.ndarray
    colours: list[str]

    @property
    def weights(self) -> np.ndarray:
        """Mass of each node, 1 for that of a uniform plan."""
        found: np.ndarray = self.P.sum(0) * self.P.shape[1]
        return found


def draw(seed: int, quick: bool) -> tuple[Figure, list[str]]:
    figure = plt.figure(figsize=(11, 9.5), layout="constrained")
    parts: Any = figure.subfigures(len(DATASETS), 1)
    words = []
    for dataset, part in zip(DATASETS, parts, strict=True):
        settings = Settings(epochs=1 if quick else MOST_EPOCHS)
        training = trained.epochs(dataset, seed, settings)
        before = _look(*next(training))
        *_, last = training
        looked = _look(*last)
        said = _compared(before, looked)
        words += [f"{dataset}: {text}" for text in said]
        part.suptitle(f"{dataset}: " + ";\n".join(said), fontsize=9)
        drawn = [one for one in looked if SIZES[0] <= len(one.colours) <= SIZES[1]][:DRAWN]
        axes = part.subplots(1, 2 * DRAWN, width_ratios=[1.1, 1] * DRAWN)
        for one, (left, right) in zip(drawn, axes.reshape(-1, 2), strict=False):
            order = sorted(range(len(one.colours)), key=lambda n: (one.colours[n], n))
            _draw_graph(left, one, order)
            _draw_plan(right, one, order)
    return figure, words


def _look(graphs: Graphs, encoder: GraphEncoder) -> list[Looked]:
    which = torch.linspace(0, len(graphs) - 1, MEASURED).long()  # sorted by class, perhaps
    part = graphs.subset(which)
    found = []
    for g, P in enumerate(trained.plans(encoder, graphs, which)):
        start, end = int(part.ptr[g]), int(part.ptr[g + 1])
        edges = part.edge_index[:, int(part.edge_ptr[g]) : int(part.edge_ptr[g + 1])] - start
        graph = nx.Graph()
        graph.add_nodes_from(range(end - start), kind="node")
        graph.add_edges_from(edges.T.tolist())
        rounds = nx.weisfeiler_lehman_subgraph_hashes(graph, node_attr="kind", iterations=STEPS)
        colours = [rounds[n][-1] for n in graph]
        found.append(Looked(graph, P.numpy(), colours))
    return found


def _compared(before: list[Looked], after: list[Looked]) -> list[str]:
    """In words; before training beside it, as a network that has learned nothing also sees like nodes alike."""
    (alike_0, unlike_0), (alike, unlike) = _differences(before), _differences(after)
    (joining_0, others_0), (joining, others) = _masses(before), _masses(after)
    return [
        f"columns of nodes with the same surroundings in different graphs differ by {alike:.3f} (total "
        f"variation), of others by {unlike:.3f} (before training {alike_0:.3f}, {unlike_0:.3f})",
        f"nodes that join parts of a graph have {joining:.2f} times the mass of a uniform plan, others "
        f"{others:.2f} times (before training {joining_0:.2f}, {others_0:.2f})",
    ]


def _differences(looked: list[Looked]) -> tuple[float, float]:
    """Of columns of the plan (each of mass 1) of nodes in different graphs: those alike, and the others."""
    columns = np.concatenate([one.P / one.P.sum(0).clip(min=1e-30) for one in looked], axis=1)
    colours = np.array([c for one in looked for c in one.colours])
    graph = np.repeat(np.arange(len(looked)), [len(one.colours) for one in looked])
    distance = np.abs(columns[:, :, None] - columns[:, None, :]).sum(0) / 2
    other = graph[:, None] != graph[None, :]
    same = colours[:, None] == colours[None, :]
    return float(distance[other & same].mean()), float(distance[other & ~same].mean())


def _masses(looked: list[Looked]) -> tuple[float, float]:
    """Mean mass of nodes whose removal leaves their graph in more parts, and of the others; 1 is uniform."""
    joining: list[float] = []
    others: list[float] = []
    for one in looked:
        cuts = set(nx.articulation_points(one.graph))
        for node, weight in enumerate(one.weights):
            (joining if node in cuts else others).append(weight)
    return float(np.mean(joining)), float(np.mean(others))


def _draw_graph(ax: Axes, one: Looked, order: list[int]) -> None:
    place = nx.kamada_kawai_layout(one.graph)
    weights = one.weights
    nx.draw_networkx_edges(one.graph, place, ax=ax, edge_color="#999999")
    dots = nx.draw_networkx_nodes(
        one.graph, place, ax=ax, node_color=weights, cmap="viridis", node_size=170, edgecolors="black"
    )
    names = {node: str(i + 1) for i, node in enumerate(order)}
    low, high = float(weights.min()), float(weights.max())
    for node, (x, y) in place.items():
        dark = weights[node] < (low + high) / 2
        ax.text(x, y, names[node], ha="center", va="center", fontsize=7, color="white" if dark else "black")
    ax.figure.colorbar(dots, ax=ax, label="mass of the node, 1 = uniform", location="bottom", shrink=0.8)
    ax.set_axis_off()


def _draw_plan(ax: Axes, one: Looked, order: list[int]) -> None:
    P = one.P[:, order] * one.P.size
    image = ax.imshow(P, aspect="auto", cmap="viridis", vmin=0, interpolation="nearest")
    ax.set_xticks(range(len(order)), [str(i + 1) for i in range(len(order))], fontsize=6)
    ax.set_yticks([])
    ax.set_xlabel("nodes, those alike side by side")
    ax.set_ylabel("features")
    ax.figure.colorbar(image, ax=ax, label="plan, 1 = uniform", location="bottom", shrink=0.8)
