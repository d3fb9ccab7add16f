"""Paired differences: how far one pooling is ahead of another on the same seeds, and what would be seen."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from uotpool_experiments.analysis.regret import RESAMPLES, SHARE, Array, Interval, interval
from uotpool_experiments.analysis.samples import Samples, common

BEST = "the best other"  # stands for a pooling that is another one on each data set
FEWEST = 5  # runs that an interval needs: so few drawn again are too often alike
POWER = 0.8  # the probability with which a difference of the size `Ahead.smallest` would be shown


@dataclass(frozen=True)
class Ahead:
    """A mean difference in points with its interval, which is unbounded for fewer than `FEWEST` runs.

    Attributes:
        points: the difference; positive if the first pooling is better.
        smallest: the smallest difference whose interval would leave out 0 with the probability `POWER`.
    """

    points: Interval
    smallest: float

    @property
    def verdict(self) -> int:
        """1 if the interval is above 0, -1 if it is below, else 0."""
        return int(self.points.low > 0) - int(self.points.high < 0)


@dataclass(frozen=True)
class Paired:
    """One pooling against another: on each data set that both have, and over all of these.

    Attributes:
        each: by data set; intervals are from drawing runs again.
        every: over all data sets, which weigh the same; its interval is from drawing data sets and runs again.
    """

    each: dict[str, Ahead]
    every: Ahead

    def count(self, verdict: int) -> int:
        """Return the number of data sets with this verdict."""
        return sum(one.verdict == verdict for one in self.each.values())


def paired(found: Samples, first: str, other: str, seed: int = 0) -> Paired:
    """Compare two poolings on the runs that both have.

    Args:
        found: scores of runs by (pooling, data set), 1 at best.
        first: the pooling whose lead is wanted.
        other: the pooling to compare with.
        seed: of the bootstrap.
    """
    ahead = {}
    for dataset in (d for p, d in found if p == first and (other, d) in found):
        ours, theirs = common([found[first, dataset], found[other, dataset]])
        if len(ours):
            scores = [np.array(list(sample.values.values())) for sample in (ours, theirs)]
            ahead[dataset] = 100 * (scores[0] - scores[1])
    if not ahead:
        raise ValueError(f"pooling: expected two with runs in common, got {first!r} and {other!r}, with none")
    random = np.random.RandomState(seed)
    means = {dataset: float(points.mean()) for dataset, points in ahead.items()}
    each = {d: _ahead(means[d], _redrawn(points, random), len(points)) for d, points in ahead.items()}
    differences, drawn = list(ahead.values()), []
    for _ in range(RESAMPLES):
        some = [differences[i] for i in random.randint(len(differences), size=len(differences))]
        drawn.append(np.mean([one[random.randint(len(one), size=len(one))].mean() for one in some]))
    runs = sum(map(len, differences))
    return Paired(each, _ahead(float(np.mean(list(means.values()))), np.array(drawn), runs))


def best_others(found: Samples) -> Samples:
    """Return for each data set the runs of the best pooling that is not one of ours, under the name `BEST`."""
    best: Samples = {}
    for (pooling, dataset), sample in found.items():
        before = best.get((BEST, dataset))
        if not pooling.startswith("uotp") and (before is None or sample.mean > before.mean):
            best[BEST, dataset] = sample
    return best


def _redrawn(points: Array, random: np.random.RandomState) -> Array:
    """Return means of runs that are drawn again."""
    return points[random.randint(len(points), size=(RESAMPLES, len(points)))].mean(1)


def _ahead(mean: float, draws: Array, runs: int) -> Ahead:
    """Return the difference with its interval, and so many standard errors as would be shown with `POWER`."""
    if runs < FEWEST:
        return Ahead(Interval(mean, -math.inf, math.inf), math.inf)
    errors = float(stats.norm.ppf((1 + SHARE) / 2) + stats.norm.ppf(POWER))
    return Ahead(interval(mean, draws), errors * float(draws.std()))
