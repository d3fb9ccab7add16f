"""Figure 2a: mean, max and attention pooling as settings of the problem, and the plans that solvers find."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from uotpool import Newton
from uotpool import Problem as Transport
from uotpool_experiments.figures.problems import LABELS, Problem, power, problem, seeded, short
from uotpool_experiments.solvers import FORMULATIONS, SOLVERS, solver_of

N, D = 10, 5  # the paper's
FIRST = 2  # seed 0 is the input of docs/published-algorithms.md
K = 4
LATER = 64  # modules, at the same step: is what is there after K modules where a solver tends to?
Weights = tuple[float, float, float]
# Pooling, weights, the steps of Bregman ADMM to try. As published; then attention as it must be.
PUBLISHED: tuple[tuple[str, Weights, tuple[float, float]], ...] = (
    ("mean", (1e4, 1e4, 1e4), (1.0, 1e4)),
    ("max", (1e-2, 1e4, 1e-2), (1e-2, 1.0)),
    ("attention", (1e4, 1e4, 1e4), (1.0, 1e4)),
)
SETTINGS = (*PUBLISHED, ("attention", (1e2, 1e6, 1e6), (1.0, 1e6)))


@dataclass(frozen=True)
class Found:
    """A plan (N, D) and the true one; the step that gave it, and the plan after more modules."""

    P: Tensor
    truth: Tensor
    rho: float | None = None
    later: Tensor | None = None

    @property
    def mass(self) -> float:
        return float(self.P.sum())

    @property
    def error(self) -> float:
        """L1: 0 to 2 for plans of mass 1."""
        return float((self.P - self.truth).abs().sum())

    @property
    def later_error(self) -> float:
        assert self.later is not None
        return float((self.later - self.truth).abs().sum())


def true_plans(X: Tensor, attention: Tensor) -> dict[str, Tensor]:
    """Plans (B, N, D) of mass 1 whose output is the mean, the maximum, the mean weighed by attention."""
    _, n, d = X.shape
    return {
        "mean": torch.full_like(X, 1 / (n * d)),
        "max": torch.zeros_like(X).scatter(1, X.argmax(1, keepdim=True), 1 / d),
        "attention": (attention / d)[:, :, None].expand_as(X),
    }


def draw(seed: int, quick: bool) -> tuple[Figure, list[str]]:
    case = problem(1, N, D, seeded(seed + FIRST))
    truths = true_plans(case.X, case.q0)
    settings = PUBLISHED if quick else SETTINGS
    columns: list[Any] = ["truth", "optimum", *((s, f) for f in FORMULATIONS for s in SOLVERS)]
    figure, axes = plt.subplots(
        len(settings), len(columns), figsize=(11, 1.35 * len(settings) + 0.9), layout="constrained"
    )
    words = []
    for row, (name, weights, steps) in zip(axes, settings, strict=True):
        truth = truths[name][0]
        q0 = case.q0 if name == "attention" else None
        found: dict[Any, Found] = {
            "truth": Found(truth, truth),
            "optimum": Found(_optimum(case, weights, q0), truth),
        }
        found |= {(s, f): _best(case, weights, q0, truth, s, f, steps) for f in FORMULATIONS for s in SOLVERS}
        top = max(2.0, float(truth.max() * truth.numel()))
        for ax, column in zip(row, columns, strict=True):
            image = _picture(ax, found[column], top, column == "truth")
        alphas = ", ".join(map(power, weights))
        row[0].set_ylabel(f"{name}\n" + r"$\alpha$ = " + alphas, fontsize=8)
        bar = figure.colorbar(image, ax=row[-1], fraction=0.08, pad=0.04)
        bar.ax.tick_params(labelsize=7)
        words.append(f"{name} at alpha = {alphas}: " + _in_words(found))
    for ax, column in zip(axes[0], columns, strict=True):
        head = column if isinstance(column, str) else f"{LABELS[column[0]]}\n{column[1]}"
        head = {"truth": "truth\n", "optimum": "optimum\n(entropic)"}.get(head, head)
        ax.annotate(
            head, (0.5, 1.2), xycoords="axes fraction", ha="center", va="bottom", fontsize=9, weight="bold"
        )
    figure.supxlabel(
        f"samples 1 .. {N}; features 1 .. {D} downwards. Above each plan: L1 distance from the truth, K = {K}, "
        "the better of two steps rho for Bregman ADMM.\n"
        f"Colour: entry x {N * D} / mass of the plan, 1 = uniform.",
        fontsize=8,
    )
    return figure, words


def _optimum(case: Problem, weights: Weights, q0: Tensor | None) -> Tensor:
    alpha0, alpha1, alpha2 = weights
    return Transport(case.X, alpha0=alpha0, alpha1=alpha1, alpha2=alpha2, q0=q0).plan(Newton())[0]


def _best(
    case: Problem,
    weights: Weights,
    q0: Tensor | None,
    truth: Tensor,
    solver: str,
    formulation: str,
    steps: tuple[float, float],
) -> Found:
    """Of the steps to try, that with the least error."""
    alpha0, alpha1, alpha2 = weights
    tried = []
    for rho in (None,) if solver == "sinkhorn" else steps:
        posed = Transport(case.X, alpha0=alpha0, alpha1=alpha1, alpha2=alpha2, rho=rho, q0=q0)
        P, later = (posed.plan(solver_of(solver, formulation, modules))[0] for modules in (K, LATER))
        tried.append(Found(P, truth, rho, later))
    return min(tried, key=lambda found: np.nan_to_num(found.error, nan=np.inf))


def _picture(ax: Axes, found: Found, top: float, true: bool) -> Any:
    """The plan, features as rows as in the paper; its shape alone, as the mass may be anything."""
    mass = found.mass
    shown = np.asarray(found.P.T) * found.P.numel() / mass if mass > 0 else np.zeros((D, N))
    image = ax.imshow(shown, cmap="viridis", vmin=0, vmax=top, interpolation="nearest", aspect="auto")
    ax.set_xticks([])
    ax.set_yticks([])
    if true:
        return image
    title = short(found.error)
    if not abs(mass - 1) < 1e-2:
        title += f" (mass {short(mass, 0) if mass > 0 else 0})"
    ax.set_title(title, fontsize=8, pad=3)
    return image


def _in_words(found: dict[Any, Found]) -> str:
    parts = [f"optimum {short(found['optimum'].error)}"]
    for formulation in FORMULATIONS:
        each = []
        for solver in SOLVERS:
            one = found[solver, formulation]
            step = "" if one.rho is None else f"rho {power(one.rho)}, "
            each.append(f"{LABELS[solver]} {short(one.error)} ({step}K = {LATER}: {short(one.later_error)})")
        parts.append(f"{formulation} {', '.join(each)}")
    return "L1 distance from the true plan: " + "; ".join(parts)
