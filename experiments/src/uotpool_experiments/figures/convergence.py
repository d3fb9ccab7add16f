"""Figure 3a: how the solvers come near the optimum with the number of modules K, and where they stop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from uotpool_experiments.figures.measured import Lines
from uotpool_experiments.figures.problems import COLOURS, LABELS, MARKERS, power, short
from uotpool_experiments.solvers import FORMULATIONS, SOLVERS

CURVES = "against K"  # the part of the measurement that is drawn
COLUMNS = ("part", "size", "alpha0", "alpha1", "alpha2", "solver", "formulation", "K", "objective", "gap")
LEAST, MOST = 1e-16, 1e5  # what is drawn for less, as axes say; the top
MEASURES = {"objective": "objective minus optimum", "gap": "duality gap"}
Weights = tuple[float, float, float]
Curve = dict[str, list[float]]  # by measure, a value for each K; infinity where there is no plan to measure


def draw(measured: Lines) -> tuple[Figure, list[str]]:
    lines = [line for line in measured if line["part"] == CURVES]
    modules = tuple(sorted({int(line["K"]) for line in lines}))
    (measured_size,) = {line["size"] for line in lines}
    sets, n, d = measured_size.split(" x ")
    settings = list(dict.fromkeys(_weights(line) for line in lines))
    size: dict[str, Any] = {"figsize": (10, 5.8), "layout": "constrained", "sharex": True, "sharey": True}
    figure, axes = plt.subplots(len(MEASURES), len(settings), squeeze=False, **size)
    words = []
    for column, weights in enumerate(settings):
        curves = _curves(line for line in lines if _weights(line) == weights)
        for (solver, formulation), curve in curves.items():
            for ax, measure in zip(axes[:, column], MEASURES, strict=True):
                _line(ax, modules, curve[measure], solver, formulation)
        alphas = ", ".join(map(power, weights))
        axes[0, column].set_title(r"$\alpha_0, \alpha_1, \alpha_2$ = " + alphas, fontsize=10)
        axes[-1, column].set_xlabel("modules K")
        words += [f"alpha = {alphas}: " + _in_words(curves, f, modules) for f in FORMULATIONS]
    for row, measure in zip(axes, MEASURES.values(), strict=True):
        row[0].set_ylabel(
            f"{measure}\n(median of {sets} sets {n} x {d};\nless than {short(LEAST, 0)} drawn there)"
        )
        for ax in row:
            ax.set_xscale("log", base=2)
            ax.set_yscale("log")
            ax.set_ylim(LEAST / 5, MOST)
            ax.set_xticks(modules, [f"{k}" for k in modules])
            ax.grid(alpha=0.3)
    figure.legend(handles=_legend(), loc="outside lower center", ncols=6, fontsize=9, frameon=False)
    return figure, words


def _weights(line: dict[str, str]) -> Weights:
    return float(line["alpha0"]), float(line["alpha1"]), float(line["alpha2"])


def _curves(lines: Iterable[dict[str, str]]) -> dict[tuple[str, str], Curve]:
    """The curve of each solver and formulation, in the order of K."""
    found: dict[tuple[str, str], Curve] = {}
    for line in sorted(lines, key=lambda line: int(line["K"])):
        curve = found.setdefault((line["solver"], line["formulation"]), {measure: [] for measure in MEASURES})
        for measure, values in curve.items():
            values.append(float(line[measure]))
    return {(s, f): found[s, f] for f in FORMULATIONS for s in SOLVERS}


def _style(solver: str, formulation: str) -> dict[str, Any]:
    exact = formulation == "exact"
    return {
        "color": COLOURS[solver],
        "marker": MARKERS[solver],
        "markersize": 5,
        "markerfacecolor": COLOURS[solver] if exact else "white",
        "linestyle": "-" if exact else "--",
        "linewidth": 1.4,
    }


def _line(ax: Axes, modules: tuple[int, ...], values: list[float], solver: str, formulation: str) -> None:
    """Where it is infinite, words."""
    finite = np.isfinite(values)
    drawn = np.where(finite, np.maximum(values, LEAST), np.nan)
    ax.plot(modules, drawn, **_style(solver, formulation))
    if not finite.all():
        i = int(np.argmin(finite))
        ax.text(
            modules[i],
            MOST / 3,
            f"{LABELS[solver]}, {formulation}: no plan\n(0 or not finite)",
            color=COLOURS[solver],
            fontsize=8,
            va="top",
        )


def _legend() -> list[Line2D]:
    return [Line2D([], [], label=f"{LABELS[s]}, {f}", **_style(s, f)) for f in FORMULATIONS for s in SOLVERS]


def _in_words(curves: dict[tuple[str, str], Curve], formulation: str, modules: tuple[int, ...]) -> str:
    shown = [i for i, K in enumerate(modules) if K in (4, 16, modules[-1])]
    parts = []
    for solver in SOLVERS:
        curve = curves[solver, formulation]
        gaps = ", ".join(_number(curve["gap"][i]) for i in shown)
        above = ", ".join(_number(curve["objective"][i]) for i in shown)
        parts.append(f"{LABELS[solver]} {above} (gap {gaps})")
    at = ", ".join(str(modules[i]) for i in shown)
    return f"objective above the optimum at K = {at}, {formulation}: " + "; ".join(parts)


def _number(value: float) -> str:
    return short(value) if value >= LEAST else "0"
