"""Mean ranks of poolings over data sets, with what can and cannot be told apart."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from uotpool_experiments.analysis.ranking import Ranking
from uotpool_experiments.tables import manifest

MOST_LETTERS = 32  # that are shown of a name
EXACT, PUBLISHED, OTHER = "#D55E00", "#0072B2", "#555555"  # Okabe and Ito
# The colour, the marker and the name in the legend of each kind of pooling.
LOOKS = {
    "exact": (EXACT, "s", "UOTP, exact"),
    "published": (PUBLISHED, "D", "UOTP, as published"),
    "other": (OTHER, "o", "others"),
}


def kind(pooling: str) -> str:
    """The kind of the pooling, which is one of `LOOKS`."""
    if pooling != "uotp" and not pooling.startswith("uotp-"):
        return "other"
    return "published" if pooling.endswith("-paper") else "exact"


def draw(seed: int, quick: bool) -> tuple[Figure, list[str]]:
    """Draws the committed runs; neither `seed` nor `quick` changes what was run."""
    overall, left_out = manifest.overall(manifest.committed())
    if overall is None or len(overall.poolings) < 2:
        raise ValueError("runs: expected several poolings on the same data sets, got no two")
    return diagram(overall), in_words(overall, left_out, everything=True)


def diagram(ranking: Ranking) -> Figure:
    """One line for each pooling with its mean rank; bars join those that Nemenyi's test does not part."""
    k = len(ranking.poolings)
    figure, ax = plt.subplots(figsize=(7.2, 1.8 + 0.27 * k), layout="constrained")
    n = len(ranking.datasets)
    intervals = ranking.interval()
    for place, (pooling, mean) in enumerate(zip(ranking.poolings, ranking.mean, strict=True)):
        colour, marker, _ = LOOKS[kind(pooling)]
        if intervals is not None:
            ax.plot(intervals[place], (place, place), color=colour, linewidth=1.2, alpha=0.55, zorder=1)
        ax.plot(mean, place, color=colour, marker=marker, markersize=6, linestyle="none", zorder=2)
    for name, (colour, marker, label) in LOOKS.items():
        if any(kind(pooling) == name for pooling in ranking.poolings):
            ax.plot([], [], color=colour, marker=marker, linestyle="none", label=label)
    _groups(ax, ranking)
    names = [f"{_short(p)}  {m:.1f}" for p, m in zip(ranking.poolings, ranking.mean, strict=True)]
    ax.set_yticks(range(k), names, parse_math=False)
    ax.set_ylim(k - 0.4, -2.0 if n > 1 else -0.6)
    ax.set_xlim(0.5, k + 0.5 + 0.05 * k)
    of = "data set" if n == 1 else "data sets"
    ax.set_xlabel(f"mean rank among {k} poolings over {n} {of}; 1 is best")
    if intervals is not None:
        ax.plot([], [], color=OTHER, linewidth=1.2, alpha=0.55, label="95 % interval")
    ax.grid(alpha=0.3, axis="x")
    ax.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    return figure


def _short(name: str) -> str:
    return name if len(name) <= MOST_LETTERS else name[: MOST_LETTERS - 3] + "..."


def _groups(ax: Axes, ranking: Ranking) -> None:
    """Draws bars at the right, and the critical difference as a length at the top."""
    critical = ranking.critical_difference()
    if critical is None:
        return
    k = len(ranking.poolings)
    for i, (first, last) in enumerate(ranking.groups()):
        x = k + 0.5 + 0.05 * k * (i + 1) / (len(ranking.groups()) + 1)
        ax.plot((x, x), (first - 0.25, last + 0.25), color="black", linewidth=3, solid_capstyle="butt")
    ax.plot((1, 1 + critical), (-1.0, -1.0), color="black", linewidth=1.2, marker="|", markersize=8)
    ax.text(
        1,
        -1.25,
        f"critical difference {critical:.1f} (Nemenyi, 5 %); thick bars join what it does not part",
        va="bottom",
        fontsize=9,
    )


def in_words(ranking: Ranking, left_out: Sequence[str] = (), everything: bool = False) -> list[str]:
    """Mean rank, interval and place of each pooling, or of each UOTP, the best and mean pooling."""
    places, intervals = ranking.places(), ranking.interval()
    mean, behind = ranking.mean, 100 * ranking.behind.mean(0)
    words = [
        f"{len(ranking.poolings)} poolings on {len(ranking.datasets)} data sets: {', '.join(ranking.datasets)}"
        + (f"; not on all of them, so left out: {', '.join(left_out)}" if left_out else "")
    ]
    for place, pooling in enumerate(ranking.poolings):
        if everything or place == 0 or pooling == "mean" or pooling.startswith("uotp-"):
            between = "" if intervals is None else " (95 % interval {:.1f} to {:.1f})".format(*intervals[place])
            words.append(
                f"{pooling}: mean rank {mean[place]:.1f}{between}, place {places[place]}, on average "
                f"{behind[place]:.1f} points behind the best of each data set"
            )
    p, critical = ranking.friedman(), ranking.critical_difference()
    if p is not None and critical is not None:
        told = "some ranks differ" if p < 0.05 else "the ranks of the poolings cannot be told apart"
        words.append(f"Friedman's test: p = {p:.2f}, {told}; critical difference by Nemenyi {critical:.1f}")
    return words
