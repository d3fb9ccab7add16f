"""Ranks of poolings over data sets: is one of them consistently near the best?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from uotpool_experiments.analysis.statistics import Sample, common

LEVEL = 0.05
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Ranking:
    """Poolings from the best mean rank to the worst; 1 is best, ties share."""

    poolings: list[str]
    datasets: list[str]
    ranks: Array  # (data sets, poolings)
    behind: Array  # (data sets, poolings): how far behind the best of the data set, in units of the metric

    @property
    def mean(self) -> Array:
        return self.ranks.mean(0)

    def interval(self, level: float = LEVEL) -> list[tuple[float, float]] | None:
        """Of the mean rank, by Student's t over the data sets, within what ranks can be; None for one.

        The data sets are what is drawn at random: it says where the mean rank would be on other data sets
        like these, not on other runs of the same ones.
        """
        n, k = self.ranks.shape
        if n < 2:
            return None
        half = stats.t.ppf(1 - level / 2, n - 1) * self.ranks.std(0, ddof=1) / math.sqrt(n)
        return [(max(1.0, m - h), min(float(k), m + h)) for m, h in zip(self.mean, half, strict=True)]

    def friedman(self) -> float | None:
        """p of the test that all poolings rank alike (Friedman 1937); None for too few to tell."""
        n, k = self.ranks.shape
        if n < 2 or k < 3 or not np.ptp(self.ranks, axis=1).any():
            return None
        return float(stats.friedmanchisquare(*self.ranks.T).pvalue)

    def critical_difference(self, level: float = LEVEL) -> float | None:
        """Mean ranks that are further apart differ by Nemenyi's test (Demšar 2006); None for one data set."""
        n, k = self.ranks.shape
        if n < 2 or k < 2:
            return None
        q = stats.studentized_range.ppf(1 - level, k, np.inf) / math.sqrt(2)
        return float(q * math.sqrt(k * (k + 1) / (6 * n)))

    def places(self) -> list[str]:
        """1, 2, ... by mean rank; "2-3" for two that share."""
        mean = self.mean.round(9)
        first, last = stats.rankdata(mean, "min").astype(int), stats.rankdata(mean, "max").astype(int)
        return [f"{a}" if a == b else f"{a}-{b}" for a, b in zip(first, last, strict=True)]

    def groups(self) -> list[tuple[int, int]]:
        """First and last place of the largest groups in which no two poolings differ by that test."""
        critical = self.critical_difference()
        if critical is None:
            return []
        mean = self.mean
        ends = [int(np.searchsorted(mean, m + critical, side="right")) - 1 for m in mean]
        return [(i, end) for i, end in enumerate(ends) if end > i and (i == 0 or ends[i - 1] < end)]


def ranking(found: Mapping[tuple[str, str], Sample], better: int = 1) -> Ranking | None:
    """Over the data sets that all poolings have runs on, and there on the runs that all have; None without any.

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
