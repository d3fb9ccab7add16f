"""Regret: by how many points a pooling is behind the best one of a data set, on average and at worst."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from uotpool_experiments.analysis.samples import Samples, on_common_runs

# The poolings that the best of a data set is taken from: all those of version 0.1 that need no edges, and two
# that came with the regimes. The list was committed before the confirmation part was run. A later pooling has a
# regret too, which can be negative, but does not change that of the others.
REFERENCE = (
    *("add", "mean", "max", "mean-max", "mixed", "gated-mixed", "deepset", "set2set", "attention"),
    *("gated-attention", "dynamic", "gnp", "uotp-sinkhorn", "uotp-badmm-e", "uotp-badmm-q"),
    *("uotp-sinkhorn-paper", "uotp-badmm-e-paper", "uotp-badmm-q-paper", "nin", "set-transformer", "otk"),
    *("wegl", "gem", "gem-per-feature", "half-mean-max", "softmax", "lse", "vpa", "gmt", "swe", "covariance"),
)
FAILED = 0.15  # a run fails if it is this much under the best median of its data set
RESAMPLES, SHARE = 2000, 0.95  # of the bootstrap, and of its intervals
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """An estimate with the interval of its bootstrap."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Regrets:
    """The regrets of poolings on data sets.

    Attributes:
        poolings: those that have runs on all data sets, the one with the least mean regret first.
        datasets: the data sets.
        regret: (poolings, data sets), in points of a hundred.
        failed: failed runs, (poolings, data sets).
        runs: runs of a pooling on each data set.
        mean, worst: of each pooling over the data sets.
        best_of: how many poolings of REFERENCE the best is taken from.
    """

    poolings: list[str]
    datasets: list[str]
    regret: Array
    failed: npt.NDArray[np.int64]
    runs: list[int]
    mean: list[Interval]
    worst: list[Interval]
    best_of: int

    def share_failed(self, place: int) -> Interval:
        """Return the share of failed runs of a pooling.

        The interval is from drawing data sets and runs again, or Wilson's for a share of independent runs
        where that is wider: no draw from runs that all succeed has a failure, which proves nothing.
        """
        runs = np.array(self.runs)
        failed, of = int(self.failed[place].sum()), int(runs.sum())
        random = np.random.RandomState(0)
        chosen = random.randint(len(runs), size=(RESAMPLES, len(runs)))
        drawn = random.binomial(runs[chosen], (self.failed[place] / runs)[chosen])
        found = interval(failed / of, drawn.sum(1) / runs[chosen].sum(1))
        low, high = _wilson(failed, of)
        return Interval(found.value, min(found.low, low), max(found.high, high))


def regrets(found: Samples, seed: int = 0) -> Regrets:
    """Compute the regrets of all poolings that have runs on all data sets.

    Args:
        found: scores of runs by (pooling, data set), 1 at best.
        seed: of the bootstrap.
    """
    shared = on_common_runs(found)
    datasets = list(dict.fromkeys(dataset for _, dataset in shared))
    poolings = [p for p in dict.fromkeys(p for p, _ in shared) if all((p, d) in shared for d in datasets)]
    reference = [i for i, p in enumerate(poolings) if p in REFERENCE]
    if not reference:
        raise ValueError(
            "pooling: expected at least one of the reference list with runs on all data sets, got none"
        )
    scores = [np.array([list(shared[p, d].values.values()) for p in poolings]) for d in datasets]
    regret = _regret([score.mean(1) for score in scores], reference)
    failed = np.stack([_failed(score, reference) for score in scores], 1)
    mean, worst = _bootstrap(scores, reference, seed)
    order = np.argsort(regret.mean(1), kind="stable")
    return Regrets(
        [poolings[i] for i in order],
        datasets,
        regret[order],
        failed[order],
        [score.shape[1] for score in scores],
        [interval(regret[i].mean(), mean[:, i]) for i in order],
        [interval(regret[i].max(), worst[:, i]) for i in order],
        len(reference),
    )


def _regret(means: Sequence[Array], reference: Sequence[int]) -> Array:
    """Return the regrets, (poolings, data sets), from the mean score of each pooling on each data set."""
    return np.stack([100 * (mean[list(reference)].max() - mean) for mean in means], 1)


def _failed(score: Array, reference: Sequence[int]) -> npt.NDArray[np.int64]:
    best = np.median(score[list(reference)], axis=1).max()
    return np.asarray((score < best - FAILED).sum(1), dtype=np.int64)


def _bootstrap(scores: Sequence[Array], reference: Sequence[int], seed: int) -> tuple[Array, Array]:
    """Draw data sets, and runs of each, again and again; return mean and worst regrets, (draws, poolings).

    All poolings get the same draws, as they were run on the same seeds.
    """
    random = np.random.RandomState(seed)
    mean, worst = [], []
    for _ in range(RESAMPLES):
        drawn = [scores[i] for i in random.randint(len(scores), size=len(scores))]
        means = [score[:, random.randint(score.shape[1], size=score.shape[1])].mean(1) for score in drawn]
        regret = _regret(means, reference)
        mean.append(regret.mean(1))
        worst.append(regret.max(1))
    return np.array(mean), np.array(worst)


def interval(value: float, draws: Array) -> Interval:
    """Return the estimate with the middle `SHARE` of its draws."""
    low, high = np.quantile(draws, [(1 - SHARE) / 2, (1 + SHARE) / 2])
    return Interval(float(value), float(low), float(high))


def _wilson(count: int, of: int) -> tuple[float, float]:
    """Return the interval of Wilson (1927) for a share of independent runs."""
    z = float(stats.norm.ppf((1 + SHARE) / 2))
    share, unit = count / of, z * z / of
    middle, half = share + unit / 2, z * math.sqrt(share * (1 - share) / of + unit / (4 * of))
    return max((middle - half) / (1 + unit), 0.0), min((middle + half) / (1 + unit), 1.0)
