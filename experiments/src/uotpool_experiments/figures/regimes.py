"""Which pooling is safe? Regrets of poolings on the regimes, as a heat map and as worst against mean."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from matplotlib.transforms import Bbox

from uotpool_experiments.analysis.regret import Regrets, regrets
from uotpool_experiments.analysis.samples import samples
from uotpool_experiments.analysis.selection import Source
from uotpool_experiments.figures.ranks import LOOKS, kind
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.tables.manifest import RUNS, results_folder
from uotpool_experiments.tasks.regimes.problems import PARTS, names

MOST_SHOWN = 20.0  # points of regret from which on the heat map has one colour
LEAST = 0.1  # the least regret that the picture with logarithmic axes shows
ANCHORS = ("uotp", "mean", "max")  # the poolings whose runs decide which questions are shown
TICKS = (0.1, 0.2, 0.5, 1, 2, 3, 5, 7, 10, 15, 20, 30, 50)
# Places of a name beside its point, in points of the page, and how the name is aligned there.
PLACES = (
    *(((5, 0), "left"), ((-5, 0), "right"), ((4, 6), "left"), ((4, -6), "left")),
    *(((-4, 6), "right"), ((-4, -6), "right"), ((0, 10), "center"), ((0, -10), "center")),
)


def draw(seed: int, quick: bool) -> tuple[Figure, list[str]]:
    """Draws the committed runs; neither `seed` nor `quick` changes what was run."""
    rows, _ = Source.read(results_folder() / "regimes" / RUNS, "regimes").select("regimes", "{}")
    parts = [(part, found) for part in PARTS if (found := of_part(rows, part)) is not None]
    if not parts:
        raise ValueError("runs: expected runs of several poolings on one part of the regimes, got none")
    return picture(parts), [line for part, found in parts for line in in_words(part, found)]


def of_part(rows: Sequence[Row], part: str) -> Regrets | None:
    """Return the regrets of the poolings that were run on all questions of a part that ANCHORS were run on.

    None if there is no such question.
    """
    known = set(names(part))
    found = samples([row for row in rows if row.spec.dataset in known], "score")
    asked = {d for _, d in found if all((pooling, d) in found for pooling in ANCHORS)}
    return regrets({(p, d): sample for (p, d), sample in found.items() if d in asked}) if asked else None


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
        right.set_title(f"{part}: the lower left is safe", fontsize=10)
    return figure


def heat_map(ax: Axes, found: Regrets) -> None:
    shown = np.clip(found.regret, 0.0, MOST_SHOWN)
    drawn = ax.imshow(shown, cmap="YlOrRd", vmin=0.0, vmax=MOST_SHOWN, aspect="auto")
    ax.set_yticks(range(len(found.poolings)), found.poolings, fontsize=8)
    for label in ax.get_yticklabels():
        label.set_color(LOOKS[kind(label.get_text())][0])
    ax.set_xticks(range(len(found.datasets)), found.datasets, rotation=60, ha="right", fontsize=8)
    ax.tick_params(axis="x", pad=1)
    for (row, column), value in np.ndenumerate(found.regret):
        colour = "white" if value > 0.6 * MOST_SHOWN else "black"
        text = f"{value:.0f}".replace("-0", "0")  # a regret can be a little below 0
        ax.text(column, row, text, ha="center", va="center", fontsize=6.5, color=colour)
    ax.tick_params(length=0)
    bar = ax.figure.colorbar(drawn, ax=ax, fraction=0.03, pad=0.01, extend="max")
    bar.ax.tick_params(labelsize=7)


def worst_against_mean(ax: Axes, found: Regrets) -> None:
    points = [(max(m.value, LEAST), max(w.value, LEAST)) for m, w in zip(found.mean, found.worst, strict=True)]
    for pooling, point in zip(found.poolings, points, strict=True):
        colour, marker, _ = LOOKS[kind(pooling)]
        ax.plot(*point, color=colour, marker=marker, markersize=5, linestyle="none")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.margins(0.15)
    ax.set_xlabel("mean regret, points")
    ax.set_ylabel("worst regret, points")
    for axis in (ax.xaxis, ax.yaxis):
        low, high = axis.get_view_interval()
        axis.set_major_locator(FixedLocator([tick for tick in TICKS if low <= tick <= high]))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(NullLocator())
    ax.grid(alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)
    _name_points(ax, found.poolings, points)


def _name_points(ax: Axes, names: Sequence[str], points: Sequence[tuple[float, float]]) -> None:
    """Write each name beside its point, at the first of some places where it hides nothing."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    figure.canvas.draw()  # a text knows its size only when the layout is known
    inside = ax.get_window_extent()
    taken = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in ax.transData.transform(points)]
    for name, point in zip(names, points, strict=True):
        own = ax.transData.transform(point)
        boxes = []
        for (x, y), ha in PLACES:
            text = ax.annotate(name, point, (x, y), textcoords="offset points", fontsize=7, ha=ha, va="center")
            box = text.get_window_extent()
            hidden = sum(box.overlaps(other) for other in taken if not other.contains(*own))
            outside = not (inside.x0 <= box.x0 and box.x1 <= inside.x1)
            boxes.append((hidden + outside, box, text))
            if boxes[-1][0] == 0:
                break
        least = min(range(len(boxes)), key=lambda place: boxes[place][0])
        for place, (_, _, text) in enumerate(boxes):
            if place != least:
                text.remove()
        taken.append(boxes[least][1])


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
                f"{100 * found.share_failed(place).value:.0f} % of runs failed"
            )
    return lines
