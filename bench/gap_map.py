"""How near the optimum a solver is after K = 4, 8, 16 modules, over weights and rho. Draws gap_map*.png.

Two measures: the duality gap, and the distance of the pooled output from that of the optimum (mean over
features, median over 20 random 12 x 6 problems with random priors; X in [0, 1]).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from torch import Tensor
from uotpool_experiments.figures.problems import Problem
from uotpool_experiments.solvers import SOLVERS

from bench.problems import problem
from bench.rows import PART, Finding, spread
from bench.session import Session
from bench.steps import suggested
from tests.spelling import REGULARIZER, duality_gap, uot_plan, uot_pool
from uotpool import ConvergenceWarning

Weights = tuple[float, float, float]
WEIGHTS = tuple(10.0**e for e in (-2, -1, 0, 1, 2))
MARGINALS = ((0.1, 0.1), (1.0, 1.0), (10.0, 10.0), (100.0, 100.0), (0.1, 10.0), (10.0, 0.1), (1e4, 0.01))
STEPPING = ("badmm-e", "badmm-q")  # the solvers with a step rho
SLICES = (0.1, 1.0, 10.0)  # alpha1 = alpha2 of the map over rho
MODULES = (4, 8, 16)
RULES: dict[str, Callable[[float, float, float], float]] = {
    "0.1": lambda a0, a1, a2: 0.1,
    "0.3": lambda a0, a1, a2: 0.3,
    "1": lambda a0, a1, a2: 1.0,
    "10": lambda a0, a1, a2: 10.0,
    "alpha0": lambda a0, a1, a2: a0,
    "alpha0 + m / 2": lambda a0, a1, a2: a0 + a1 * a2 / (a1 + a2),
    "min(alpha1, alpha2)": lambda a0, a1, a2: min(a1, a2),
    "max(alpha1, alpha2)": lambda a0, a1, a2: max(a1, a2),
}
ERRORS = "error of the pooled output over settings of the weights"
GAPS = "median duality gap, suggested rho"
GAPS_OVER_RHO = "median duality gap over rho"
START = "error of the pooled output at the start, K = 0"
Gaps = dict[tuple[object, ...], float]  # by solver, alpha0, alpha1 = alpha2, K; over rho, also by that


def measure(session: Session) -> list[Finding]:
    torch.set_num_threads(1)
    case = problem(4 if session.quick else 20, 12, 6)
    rows = [row for solver in STEPPING for row in _rho_rules(session, case, solver)]
    rows += [
        _finding(case, GAPS, s, a0, a, _suggested(case, s, (a0, a, a)), K)
        for s, a0, a, K in _cells(tuple(SOLVERS), WEIGHTS)
    ]
    rows += [
        _finding(case, GAPS_OVER_RHO, s, a0, a, rho, K)
        for s, a0, a, K in session.track(_cells(STEPPING, SLICES), "gap-map")
        for rho in WEIGHTS
    ]
    session.figures.mkdir(parents=True, exist_ok=True)
    _draw(session.figures / "gap_map.png", rows)
    _draw_rho(session.figures / "gap_map_rho.png", rows, case)
    return rows


def summary(rows: Sequence[Finding]) -> list[Finding]:
    """Return errors by rule and gaps by solver; the map over rho is a picture only."""
    errors = [_rounded(row) for row in rows if row[PART] == ERRORS]
    start = [_rounded(row) for row in rows if row[PART] == START]
    gaps = [
        {name: cell for name, cell in row.items() if name not in ("K", "rho")}
        | {PART: f"{GAPS}, K = {row['K']}"}
        for row in rows
        if row[PART] == GAPS
    ]
    return start + spread(errors, "K", "mean", "worst") + spread(gaps, "solver", "gap")


def _rounded(row: Finding) -> Finding:
    return row | {"mean": f"{row['mean']:.4f}", "worst": f"{row['worst']:.3f}"}


def _cells(solvers: Sequence[str], marginals: Sequence[float]) -> list[tuple[str, float, float, int]]:
    return [(s, a0, a, K) for K in MODULES for s in solvers for a0 in WEIGHTS for a in marginals]


def _suggested(case: Problem, solver: str, w: Weights) -> float | None:
    return None if solver == "sinkhorn" else suggested(solver, *w, spread=float(case.X.std()))


def _finding(case: Problem, part: str, solver: str, a0: float, a: float, rho: float | None, K: int) -> Finding:
    P = uot_plan(case.X, a0, a, a, rho, p0=case.p0, q0=case.q0, solver=solver, K=K)
    gaps = duality_gap(case.X, P, a0, a, a, p0=case.p0, q0=case.q0, regularizer=REGULARIZER[solver])
    about: Finding = {PART: part, "solver": solver, "alpha0": a0, "alpha1, alpha2": a}
    return about | {"rho": "" if rho is None else rho, "K": K, "gap": float(gaps.median())}


def _rho_rules(session: Session, case: Problem, solver: str) -> list[Finding]:
    """Measure how far the pooled output is from the optimum's with each rule for rho, over many weights."""
    grid = [(a0, *a) for a0 in WEIGHTS[:4] for a in MARGINALS][: 2 if session.quick else None]
    best = {w: _optimum(case, solver, w) for w in grid}

    def line(about: Finding, outputs: dict[Weights, Tensor]) -> Finding:
        errors = [float((outputs[w] - best[w]).abs().mean(-1).median()) for w in grid]
        return about | {"mean": sum(errors) / len(errors), "worst": max(errors)}

    about: Finding = {PART: ERRORS, "solver": solver, "settings": len(grid)}
    suggested = {w: _suggested(case, solver, w) for w in grid}
    steps = {"suggest_rho": suggested} | {name: {w: rule(*w) for w in grid} for name, rule in RULES.items()}
    rows = [
        line(about | {"rho": name, "K": K}, {w: _pooled(case, solver, w, rho[w], K) for w in grid})
        for name, rho in session.track(steps.items(), f"gap-map, {solver}")
        for K in MODULES
    ]
    start = _pooled(case, "sinkhorn", (1.0, 1.0, 1.0), None, 0)
    return [*rows, line(about | {PART: START}, dict.fromkeys(grid, start))]


def _pooled(case: Problem, solver: str, w: Weights, rho: float | None, K: int) -> Tensor:
    return uot_pool(case.X, *w, rho, p0=case.p0, q0=case.q0, solver=solver, K=K)


def _optimum(case: Problem, solver: str, w: Weights) -> Tensor:
    with warnings.catch_warnings():  # a gap of 1e-8 is plenty here, also where 200 steps leave a little more
        warnings.simplefilter("ignore", ConvergenceWarning)
        return uot_pool(case.X, *w, p0=case.p0, q0=case.q0, solver=solver, K="converged", tol=1e-8)


def _gaps(rows: Sequence[Finding], part: str, *keys: str) -> Gaps:
    """Return the gaps of a part by these columns."""
    return {tuple(row[key] for key in keys): float(row["gap"]) for row in rows if row[PART] == part}


def _draw(path: Path, rows: Sequence[Finding]) -> None:
    gaps = _gaps(rows, GAPS, "solver", "alpha0", "alpha1, alpha2", "K")
    fig, axes = plt.subplots(3, 3, figsize=(8.2, 7.6), layout="constrained", sharex=True, sharey=True)
    for row, solver in zip(axes, SOLVERS, strict=True):
        for ax, K in zip(row, MODULES, strict=True):
            image = _heatmap(ax, [[gaps[solver, a0, a, K] for a0 in WEIGHTS] for a in WEIGHTS])
        row[0].set_ylabel(f"{solver}\n" + r"$\alpha_1 = \alpha_2$")
    for first, last, K in zip(axes[0], axes[-1], MODULES, strict=True):
        first.set_title(f"K = {K}")
        last.set_xlabel(r"$\alpha_0$")
    fig.colorbar(image, ax=axes, label=r"$\log_{10}$ median duality gap", shrink=0.6)
    fig.savefig(path, dpi=110)
    plt.close(fig)


def _draw_rho(path: Path, rows: Sequence[Finding], case: Problem) -> None:
    gaps = _gaps(rows, GAPS_OVER_RHO, "solver", "alpha0", "alpha1, alpha2", "K", "rho")
    lines = [(solver, a) for solver in STEPPING for a in SLICES]
    fig, axes = plt.subplots(6, 3, figsize=(8.2, 14), layout="constrained", sharex=True, sharey=True)
    for line, (solver, a) in zip(axes, lines, strict=True):
        for ax, K in zip(line, MODULES, strict=True):
            image = _heatmap(ax, [[gaps[solver, a0, a, K, rho] for a0 in WEIGHTS] for rho in WEIGHTS])
            suggested = [math.log10(_suggested(case, solver, (a0, a, a)) or 1.0) + 2 for a0 in WEIGHTS]
            ax.plot(range(5), suggested, "o", markerfacecolor="none", markeredgecolor="tab:red", markersize=16)
            if (solver, a) == lines[0]:
                ax.set_title(f"K = {K}")
            if (solver, a) == lines[-1]:
                ax.set_xlabel(r"$\alpha_0$")
        line[0].set_ylabel(rf"{solver}, $\alpha_1 = \alpha_2 = {a:g}$" + "\n" + r"$\rho$")
    fig.colorbar(image, ax=axes, label=r"$\log_{10}$ median duality gap (circle: suggested rho)", shrink=0.4)
    fig.savefig(path, dpi=90)
    plt.close(fig)


def _heatmap(ax: Axes, values: list[list[float]]) -> AxesImage:
    """Draw the rows of a 5 x 5 map over WEIGHTS, as powers of ten."""
    logs = [[math.log10(max(g, 1e-16)) for g in line] for line in values]
    image = ax.imshow(logs, origin="lower", cmap="cividis", vmin=-12, vmax=2)
    for i, line in enumerate(logs):
        for j, g in enumerate(line):
            shade = "black" if g > -4 else "white"
            ax.text(j, i, f"{round(g)}", ha="center", va="center", fontsize=8, color=shade)
    ax.set_xticks(range(5), [f"{a:g}" for a in WEIGHTS])
    ax.set_yticks(range(5), [f"{a:g}" for a in WEIGHTS])
    return image
