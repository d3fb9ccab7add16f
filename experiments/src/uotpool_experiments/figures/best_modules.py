"""Table 7: the best number of modules K of each solver, from the runs that are committed."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from uotpool_experiments.analysis.published_results import TABLE_7, Published
from uotpool_experiments.analysis.samples import Sample
from uotpool_experiments.analysis.tests import compare
from uotpool_experiments.figures.from_runs import (
    DEFAULT_MODULES,
    Panel,
    Samples,
    count,
    draw_by_modules,
    first_of_lines,
    of_solver,
    style,
    words_by_solver,
)
from uotpool_experiments.figures.problems import COLOURS, LABELS
from uotpool_experiments.solvers import SOLVERS

APART = 0.26  # the distance of the points of a solver


def draw(seed: int, quick: bool) -> tuple[Figure, list[str]]:
    """Draws results/TASK/runs.csv and the paper's numbers; neither `seed` nor `quick` changes what was run."""
    figure, axes, compared = draw_by_modules(3.6, _panel)
    words = ["K is chosen by the accuracy it is shown with, here as in the paper: the best is optimistic"]
    words += [line for panel, found in compared.items() for line in _in_words(panel, found)]
    for ax in axes:
        ax.set_yticks(range(len(SOLVERS)), [])
        ax.set_xlabel("accuracy, % (mean ± standard deviation)")
    for ax in first_of_lines(axes):
        ax.set_yticklabels([LABELS[solver] for solver in SOLVERS])
    figure.legend(handles=_legend(), loc="outside lower center", ncols=2, fontsize=9, frameon=False)
    return figure, words


def best(own: dict[int, Sample]) -> int:
    """The K with the highest mean, of equal ones the smallest."""
    return max(sorted(own), key=lambda K: round(own[K].mean, 12))


def _panel(ax: Axes, panel: Panel, found: Samples[int]) -> None:
    for y, solver in enumerate(SOLVERS):
        own = of_solver(found, solver)
        if own:
            K = best(own)
            _point(ax, y, K, own[K], **style(solver))
            if DEFAULT_MODULES in own and DEFAULT_MODULES != K:
                _point(ax, y + APART, DEFAULT_MODULES, own[DEFAULT_MODULES], **style(solver, white=True))
        published = TABLE_7.get((f"uotp-{solver}-paper", panel.dataset))
        if published is not None:
            grey = style(solver) | {"color": "0.45", "marker": "D", "markerfacecolor": "0.45"}
            _point(ax, y - APART, published.K, published.accuracy, **grey)
    means = [sample.mean for (_, K), sample in found.items() if K == 0]
    if means:
        ax.axvline(100 * means[0], color="black", linestyle=":", linewidth=1.2, zorder=0)
    ax.set_ylim(len(SOLVERS) - 0.5, -0.5)
    ax.grid(alpha=0.3, axis="x")


def _point(ax: Axes, y: float, K: int, value: Sample | Published, **how: Any) -> None:
    unit = 100 if isinstance(value, Sample) else 1
    ax.errorbar(unit * value.mean, y, xerr=unit * value.std, **how)
    # Beside the axes, where no other point can be.
    ax.annotate(
        f"K = {K}",
        (1, y),
        (4, 0),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        va="center",
        fontsize=8,
        color=how["color"],
    )


def _legend() -> list[Line2D]:
    def point(label: str, **how: Any) -> Line2D:
        how.setdefault("linestyle", "")
        return Line2D([], [], label=label, markersize=5.5, **how)

    blue = COLOURS["sinkhorn"]
    return [
        point("filled: best K here", color=blue, marker="o"),
        point(
            f"white: K = {DEFAULT_MODULES}, where that is not the best",
            color=blue,
            marker="o",
            markerfacecolor="white",
        ),
        point("grey: the paper's best K and its accuracy", color="0.45", marker="D"),
        point("mean pooling (K = 0) here", color="black", linestyle=":"),
    ]


def _in_words(panel: Panel, found: Samples[int]) -> list[str]:
    def words(solver: str, own: dict[int, Sample]) -> str:
        K = best(own)
        text = (
            f"{panel}, {LABELS[solver]}, {count(found)} runs each: best K = {K} of {', '.join(map(str, own))}: "
        )
        text += f"{100 * own[K].mean:.1f} ± {100 * own[K].std:.1f} %"
        if DEFAULT_MODULES in own and DEFAULT_MODULES != K:
            test = compare(own[K], own[DEFAULT_MODULES])
            text += (
                f", {100 * (own[K].mean - own[DEFAULT_MODULES].mean):.1f} points above K = {DEFAULT_MODULES}"
            )
            text += f" (p = {test.p_value:.2g} by itself)" if test is not None else ""
        if 0 in own and K != 0:
            text += f", {100 * (own[K].mean - own[0].mean):.1f} above mean pooling"
        published = TABLE_7.get((f"uotp-{solver}-paper", panel.dataset))
        if published is not None:
            accuracy = published.accuracy
            text += f"; published: K = {published.K}, {accuracy.mean} ± {accuracy.std} %"
        return text

    return words_by_solver(found, words)
