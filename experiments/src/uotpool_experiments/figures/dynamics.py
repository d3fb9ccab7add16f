"""Figure 3c: the plan of BADMM-E on MUTAG, before training and as it goes on."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from uotpool import Problem
from uotpool_experiments.figures import trained
from uotpool_experiments.tasks.graph.settings import MOST_EPOCHS, Settings

SHOWN = 6  # graphs of the pictures
MEASURED = 188  # graphs of the curves: all
HELD = 0.9  # of the mass


def draw(seed: int, quick: bool) -> tuple[Figure, list[str]]:
    last = 2 if quick else MOST_EPOCHS
    moments = sorted({0, 1, last // 4, last // 2, last})
    pictures: dict[int, np.ndarray] = {}
    divergence, support = [], []
    for epoch, (graphs, encoder) in enumerate(trained.epochs("MUTAG", seed, Settings(epochs=last))):
        found = trained.plans(encoder, graphs, torch.arange(MEASURED))
        divergence.append(np.mean([float(_stats(P.T).divergence) for P in found]))
        support.append(np.mean([share_that_holds(P, HELD) for P in found]))
        if epoch in moments:
            # Times the number of entries of a graph's plan: 1 is uniform, in small and in large graphs.
            pictures[epoch] = torch.cat([P * P.numel() for P in found[:SHOWN]], dim=1).numpy()
    figure = _figure(pictures, np.array(divergence), np.array(support))
    words = [
        f"divergence from uniform: {divergence[0]:.3f} nats before training, {divergence[-1]:.3f} after "
        f"{last} epochs; {100 * HELD:.0f} % of the mass in {100 * support[0]:.1f} % of the entries before, "
        f"{100 * support[-1]:.1f} % after"
    ]
    return figure, words


def _stats(P: Tensor) -> Any:
    """Return the statistics of a plan, for which its problem does not matter."""
    return Problem(P, alpha0=1.0, alpha1=1.0, alpha2=1.0).stats(P)


def share_that_holds(P: Tensor, mass: float) -> float:
    """The share of the largest entries that together hold this mass; `mass` itself for a uniform plan."""
    largest = P.flatten().sort(descending=True).values.cumsum(0)
    return (int((largest < mass).sum()) + 1) / P.numel()


def _figure(pictures: dict[int, np.ndarray], divergence: np.ndarray, support: np.ndarray) -> Figure:
    figure = plt.figure(figsize=(11, 5.2), layout="constrained")
    grid = figure.add_gridspec(2, len(pictures), height_ratios=(1.4, 1))
    top = max(2.0, float(np.quantile(list(pictures.values())[-1], 0.995)))
    axes = []
    for column, (epoch, P) in enumerate(pictures.items()):
        ax = figure.add_subplot(grid[0, column])
        image = ax.imshow(P, aspect="auto", cmap="viridis", vmin=0, vmax=top, interpolation="nearest")
        ax.set_title("before training" if epoch == 0 else f"epoch {epoch}", fontsize=10)
        ax.set_xlabel(f"nodes of {SHOWN} graphs")
        ax.set_yticks([])
        axes.append(ax)
    axes[0].set_ylabel("features")
    figure.colorbar(image, ax=axes, label="plan, 1 = uniform", pad=0.01)
    half = len(pictures) // 2
    for place, values, label in (
        (grid[1, :half], divergence, "divergence from\nuniform, nats"),
        (grid[1, half:], 100 * support, f"entries that hold\n{100 * HELD:.0f} % of the mass, %"),
    ):
        ax = figure.add_subplot(place)
        ax.plot(np.arange(len(values)), values, color="#0072B2", marker="o", markersize=3)
        ax.set_xlabel("epoch (0: before training)")
        ax.set_ylabel(label)
        ax.set_ylim(bottom=0)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.grid(alpha=0.3)
    return figure
