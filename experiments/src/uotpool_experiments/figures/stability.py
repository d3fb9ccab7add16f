"""Figure 2b: the mass of the plan over alpha0 x (alpha1 = alpha2), in float32, where it should be 1."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from torch import Tensor

from uotpool import uot_plan
from uotpool_experiments.figures.problems import FORMULATIONS, LABELS, SOLVERS, problem, seeded, short

N, D = 10, 5  # the paper's
FIRST = 1  # seed 0 is the input of the study behind docs/published-algorithms.md
K = 4
RHO = 1.0
DECADES = tuple(10.0**e for e in range(-5, 5))
OFF = 1e-3  # of a mass that is not 1
LOW, HIGH = 1e-6, 1e4  # of the colours: from rounding in float32


def masses(X: Tensor, solver: str, formulation: str, decades: tuple[float, ...] = DECADES) -> np.ndarray:
    """Sum of the plan of one set, [alpha1 = alpha2, alpha0]; NaN where an entry is not finite."""
    found = np.empty((len(decades), len(decades)))
    for i, alpha in enumerate(decades):
        for j, alpha0 in enumerate(decades):
            rho = None if solver == "sinkhorn" else RHO
            P = uot_plan(X, alpha0, alpha, alpha, rho, solver=solver, formulation=formulation, K=K)
            found[i, j] = float(P.sum()) if bool(P.isfinite().all()) else np.nan
    return found


def draw(seed: int, quick: bool) -> tuple[Figure, list[str]]:
    X = problem(1, N, D, seeded(seed + FIRST)).X.to(torch.float32)
    decades = DECADES[::3] if quick else DECADES
    size: dict[str, Any] = {"figsize": (9.5, 7.0), "layout": "constrained", "sharex": True, "sharey": True}
    figure, axes = plt.subplots(len(FORMULATIONS), len(SOLVERS), **size)
    words = []
    for line, formulation in zip(axes, FORMULATIONS, strict=True):
        for ax, solver in zip(line, SOLVERS, strict=True):
            mass = masses(X, solver, formulation, decades)
            off = np.abs(mass - 1)
            image = _map(ax, mass, decades)
            broken, wrong, empty = (int(c.sum()) for c in (np.isnan(off), off > OFF, mass == 0))
            worst = short(float(np.nanmax(off)))
            ax.set_title(
                f"{LABELS[solver]}, {formulation}\nNaN: {broken}, off: {wrong}, largest {worst}",
                fontsize=9,
            )
            words.append(
                f"{LABELS[solver]}, {formulation}, of {off.size} cells: {broken} with NaN or infinity, {wrong} "
                f"with a mass off by more than {OFF:g} ({empty} of them 0), largest |mass - 1| {worst}"
            )
        line[0].set_ylabel(r"$\alpha_1 = \alpha_2$")
    for ax in axes[-1]:
        ax.set_xlabel(r"$\alpha_0$")
    figure.colorbar(image, ax=axes, label="|mass of the plan - 1|", shrink=0.8, extend="both")
    marks = [
        Line2D(
            [], [], marker="x", color="black", linestyle="", markersize=5, label="NaN or infinity in the plan"
        ),
        Line2D([], [], marker=".", color="black", linestyle="", markersize=7, label="mass 0"),
        Line2D([], [], linestyle="", label=f"off: |mass - 1| > {OFF:g}; float32, K = {K}"),
    ]
    figure.legend(handles=marks, loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    return figure, words


def _map(ax: Axes, mass: np.ndarray, decades: tuple[float, ...]) -> AxesImage:
    off = np.abs(mass - 1)
    shades = plt.get_cmap("viridis").with_extremes(bad="white")
    shown = np.where(np.isnan(off), np.nan, np.clip(off, LOW, HIGH))  # a distance of 0 has no logarithm
    image = ax.imshow(shown, origin="lower", cmap=shades, norm=LogNorm(LOW, HIGH), interpolation="nearest")
    for marker, where in (("x", np.isnan(off)), (".", mass == 0)):
        rows, columns = np.nonzero(where)
        ax.scatter(columns, rows, marker=marker, s=22, color="black", linewidths=0.9)
    ticks = range(0, len(decades), 2 if len(decades) > 5 else 1)
    names = [rf"$10^{{{round(np.log10(decades[i]))}}}$" for i in ticks]
    ax.set_xticks(ticks, names)
    ax.set_yticks(ticks, names)
    return image
