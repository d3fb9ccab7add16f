"""Does it pay to train for long? Accuracy against epochs of the runs whose curves are committed."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.ndimage import median_filter

from uotpool_experiments.figures.from_runs import POOLINGS
from uotpool_experiments.figures.problems import COLOURS
from uotpool_experiments.tables.manifest import FOLDER, results_folder

FILE = "graph/epochs.csv"
COLUMNS = ("dataset", "pooling", "seed", "settings", "epoch", "test_accuracy", "validation_accuracy")
EARLY = 50  # epochs: would so many have been enough?
WINDOW = 9  # epochs whose median a line shows, as single ones jump
LAYERS = {"uotp": "#CC79A7", "uotp-single": "#882255"}  # the default layer, and the one before it
OTHERS = ("#000000", "#56B4E9", "#E69F00", "#7F7F7F", "#8C564B", "#117733", "#332288", "#AA4499", "#999933")


class Curve(NamedTuple):
    """The accuracies of one run, epoch by epoch, in per cent."""

    test: np.ndarray
    validation: np.ndarray

    def chosen(self, epochs: int) -> int:
        """Return the epoch, from 1, that validation chooses among the first so many."""
        return int(self.validation[:epochs].argmax()) + 1

    def accuracy(self, epochs: int) -> float:
        """Return the accuracy of a run that ends after so many epochs."""
        return float(self.test[self.chosen(epochs) - 1])

    def smooth(self) -> np.ndarray:
        """Return the median of `WINDOW` epochs around each one."""
        return median_filter(self.test, WINDOW, mode="nearest")


Curves = dict[str, dict[str, list[Curve]]]  # by data set and pooling, one for each seed


def draw(seed: int, quick: bool) -> tuple[Figure, list[str]]:
    """Draws results/graph/epochs.csv; neither `seed` nor `quick` changes what was run."""
    found = read()
    return picture(found), in_words(found)


def read() -> Curves:
    """Read the committed curves."""
    path = results_folder() / FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"expected {path}, got no such file: run it in the root of the project, or set {FOLDER} to the "
            "folder of the results. `uotpool export graph --store STORE --epochs CSV` writes such a file"
        )
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        missing = sorted(set(COLUMNS) - set(reader.fieldnames or ()))
        lines = list(reader)
    if missing or not lines:
        got = f"none of {', '.join(missing)}" if missing else "no line"
        raise ValueError(f"{path}: expected lines with columns {', '.join(COLUMNS)}, got {got}")
    return curves(lines)


def curves(lines: Sequence[Mapping[str, str]]) -> Curves:
    """Put the lines of epochs together to curves."""
    points: dict[tuple[str, str, int], list[tuple[int, float, float]]] = {}
    for line in lines:
        if line["settings"] != "{}":
            raise ValueError(f"settings: expected curves of runs without settings, got {line['settings']}")
        accuracies = 100 * float(line["test_accuracy"]), 100 * float(line["validation_accuracy"])
        key = line["dataset"], line["pooling"], int(line["seed"])
        points.setdefault(key, []).append((int(line["epoch"]), *accuracies))
    found: Curves = {}
    for (dataset, pooling, _), epochs in sorted(points.items()):
        _, test, validation = np.array(sorted(epochs)).T
        found.setdefault(dataset, {}).setdefault(pooling, []).append(Curve(test, validation))
    return found


def picture(found: Curves) -> Figure:
    """Draw two panels for each data set: other poolings, and UOT poolings beside the mean."""
    figure, axes = plt.subplots(
        len(found), 2, figsize=(10.5, 0.6 + 3.8 * len(found)), layout="constrained", squeeze=False, sharey="row"
    )
    for (left, right), (dataset, by_pooling) in zip(axes, found.items(), strict=True):
        others = [pooling for pooling in by_pooling if not pooling.startswith("uotp")]
        colours = dict(zip(others, itertools.cycle(OTHERS), strict=False))
        for pooling in others:
            _draw(left, pooling, by_pooling[pooling], colours[pooling], "-")
        for pooling in by_pooling:
            if pooling.startswith("uotp"):
                solver, formulation = POOLINGS.get(pooling, ("", ""))
                line = "--" if formulation == "paper" else "-"
                _draw(right, pooling, by_pooling[pooling], COLOURS.get(solver) or LAYERS[pooling], line)
        if "mean" in by_pooling:
            _draw(right, "mean", by_pooling["mean"], colours["mean"], ":")
        for ax, title in ((left, "other poolings"), (right, "UOT poolings, and the mean")):
            ax.set_title(f"{dataset}, {title}", fontsize=10)
            ax.set_xlabel("epoch")
            ax.grid(alpha=0.3)
            ax.spines[["top", "right"]].set_visible(False)
            ax.axvline(EARLY, color="0.6", linewidth=0.8, zorder=0)
            ax.legend(fontsize=8, frameon=False, ncols=2, loc="lower right")
        left.set_ylabel("test accuracy, %")
    figure.supxlabel(
        f"lines: median of {WINDOW} epochs; dots: the epoch chosen by validation, of {EARLY} and of all",
        fontsize=9,
    )
    return figure


def _draw(ax: Axes, pooling: str, by_seed: Sequence[Curve], colour: str, line: str) -> None:
    for number, curve in enumerate(by_seed):
        epochs = np.arange(1, len(curve.test) + 1)
        label = pooling if number == 0 else None
        ax.plot(epochs, curve.smooth(), color=colour, linestyle=line, linewidth=1.3, label=label)
        best = [curve.chosen(end) for end in (EARLY, len(curve.test))]
        ax.plot(best, curve.test[np.array(best) - 1], "o", color=colour, markersize=4)


def in_words(found: Curves) -> list[str]:
    """Say what each pooling has after `EARLY` epochs and after all of them."""
    words = []
    for dataset, by_pooling in found.items():
        for pooling, by_seed in by_pooling.items():
            length = min(len(curve.test) for curve in by_seed)
            said = ", ".join(
                f"{np.mean([curve.accuracy(end) for curve in by_seed]):.1f} % after {end} epochs"
                for end in sorted({min(EARLY, length), length})
            )
            last = np.mean([curve.test[length - length // 3 : length].mean() for curve in by_seed])
            seeds = f"{len(by_seed)} seed{'s' * (len(by_seed) > 1)}"
            words.append(f"{dataset}, {pooling}, {seeds}: {said}; mean of the last third {last:.1f} %")
    return words
