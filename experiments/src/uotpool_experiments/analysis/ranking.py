"""Ranks of poolings over data sets: is one of them consistently near the best?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from uotpool_experiments.analysis.samples import Sample, common

LEVEL = 0.05
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Ranking:
    """Poolings in the order of their mean ranks. Rank 1 is best, and poolings that tie share a rank."""

    poolings: list[str]
    datasets: list[str]
    ranks: Array  # (data sets, poolings)
    behind: Array  # (data sets, poolings): how far behind the best of the data set, in units of the metric

    @property
    def mean(self) -> Array:
        return self.ranks.mean(0)

    def interval(self, level: float = LEVEL) -> list[tuple[float, float]] | None:
        """Return confidence intervals of the mean ranks by Student's t over the data sets, None for
        one data set.

        The data sets count as drawn at random: an interval says where the mean rank would be on
        other data sets like these, not on other runs of the same ones. The intervals are cut to the
        possible ranks.
        """
        n, k = self.ranks.shape
        if n < 2:
            return None
        half = stats.t.ppf(1 - level / 2, n - 1) * self.ranks.std(0, ddof=1) / math.sqrt(n)
        return [(max(1.0, m - h), min(float(k), m + h)) for m, h in zip(self.mean, half, strict=True)]

    def friedman(self) -> float | None:
        """Return the p-value of Friedman's test (1937) that all poolings rank alike; None where
        there are too few.
        """
        n, k = self.ranks.shape
        if n < 2 or k < 3 or not np.ptp(self.ranks, axis=1).any():
            return None
        return float(stats.friedmanchisquare(*self.ranks.T).pvalue)

    def critical_difference(self, level: float = LEVEL) -> float | None:
        """Return from which distance on mean ranks differ by Nemenyi's test (Demšar 2006), None for
        one data set.
        """
        n, k = self.ranks.shape
        if n < 2 or k < 2:
            return None
        q = stats.studentized_range.ppf(1 - level, k, np.inf) / math.sqrt(2)
        return float(q * math.sqrt(k * (k + 1) / (6 * n)))

    def places(self) -> list[str]:
        """Return the places 1, 2, ... by mean rank, and "2-3" for two poolings that share these places."""
        mean = self.mean.round(9)
        first, last = stats.rankdata(mean, "min").astype(int), stats.rankdata(mean, "max").astype(int)
        return [f"{a}" if a == b else f"{a}-{b}" for a, b in zip(first, last, strict=True)]

    def groups(self) -> list[tuple[int, int]]:
        """Return the first and last place of the largest groups in which Nemenyi's test finds no difference."""
        critical = self.critical_difference()
        if critical is None:
            return []
        mean = self.mean
        ends = [int(np.searchsorted(mean, m + critical, side="right")) - 1 for m in mean]
        return [(i, end) for i, end in enumerate(ends) if end > i and (i == 0 or ends[i - 1] < end)]


def ranking(found: Mapping[tuple[str, str], Sample], better: int = 1) -> Ranking | None:
    """Rank the poolings on the data sets and runs that all of them have; None if there is no such data set.

    Args:
        found: samples by (pooling, data set).
        better: 1 if more is better, -1 if less is.
    """
    poolings = list(dict.fromkeys(p for p, _ in found))
    means: dict[str, list[float]] = {}
    for d in dict.fromkeys(d for _, d in found):
        parts = common([found[p, d] for p in poolings]) if all((p, d) in found for p in poolings) else []
        if parts and len(parts[0]):
            means[d] = [better * part.mean for part in parts]
    if not means:
        return None
    values = np.array(list(means.values())).round(12)
    ranks = stats.rankdata(-values, axis=1)
    order = np.argsort(ranks.mean(0), kind="stable")
    behind = values.max(1, keepdims=True) - values
    return Ranking([poolings[i] for i in order], list(means), ranks[:, order], behind[:, order])
