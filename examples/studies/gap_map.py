"""How near the optimum is a solver after K = 4, 8, 16 modules, over weights and rho?

Two measures: the duality gap, and the distance of the pooled output from that of the optimum (mean over
features, median over 20 random 12 x 6 problems with random priors; X in [0, 1]).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from torch import Tensor

from examples.studies.common import REGULARIZER, SOLVERS, problem, table
from uotpool import ConvergenceWarning, duality_gap, suggest_rho, uot_plan, uot_pool

WEIGHTS = tuple(10.0**e for e in (-2, -1, 0, 1, 2))
MARGINALS = ((0.1, 0.1), (1.0, 1.0), (10.0, 10.0), (100.0, 100.0), (0.1, 10.0), (10.0, 0.1), (1e4, 0.01))
MODULES = (4, 8, 16)
CASE = problem(20, 12, 6)
PRIORS: dict[str, Any] = {"p0": CASE.p0, "q0": CASE.q0}
SPREAD = float(CASE.X.std())
SolverOptions = Callable[[str, float, float, float], float]
RULES: dict[str, SolverOptions] = {
    "suggest_rho": lambda s, a0, a1, a2: suggest_rho(s, a0, a1, a2, spread=SPREAD),
    "0.1": lambda s, a0, a1, a2: 0.1,
    "0.3": lambda s, a0, a1, a2: 0.3,
    "1": lambda s, a0, a1, a2: 1.0,
    "10": lambda s, a0, a1, a2: 10.0,
    "alpha0": lambda s, a0, a1, a2: a0,
    "alpha0 + m / 2": lambda s, a0, a1, a2: a0 + a1 * a2 / (a1 + a2),
    "min(alpha1, alpha2)": lambda s, a0, a1, a2: min(a1, a2),
    "max(alpha1, alpha2)": lambda s, a0, a1, a2: max(a1, a2),
}


def optimum(solver: str, a0: float, a1: float, a2: float) -> Tensor:
    with warnings.catch_warnings():  # a gap of 1e-8 is plenty here, also where 200 steps leave a little more
        warnings.simplefilter("ignore", ConvergenceWarning)
        return uot_pool(CASE.X, a0, a1, a2, **PRIORS, solver=solver, K="converged", tol=1e-8)


def output_error(y: Tensor, best: Tensor) -> float:
    return float((y - best).abs().mean(-1).median())


def gap(solver: str, weights: tuple[float, float, float], rho: float | None, K: int) -> float:
    P = uot_plan(CASE.X, *weights, rho, **PRIORS, solver=solver, K=K)
    return float(duality_gap(CASE.X, P, *weights, **PRIORS, regularizer=REGULARIZER[solver]).median())


def rho_rules() -> None:
    grid = [(a0, *a) for a0 in WEIGHTS[:4] for a in MARGINALS]
    for solver in ("badmm-e", "badmm-q"):
        best = {w: optimum(solver, *w) for w in grid}
        rows = []
        for name, rule in RULES.items():
            row: list[object] = [name]
            for K in MODULES:
                errors = [
                    output_error(uot_pool(CASE.X, *w, rule(solver, *w), **PRIORS, solver=solver, K=K), best[w])
                    for w in grid
                ]
                row += [f"{sum(errors) / len(errors):.4f}", f"{max(errors):.3f}"]
            rows.append(row)
        start = uot_pool(CASE.X, 1.0, 1.0, 1.0, **PRIORS, K=0)
        away = sum(output_error(start, y) for y in best.values()) / len(best)
        print(f"{solver}: error of the pooled output over {len(grid)} settings (at the start: {away:.3f})\n")
        table(["rho", *(f"K={K} {m}" for K in MODULES for m in ("mean", "worst"))], rows)
        print()


def which_solver() -> None:
    """Median gap with alpha1 = alpha2, suggested rho."""
    for K in MODULES:
        rows = []
        for a0 in WEIGHTS:
            for a in WEIGHTS:
                w = (a0, a, a)
                rows.append([f"{a0:g}", f"{a:g}", *(gap(s, w, step(s, w), K) for s in SOLVERS)])
        print(f"median duality gap, K = {K}\n")
        table(["alpha0", "alpha1 = alpha2", *SOLVERS], rows)
        print()


def step(solver: str, w: tuple[float, float, float]) -> float | None:
    return None if solver == "sinkhorn" else suggest_rho(solver, *w, spread=SPREAD)


def draw(path: Path) -> None:
    fig, axes = plt.subplots(3, 3, figsize=(8.2, 7.6), layout="constrained", sharex=True, sharey=True)
    for row, solver in zip(axes, SOLVERS, strict=True):
        for ax, K in zip(row, MODULES, strict=True):
            values = [[gap(solver, (a0, a, a), step(solver, (a0, a, a)), K) for a0 in WEIGHTS] for a in WEIGHTS]
            image = heatmap(ax, values)
            if solver == SOLVERS[0]:
                ax.set_title(f"K = {K}")
            if solver == SOLVERS[-1]:
                ax.set_xlabel(r"$\alpha_0$")
        row[0].set_ylabel(f"{solver}\n" + r"$\alpha_1 = \alpha_2$")
    fig.colorbar(image, ax=axes, label=r"$\log_{10}$ median duality gap", shrink=0.6)
    fig.savefig(path, dpi=110)
    plt.close(fig)
    print(f"picture: {path}")


def draw_rho(path: Path) -> None:
    rows = [(solver, a) for solver in ("badmm-e", "badmm-q") for a in (0.1, 1.0, 10.0)]
    fig, axes = plt.subplots(6, 3, figsize=(8.2, 14), layout="constrained", sharex=True, sharey=True)
    for line, (solver, a) in zip(axes, rows, strict=True):
        for ax, K in zip(line, MODULES, strict=True):
            values = [[gap(solver, (a0, a, a), rho, K) for a0 in WEIGHTS] for rho in WEIGHTS]
            image = heatmap(ax, values)
            suggested = [math.log10(step(solver, (a0, a, a)) or 1.0) + 2 for a0 in WEIGHTS]
            ax.plot(range(5), suggested, "o", markerfacecolor="none", markeredgecolor="tab:red", markersize=16)
            if (solver, a) == rows[0]:
                ax.set_title(f"K = {K}")
            if (solver, a) == rows[-1]:
                ax.set_xlabel(r"$\alpha_0$")
        line[0].set_ylabel(rf"{solver}, $\alpha_1 = \alpha_2 = {a:g}$" + "\n" + r"$\rho$")
    fig.colorbar(image, ax=axes, label=r"$\log_{10}$ median duality gap (circle: suggested rho)", shrink=0.4)
    fig.savefig(path, dpi=90)
    plt.close(fig)
    print(f"picture: {path}")


def heatmap(ax: Axes, values: list[list[float]]) -> AxesImage:
    """Rows of a 5 x 5 map over WEIGHTS, as powers of ten."""
    logs = [[math.log10(max(g, 1e-16)) for g in line] for line in values]
    image = ax.imshow(logs, origin="lower", cmap="cividis", vmin=-12, vmax=2)
    for i, line in enumerate(logs):
        for j, g in enumerate(line):
            shade = "black" if g > -4 else "white"
            ax.text(j, i, f"{round(g)}", ha="center", va="center", fontsize=8, color=shade)
    ax.set_xticks(range(5), [f"{a:g}" for a in WEIGHTS])
    ax.set_yticks(range(5), [f"{a:g}" for a in WEIGHTS])
    return image


def main(figures: Path) -> None:
    torch.set_num_threads(1)
    rho_rules()
    which_solver()
    draw(figures / "gap_map.png")
    draw_rho(figures / "gap_map_rho.png")
