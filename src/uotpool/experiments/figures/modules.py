"""Figure 5: accuracy against the number of modules K, from the runs that are committed."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from uotpool.experiments import export
from uotpool.experiments.figures.problems import COLOURS, LABELS, MARKERS, SOLVERS
from uotpool.experiments.spec import canonical
from uotpool.experiments.statistics import Sample, common, samples
from uotpool.experiments.store import Row
from uotpool.experiments.variants import flat

FOLDER = "UOTPOOL_RESULTS"  # environment variable: where TASK/runs.csv is; default: ./results
TASKS = ("mil", "graph")
POOLINGS = {f"uotp-{solver}": solver for solver in SOLVERS}
DEFAULT = 4  # modules of a run whose settings say nothing
WIDTH = 3  # panels in a line
Panel = tuple[str, str, str]  # data set, protocol, settings besides K
Samples = dict[tuple[str, int], Sample]  # by pooling and K


def draw(seed: int, quick: bool) -> tuple[Figure, list[str]]:
    """From results/TASK/runs.csv; neither `seed` nor `quick` changes what was run."""
    panels = by_modules(committed())
    if not panels:
        raise ValueError(f"runs: expected some that differ in pool.K for {tuple(POOLINGS)}, got none")
    lines = math.ceil(len(panels) / WIDTH)
    columns = min(len(panels), WIDTH)
    figure, axes = plt.subplots(
        lines, columns, figsize=(4.2 * columns, 3.5 * lines), layout="constrained", squeeze=False
    )
    words = []
    for ax, (panel, found) in zip(axes.flat, panels.items(), strict=False):
        _panel(ax, panel, found)
        words += _in_words(panel, found)
    for ax in axes.flat[len(panels) :]:
        ax.set_visible(False)
    for line in axes:
        line[0].set_ylabel("accuracy, %\n(mean ± standard deviation)")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=9, frameon=False)
    return figure, words


def committed() -> list[Row]:
    """The runs of all tasks that have a file."""
    folder = Path(os.environ.get(FOLDER, "results"))
    paths = [folder / task / "runs.csv" for task in TASKS]
    there = [path for path in paths if path.is_file()]
    if not there:
        raise FileNotFoundError(
            f"expected {' or '.join(map(str, paths))}, got neither: run it in the root of the project, or set "
            f"{FOLDER} to the folder of the results"
        )
    return [row for path in there for row in export.read(path)]


def by_modules(rows: Sequence[Row]) -> dict[Panel, Samples]:
    """Runs that differ in K alone; all K and poolings of a panel on the same folds and seeds."""
    groups: dict[Panel, dict[tuple[str, int], list[Row]]] = {}
    for row in rows:
        options = flat(row.spec.options)
        K = options.pop("pool.K", DEFAULT)
        if row.spec.pooling in POOLINGS and type(K) is int:
            panel = (row.spec.dataset, row.spec.protocol, canonical(options))
            groups.setdefault(panel, {}).setdefault((row.spec.pooling, K), []).append(row)
    found: dict[Panel, Samples] = {}
    for panel, group in groups.items():
        if len({K for _, K in group}) > 1:
            parts = [next(iter(samples(runs, "accuracy").values())) for runs in group.values()]
            shared = common(parts)
            if len(shared[0]) > 0:
                found[panel] = dict(zip(group, shared, strict=True))
    return found


def _panel(ax: Axes, panel: Panel, found: Samples) -> None:
    dataset, protocol, rest = panel
    places = {K: i for i, K in enumerate(sorted({K for _, K in found}))}
    for shift, (pooling, solver) in zip((-0.12, 0.0, 0.12), POOLINGS.items(), strict=True):
        own = sorted((K, sample) for (name, K), sample in found.items() if name == pooling)
        ax.errorbar(
            [places[K] + shift for K, _ in own],
            [100 * sample.mean for _, sample in own],
            yerr=[100 * sample.std if len(sample) > 1 else 0.0 for _, sample in own],
            color=COLOURS[solver],
            marker=MARKERS[solver],
            markersize=5,
            linewidth=1.3,
            elinewidth=0.9,
            capsize=2.5,
            label=LABELS[solver],
        )
    runs = len(next(iter(found.values())))
    more = "" if rest == "{}" else f"\n{rest}"
    how = "paper (optimistic)" if protocol == "paper" else protocol
    ax.set_title(f"{dataset}, protocol {how}, {runs} runs a point{more}", fontsize=10)
    ax.set_xticks(list(places.values()), [f"{K}" for K in places])
    ax.set_xlabel("modules K (0: mean pooling)")
    ax.grid(alpha=0.3, axis="y")


def _in_words(panel: Panel, found: Samples) -> list[str]:
    dataset, protocol, rest = panel
    words = []
    for pooling, solver in POOLINGS.items():
        own = {
            K: sample
            for (name, K), sample in sorted(found.items(), key=lambda item: item[0])
            if name == pooling
        }
        if own:
            means = ", ".join(f"K={K} {100 * s.mean:.1f}" for K, s in own.items())
            best = max(own, key=lambda K: own[K].mean)
            words.append(
                f"{dataset}, {protocol}{'' if rest == '{}' else ', ' + rest}, {LABELS[solver]}, "
                f"{len(own[best])} runs each: {means} %; best K={best}, "
                f"{100 * (max(s.mean for s in own.values()) - min(s.mean for s in own.values())):.1f} points "
                f"above the worst, standard deviation {100 * own[best].std:.1f}"
            )
    return words
