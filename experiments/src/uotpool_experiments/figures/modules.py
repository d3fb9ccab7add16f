"""Figure 5: accuracy against the number of modules K, from the runs that are committed."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from uotpool_experiments.analysis.samples import Sample
from uotpool_experiments.figures.from_runs import (
    ACCURACY,
    Panel,
    Samples,
    draw_by_modules,
    first_of_lines,
    of_solver,
    style,
    words_by_solver,
)
from uotpool_experiments.figures.problems import LABELS
from uotpool_experiments.solvers import SOLVERS


def draw(seed: int, quick: bool) -> tuple[Figure, list[str]]:
    """Draws results/TASK/runs.csv; neither `seed` nor `quick` changes what was run."""
    figure, axes, compared = draw_by_modules(3.7, _panel)
    for ax in first_of_lines(axes):
        ax.set_ylabel(ACCURACY)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=9, frameon=False)
    return figure, [words for panel, found in compared.items() for words in _in_words(panel, found)]


def _panel(ax: Axes, panel: Panel, found: Samples[int]) -> None:
    places = {K: i for i, K in enumerate(sorted({K for _, K in found}))}
    for shift, solver in zip((-0.12, 0.0, 0.12), SOLVERS, strict=True):
        own = of_solver(found, solver)
        ax.errorbar(
            [places[K] + shift for K in own],
            [100 * sample.mean for sample in own.values()],
            yerr=[100 * sample.std for sample in own.values()],
            label=LABELS[solver],
            **style(solver),
        )
    ax.set_xticks(list(places.values()), [f"{K}" for K in places])
    ax.set_xlabel("modules K (0: mean pooling)")
    ax.grid(alpha=0.3, axis="y")


def _in_words(panel: Panel, found: Samples[int]) -> list[str]:
    def words(solver: str, own: dict[int, Sample]) -> str:
        means = ", ".join(f"K={K} {100 * s.mean:.1f}" for K, s in own.items())
        best = max(own, key=lambda K: own[K].mean)
        return (
            f"{panel}, {LABELS[solver]}, {len(own[best])} runs each: {means} %; best K={best}, "
            f"{100 * (max(s.mean for s in own.values()) - min(s.mean for s in own.values())):.1f} points "
            f"above the worst, standard deviation {100 * own[best].std:.1f}"
        )

    return words_by_solver(found, words)
