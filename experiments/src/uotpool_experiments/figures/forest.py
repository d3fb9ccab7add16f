"""Does UOT pooling pay on the paper's data? Paired differences on every data set, as a forest plot."""

from __future__ import annotations

import math
from collections.abc import Mapping

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from uotpool_experiments.analysis.paired import BEST, Ahead, Paired, best_others, paired
from uotpool_experiments.analysis.samples import Samples
from uotpool_experiments.figures.problems import COLOURS, MARKERS
from uotpool_experiments.solvers import SOLVERS
from uotpool_experiments.tables import manifest

EVERY = "all of these"
STEP = 0.24  # between the lines of the solvers on one data set
# The title of each panel, and the pooling that the exact layer of a solver is compared with.
PANELS = {
    "exact less published": "uotp-{solver}-paper",
    "exact less mean pooling": "mean",
    "exact less the best other\npooling on other seeds": BEST,
}


def draw(seed: int, quick: bool) -> tuple[Figure, list[str]]:
    """Draws the committed runs; neither `seed` nor `quick` changes what was run."""
    found = {key: sample for m in manifest.committed() for key, sample in m.compared_samples().items()}
    compared = comparisons(found)
    if not compared:
        raise ValueError("runs: expected those of an exact layer and of another pooling, got none")
    return picture(compared), in_words(compared)


def comparisons(found: Samples) -> dict[str, dict[str, Paired]]:
    """Compare the exact layer of each solver as each panel says: by the title, then by the solver."""
    known = found | best_others(found)
    titled: dict[str, dict[str, Paired]] = {}
    for title, against in PANELS.items():
        for solver in SOLVERS:
            first, other = f"uotp-{solver}", against.format(solver=solver)
            if any((first, d) in known and (other, d) in known for _, d in found):
                titled.setdefault(title, {})[solver] = paired(known, first, other)
    return titled


def picture(compared: Mapping[str, Mapping[str, Paired]]) -> Figure:
    """One panel for each comparison; one line for each data set, and one for all of them."""
    datasets = list(dict.fromkeys(d for panel in compared.values() for one in panel.values() for d in one.each))
    lines = [*datasets, EVERY]
    figure, axes = plt.subplots(
        1,
        len(compared),
        sharey=True,
        squeeze=False,
        figsize=(10.5, 1.6 + 0.42 * len(lines)),
        layout="constrained",
    )
    for ax, (title, by_solver) in zip(axes.flat, compared.items(), strict=True):
        for place, solver in enumerate(SOLVERS):
            if solver in by_solver:
                _draw_solver(ax, lines, by_solver[solver], solver, (place - (len(SOLVERS) - 1) / 2) * STEP)
        ax.set_title(title, fontsize=10)
        ax.axvline(0, color="black", linewidth=0.8)
        ax.axhspan(len(lines) - 1.5, len(lines) - 0.5, color="0.94", zorder=0)
        ax.set_xlabel("points of accuracy; right of 0: exact is better", fontsize=9)
        ax.set_yticks(range(len(lines)), lines)
        ax.set_ylim(len(lines) - 0.5, -0.5)
        ax.grid(alpha=0.3, axis="x")
        ax.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def _draw_solver(ax: Axes, lines: list[str], one: Paired, solver: str, shift: float) -> None:
    points = {**one.each, EVERY: one.every}
    for name, ahead in points.items():
        y = lines.index(name) + shift
        filled = COLOURS[solver] if ahead.verdict else "white"
        interval = ahead.points
        if math.isfinite(interval.low):
            ax.plot((interval.low, interval.high), (y, y), color=COLOURS[solver], linewidth=1.4, zorder=1)
        ax.plot(
            interval.value,
            y,
            color=COLOURS[solver],
            marker=MARKERS[solver],
            markerfacecolor=filled,
            markersize=5,
            linestyle="none",
            label=solver if name == EVERY else None,
            zorder=2,
        )


def in_words(compared: Mapping[str, Mapping[str, Paired]]) -> list[str]:
    """Say every comparison over all data sets, and what as many runs would have shown."""
    words = [
        "bags under the fair protocol, graphs under the paper's; intervals: 95 %, Student's t over runs, "
        "with the correction of Nadeau and Bengio for the data that these share, and, for all of them, over "
        "data sets; none for a single run"
    ]
    for title, by_solver in compared.items():
        for solver, one in by_solver.items():
            words.append(
                f"{solver}, {' '.join(title.split())}: {_said(one.every)} over {len(one.each)} data sets; "
                f"{one.count(1)} won, {one.count(-1)} lost; {one.every.smallest:.1f} would have been shown"
            )
    words.append(
        "the best other pooling of a seed is the one that is best on the other seeds of its data set; data "
        "sets with a single seed cannot say which is best"
    )
    return words


def _said(ahead: Ahead) -> str:
    interval = ahead.points
    return f"{interval.value:+.1f} points [{interval.low:+.1f}, {interval.high:+.1f}]"
