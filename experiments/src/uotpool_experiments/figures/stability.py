"""Figure 2b: the mass of the plan over alpha0 x (alpha1 = alpha2), in float32, where it should be 1."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D

from uotpool_experiments.figures.measured import Lines
from uotpool_experiments.figures.problems import LABELS, short
from uotpool_experiments.solvers import FORMULATIONS, SOLVERS

UNIT = "[0, 1]"  # the X that is drawn; others are measured too
ALPHA = "alpha1, alpha2"
COLUMNS = ("X", "solver", "formulation", "alpha0", ALPHA, "mass")
OFF = 1e-3  # of a mass that is not 1
LOW, HIGH = 1e-6, 1e4  # of the colours: from rounding in float32


def draw(measured: Lines) -> tuple[Figure, list[str]]:
    lines = [line for line in measured if line["X"] == UNIT]
    decades = tuple(sorted({float(line["alpha0"]) for line in lines}))
    size: dict[str, Any] = {"figsize": (9.5, 7.0), "layout": "constrained", "sharex": True, "sharey": True}
    figure, axes = plt.subplots(len(FORMULATIONS), len(SOLVERS), **size)
    words = []
    for line, formulation in zip(axes, FORMULATIONS, strict=True):
        for ax, solver in zip(line, SOLVERS, strict=True):
            mass = masses(lines, solver, formulation, decades)
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
        Line2D([], [], linestyle="", label=f"off: |mass - 1| > {OFF:g}; float32, K = 4"),
    ]
    figure.legend(handles=marks, loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    return figure, words


def masses(lines: Lines, solver: str, formulation: str, decades: tuple[float, ...]) -> np.ndarray:
    """Sums of the plans of one set, [alpha1 = alpha2, alpha0]; NaN where an entry is not finite."""
    found = {
        (float(line[ALPHA]), float(line["alpha0"])): float(line["mass"])
        for line in lines
        if (line["solver"], line["formulation"]) == (solver, formulation)
    }
    return np.array([[found[alpha, alpha0] for alpha0 in decades] for alpha in decades])


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
