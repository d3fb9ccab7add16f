"""Paired differences: how far one pooling is ahead of another on the same seeds, and what would be seen."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
from scipy import stats

from uotpool_experiments.analysis.regret import SHARE, Array, Interval
from uotpool_experiments.analysis.samples import Case, Sample, Samples, common
from uotpool_experiments.analysis.tests import OVERLAP

BEST = "the best other"  # stands for a pooling that is another one on each data set
POWER = 0.8  # the probability with which a difference of the size `Ahead.smallest` would be shown


@dataclass(frozen=True)
class Ahead:
    """A mean difference in points with its interval, which is unbounded for a single run.

    Attributes:
        points: the difference; positive if the first pooling is better.
        smallest: the smallest difference whose interval would leave out 0 with the probability `POWER`.
        p_value: of Student's test that there is no difference; None for a single run, which allows no test. For
            runs that all differ by the same, of which it would be certain, that of the sign test.
    """

    points: Interval
    smallest: float
    p_value: float | None

    @property
    def verdict(self) -> int:
        """1 if the interval is above 0, -1 if it is below, else 0."""
        return int(self.points.low > 0) - int(self.points.high < 0)


@dataclass(frozen=True)
class Paired:
    """One pooling against another: on each data set that both have, and over all of these.

    Attributes:
        each: by data set; intervals are over runs.
        every: over all data sets, which weigh the same; its interval is over data sets.
    """

    each: dict[str, Ahead]
    every: Ahead

    def count(self, verdict: int) -> int:
        """Return the number of data sets with this verdict."""
        return sum(one.verdict == verdict for one in self.each.values())


def paired(found: Samples, first: str, other: str, overlap: float = OVERLAP) -> Paired:
    """Compare two poolings on the runs that both have.

    Args:
        found: scores of runs by (pooling, data set), 1 at best.
        first: the pooling whose lead is wanted.
        other: the pooling to compare with.
        overlap: what runs on one data set have in common, as in `tests.compare`.
    """
    each, means = {}, []
    for dataset in (d for p, d in found if p == first and (other, d) in found):
        ours, theirs = common([found[first, dataset], found[other, dataset]])
        if len(ours):
            scores = [np.array(list(sample.values.values())) for sample in (ours, theirs)]
            each[dataset] = _ahead(100 * (scores[0] - scores[1]), overlap)
            means.append(each[dataset].points.value)
    if not each:
        raise ValueError(f"pooling: expected two with runs in common, got {first!r} and {other!r}, with none")
    return Paired(each, _ahead(np.array(means)) if len(means) > 1 else next(iter(each.values())))


def best_others(found: Samples) -> Samples:
    """Return for each data set runs of the best pooling that is not one of ours, under the name `BEST`.

    The best on a run would be chosen by luck too, and its lead be too large. So each seed has the pooling that
    is best on the other seeds, among those that have all seeds which at least half of the poolings have. A data
    set with fewer than two such seeds cannot say which pooling is best, and is left out.
    """
    best: Samples = {}
    for dataset in dict.fromkeys(d for _, d in found):
        others = [s for (pooling, d), s in found.items() if d == dataset and not pooling.startswith("uotp")]
        held = Counter(case for sample in others for case in sample.values)
        cases = sorted(case for case, count in held.items() if 2 * count >= len(others))
        seeds = {seed for seed, _ in cases}
        if len(seeds) < 2:
            continue
        candidates = [sample for sample in others if set(cases) <= set(sample.values)]
        chosen: dict[Case, float] = {}
        for seed in seeds:
            elsewhere = [case for case in cases if case[0] != seed]
            winner = max(candidates, key=lambda sample: np.mean([sample.values[case] for case in elsewhere]))
            chosen |= {case: winner.values[case] for case in cases if case[0] == seed}
        best[BEST, dataset] = Sample(dict(sorted(chosen.items())))
    return best


def _ahead(points: Array, overlap: float = 0.0) -> Ahead:
    """Return the mean with Student's interval, and so many standard errors as would be shown with `POWER`.

    Runs and data sets are few, and an interval from drawing them again would be too narrow: of ten runs
    without a difference it leaves out 0 twice as often as it says.

    Args:
        points: differences.
        overlap: what the runs have in common adds to the variance, as in `tests.compare`.
    """
    points = points.round(10)  # so that equal differences are equal
    mean, free = float(points.mean()), len(points) - 1
    if free == 0:
        return Ahead(Interval(mean, -math.inf, math.inf), math.inf, None)
    error = float(points.std(ddof=1)) * math.sqrt(1 / len(points) + overlap)
    half = float(stats.t.ppf((1 + SHARE) / 2, free)) * error
    if np.ptp(points) == 0:
        p_value = 2 * 0.5 ** len(points) if mean else 1.0
    else:
        p_value = 2 * float(stats.t.sf(abs(mean) / error, free))
    smallest = half + float(stats.t.ppf(POWER, free)) * error
    return Ahead(Interval(mean, mean - half, mean + half), smallest, p_value)
