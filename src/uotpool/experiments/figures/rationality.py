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

from uotpool.experiments.data.graphs import Graphs
from uotpool.experiments.figures import trained
from uotpool.experiments.graph.encoder import GraphEncoder
from uotpool.experiments.graph.settings import MOST_EPOCHS, Settings

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
        *_, (graphs, encoder) = trained.epochs(dataset, seed, settings)
        looked = _look(graphs, encoder)
        said = [_like_nodes(looked), _bridges(looked)]
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
    which = torch.arange(MEASURED)
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


def _like_nodes(looked: list[Looked]) -> str:
    """Columns of the plan (each of mass 1) of nodes in different graphs: those alike, and all."""
    columns = np.concatenate([one.P / one.P.sum(0) for one in looked], axis=1)
    colours = np.array([c for one in looked for c in one.colours])
    graph = np.repeat(np.arange(len(looked)), [len(one.colours) for one in looked])
    distance = np.abs(columns[:, :, None] - columns[:, None, :]).sum(0) / 2
    other = graph[:, None] != graph[None, :]
    same = colours[:, None] == colours[None, :]
    alike, unlike = distance[other & same].mean(), distance[other & ~same].mean()
    return (
        f"columns of nodes with the same surroundings in different graphs differ by {alike:.3f} "
        f"(total variation), of others by {unlike:.3f}"
    )


def _bridges(looked: list[Looked]) -> str:
    """Mass of the nodes whose removal leaves their graph in more parts."""
    bridging, others = [], []
    for one in looked:
        cuts = set(nx.articulation_points(one.graph))
        bridging += [w for n, w in enumerate(one.weights) if n in cuts]
        others += [w for n, w in enumerate(one.weights) if n not in cuts]
    if not bridging:
        return "no node joins parts of a graph"
    return (
        f"nodes that join parts of a graph have {np.mean(bridging):.2f} times the mass of a uniform plan, "
        f"others {np.mean(others):.2f} times"
    )


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
