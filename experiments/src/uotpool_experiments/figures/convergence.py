"""Figure 3a: how the solvers come near the optimum with the number of modules K, and where they stop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from uotpool import duality_gap, objective, suggest_rho, uot_plan
from uotpool_experiments.figures.problems import (
    COLOURS,
    FORMULATIONS,
    LABELS,
    MARKERS,
    REGULARIZER,
    SOLVERS,
    power,
    problem,
    seeded,
    short,
)

N, D = 500, 100  # the paper's; it has 50 sets
SETS = 3
MODULES = tuple(2**e for e in range(9))
# alpha0 = 1, where the published Sinkhorn is right; a smaller one; and large weights of the marginals.
Weights = tuple[float, float, float]
WEIGHTS: tuple[Weights, ...] = ((1.0, 1.0, 1.0), (0.1, 1.0, 1.0), (0.1, 10.0, 10.0))
LEAST, MOST = 1e-16, 1e5  # what is drawn for less, as axes say; the top
MEASURES = ("objective minus optimum", "duality gap")


@dataclass
class Curve:
    """Medians over the sets, a value for each K; infinity where a set has no plan to measure."""

    objective: list[float] = field(default_factory=list)
    gap: list[float] = field(default_factory=list)


def draw(seed: int, quick: bool) -> tuple[Figure, list[str]]:
    torch.set_num_threads(1)
    sets, n, d = (2, 30, 10) if quick else (SETS, N, D)
    modules = MODULES[:5] if quick else MODULES
    X = problem(sets, n, d, seeded(seed)).X
    size: dict[str, Any] = {"figsize": (10, 5.8), "layout": "constrained", "sharex": True, "sharey": True}
    figure, axes = plt.subplots(len(MEASURES), len(WEIGHTS), **size)
    words = []
    for column, weights in enumerate(WEIGHTS):
        best = {r: _optimum(X, weights, r) for r in ("entropic", "quadratic")}
        curves = {
            (s, f): _curve(X, weights, s, f, modules, best[REGULARIZER[s]])
            for f in FORMULATIONS
            for s in SOLVERS
        }
        for (solver, formulation), curve in curves.items():
            for ax, values in zip(axes[:, column], (curve.objective, curve.gap), strict=True):
                _line(ax, modules, values, solver, formulation)
        alphas = ", ".join(map(power, weights))
        axes[0, column].set_title(r"$\alpha_0, \alpha_1, \alpha_2$ = " + alphas, fontsize=10)
        axes[-1, column].set_xlabel("modules K")
        words += [f"alpha = {alphas}: " + _in_words(curves, f, modules) for f in FORMULATIONS]
    for line, measure in zip(axes, MEASURES, strict=True):
        line[0].set_ylabel(
            f"{measure}\n(median of {sets} sets {n} x {d};\nless than {short(LEAST, 0)} drawn there)"
        )
        for ax in line:
            ax.set_xscale("log", base=2)
            ax.set_yscale("log")
            ax.set_ylim(LEAST / 5, MOST)
            ax.set_xticks(modules, [f"{k}" for k in modules])
            ax.grid(alpha=0.3)
    figure.legend(handles=_legend(), loc="outside lower center", ncols=6, fontsize=9, frameon=False)
    return figure, words


def _optimum(X: Tensor, weights: Weights, regularizer: str) -> Tensor:
    solver = "badmm-q" if regularizer == "quadratic" else "sinkhorn"
    P = uot_plan(X, *weights, solver=solver, K="converged")
    return objective(X, P, *weights, regularizer=regularizer)


def _curve(
    X: Tensor, weights: Weights, solver: str, formulation: str, modules: tuple[int, ...], best: Tensor
) -> Curve:
    regularizer = REGULARIZER[solver]
    rho = None if solver == "sinkhorn" else suggest_rho(solver, *weights, spread=float(X.std()))
    curve = Curve()
    for K in modules:
        P = uot_plan(X, *weights, rho, solver=solver, formulation=formulation, K=K)
        mass = P.sum((1, 2), keepdim=True)
        if not bool((mass.isfinite() & (mass > 0)).all()):
            curve.objective.append(np.inf)
            curve.gap.append(np.inf)
            continue
        P = P / mass  # the published ones have another
        curve.objective.append(float((objective(X, P, *weights, regularizer=regularizer) - best).median()))
        curve.gap.append(float(duality_gap(X, P, *weights, regularizer=regularizer).median()))
    return curve


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
        gaps = ", ".join(_number(curve.gap[i]) for i in shown)
        above = ", ".join(_number(curve.objective[i]) for i in shown)
        parts.append(f"{LABELS[solver]} {above} (gap {gaps})")
    at = ", ".join(str(modules[i]) for i in shown)
    return f"objective above the optimum at K = {at}, {formulation}: " + "; ".join(parts)


def _number(value: float) -> str:
    return short(value) if value >= LEAST else "0"
