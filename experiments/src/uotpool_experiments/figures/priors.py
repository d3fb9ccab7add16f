"""Table 6: accuracy with fixed and with learned priors p0, q0, from the runs that are committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from uotpool_experiments.analysis.published_results import PRIORS, PRIORS_DATASET, TABLE_6, Learned, Published
from uotpool_experiments.analysis.samples import Sample
from uotpool_experiments.analysis.tests import compare
from uotpool_experiments.figures.from_runs import (
    ACCURACY,
    Panel,
    Samples,
    committed_rows,
    compared,
    count,
    first_of_lines,
    of_solver,
    panels,
    style,
    words_by_solver,
)
from uotpool_experiments.figures.problems import LABELS
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.solvers import SOLVERS
from uotpool_experiments.tables.settings import Flat

SHIFTS = (-0.25, 0.0, 0.25)  # where the points of each solver stand beside a tick
NAMES = ("fixed", "$p_0$ learned", "$q_0$ learned", "both learned")
PLAIN = dict(zip(PRIORS, ("fixed", "p0 learned", "q0 learned", "both learned"), strict=True))


def by_priors(rows: Sequence[Row]) -> dict[Panel, Samples[Learned]]:
    """Runs that differ in their priors."""

    def varied(options: Flat) -> Learned | None:
        p0, q0 = (options.pop(name, "uniform") for name in ("pool.p0", "pool.q0"))
        return (p0 == "learned", q0 == "learned") if {p0, q0} <= {"uniform", "learned"} else None

    return compared(rows, varied)


def draw(seed: int, quick: bool) -> tuple[Figure, list[str]]:
    """Draws results/TASK/runs.csv and the paper's numbers; neither `seed` nor `quick` changes what was run."""
    found = by_priors(committed_rows())
    if not found:
        raise ValueError("runs: expected some that differ in pool.p0 or pool.q0 for a UOT pooling, got none")
    alone = all(panel.dataset != PRIORS_DATASET for panel in found)
    figure, axes = panels(len(found) + alone, 3.9)
    words = []
    for ax, (panel, values) in zip(axes, found.items(), strict=False):
        _ours(ax, values)
        ax.set_title(panel.title(count(values)), fontsize=9)
        words += _in_words(panel, values)
        if panel.dataset == PRIORS_DATASET:
            _published(ax, 0.1)  # beside ours
    if alone:
        _published(axes[-1], 0.0)
        axes[-1].set_title(f"{PRIORS_DATASET}, published layers\nthe paper's Table 6, not run here", fontsize=9)
    words.append(
        f"{PRIORS_DATASET}, as published: " + "; ".join(_published_words(solver) for solver in SOLVERS)
    )
    for ax in axes:
        ax.set_xticks(range(len(PRIORS)), NAMES, fontsize=9)
        ax.set_xlim(-0.5, len(PRIORS) - 0.5)
        ax.set_xlabel("priors")
        ax.grid(alpha=0.3, axis="y")
    for ax in first_of_lines(axes):
        ax.set_ylabel(ACCURACY)
    handles = {label: h for ax in axes for h, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    columns = [name for solver in SOLVERS for name in (LABELS[solver], f"{LABELS[solver]}, published")]
    order = [label for label in columns if label in handles]
    figure.legend(
        [handles[label] for label in order],
        order,
        loc="outside lower center",
        ncols=len(SOLVERS),
        fontsize=9,
        frameon=False,
    )
    return figure, words


def _ours(ax: Axes, found: Samples[Learned]) -> None:
    for shift, solver in zip(SHIFTS, SOLVERS, strict=True):
        own = of_solver(found, solver)
        points = {learned: Published(100 * s.mean, 100 * s.std) for learned, s in own.items()}
        _points(ax, shift, points, label=LABELS[solver], **style(solver))


def _published(ax: Axes, beside: float) -> None:
    for shift, solver in zip(SHIFTS, SOLVERS, strict=True):
        points = {learned: TABLE_6[f"uotp-{solver}-paper", learned] for learned in PRIORS}
        _points(ax, shift + beside, points, label=f"{LABELS[solver]}, published", **style(solver, white=True))


def _points(ax: Axes, shift: float, points: dict[Learned, Published], **how: Any) -> None:
    """Points without a line from one to the next, as priors have no order."""
    x = [PRIORS.index(learned) + shift for learned in points]
    y, spread = ([number[i] for number in points.values()] for i in (0, 1))
    ax.errorbar(x, y, yerr=spread, **how | {"linestyle": ""})


def _in_words(panel: Panel, found: Samples[Learned]) -> list[str]:
    def words(solver: str, own: dict[Learned, Sample]) -> str:
        means = [f"{PLAIN[p]} {100 * own[p].mean:.1f} ± {100 * own[p].std:.1f}" for p in PRIORS if p in own]
        fixed = own.get(PRIORS[0])
        tests = {p: compare(own[p], fixed) for p in own if fixed is not None and p != PRIORS[0]}
        differ = [PLAIN[p] for p, test in tests.items() if test is not None and test.verdict != "tie"]
        return (
            f"{panel}, {LABELS[solver]}, {count(found)} runs each: {', '.join(means)} %; "
            f"different from fixed at 5 %: {', '.join(differ) or 'none'}"
        )

    return words_by_solver(found, words)


def _published_words(solver: str) -> str:
    numbers = {p: TABLE_6[f"uotp-{solver}-paper", p] for p in PRIORS}
    return f"{LABELS[solver]} " + ", ".join(f"{PLAIN[p]} {n.mean} ± {n.std}" for p, n in numbers.items()) + " %"
