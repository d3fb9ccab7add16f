"""Which pooling is safe? Regrets of poolings on the regimes, as a heat map and as worst against mean."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from uotpool_experiments.analysis.regret import Regrets, regrets
from uotpool_experiments.analysis.samples import samples
from uotpool_experiments.analysis.selection import Source
from uotpool_experiments.figures.ranks import LOOKS, kind
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.tables.manifest import RUNS, results_folder
from uotpool_experiments.tasks.regimes.problems import PARTS, names

MOST_SHOWN = 20.0  # points of regret from which on the heat map has one colour


def draw(seed: int, quick: bool) -> tuple[Figure, list[str]]:
    """Draws the committed runs; neither `seed` nor `quick` changes what was run."""
    rows, _ = Source.read(results_folder() / "regimes" / RUNS, "regimes").select("regimes", "{}")
    parts = [(part, found) for part in PARTS if (found := of_part(rows, part)) is not None]
    if not parts:
        raise ValueError("runs: expected runs of several poolings on one part of the regimes, got none")
    return picture(parts), [line for part, found in parts for line in in_words(part, found)]


def of_part(rows: Sequence[Row], part: str) -> Regrets | None:
    """Return the regrets on a part of the regimes; None where no two poolings have runs."""
    known = set(names(part))
    found = samples([row for row in rows if row.spec.dataset in known], "score")
    return regrets(found) if len({pooling for pooling, _ in found}) > 1 else None


def picture(parts: Sequence[tuple[str, Regrets]]) -> Figure:
    """One line of panels for each part: the regret of each pooling on each regime, and worst against mean."""
    rows = [max(len(found.poolings), 10) for _, found in parts]
    figure, axes = plt.subplots(
        len(parts),
        2,
        squeeze=False,
        figsize=(13.0, 2.2 + 0.27 * sum(rows) + 1.2 * len(parts)),
        height_ratios=rows,
        width_ratios=(1.5, 1.0),
        layout="constrained",
    )
    for (left, right), (part, found) in zip(axes, parts, strict=True):
        heat_map(left, found)
        left.set_title(f"{part}: points behind the best pooling of each question", fontsize=10)
        worst_against_mean(right, found)
        right.set_title(f"{part}: near the origin is safe", fontsize=10)
    return figure


def heat_map(ax: Axes, found: Regrets) -> None:
    shown = np.clip(found.regret, 0.0, MOST_SHOWN)
    ax.imshow(shown, cmap="YlOrRd", vmin=0.0, vmax=MOST_SHOWN, aspect="auto")
    ax.set_yticks(range(len(found.poolings)), found.poolings, fontsize=8)
    ax.set_xticks(range(len(found.datasets)), found.datasets, rotation=60, ha="right", fontsize=8)
    for (row, column), value in np.ndenumerate(found.regret):
        colour = "white" if value > 0.6 * MOST_SHOWN else "black"
        ax.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=6.5, color=colour)
    ax.tick_params(length=0)


def worst_against_mean(ax: Axes, found: Regrets) -> None:
    for place, pooling in enumerate(found.poolings):
        colour, marker, _ = LOOKS[kind(pooling)]
        mean, worst = found.mean[place].value, found.worst[place].value
        ax.plot(max(mean, 0.1), max(worst, 0.1), color=colour, marker=marker, markersize=5, linestyle="none")
        ax.annotate(pooling, (max(mean, 0.1), max(worst, 0.1)), (3, 3), textcoords="offset points", fontsize=7)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("mean regret, points")
    ax.set_ylabel("worst regret, points")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")
    ax.grid(alpha=0.3, which="both")
    ax.spines[["top", "right"]].set_visible(False)


def in_words(part: str, found: Regrets) -> list[str]:
    """Say the regrets of the safest pooling, of mean and max, and of our layers."""
    safest = min(range(len(found.poolings)), key=lambda place: found.worst[place].value)
    lines = [f"{part}: {len(found.poolings)} poolings on {len(found.datasets)} questions"]
    for place, pooling in enumerate(found.poolings):
        if place in (0, safest) or pooling in ("mean", "max", "attention") or pooling.startswith("uotp"):
            where = found.datasets[int(found.regret[place].argmax())]
            lines.append(
                f"{pooling}: {found.mean[place].value:.1f} points behind the best on average, "
                f"{found.worst[place].value:.1f} at worst ({where}), "
                f"{100 * found.share_failed(place):.0f} % of runs failed"
            )
    return lines
