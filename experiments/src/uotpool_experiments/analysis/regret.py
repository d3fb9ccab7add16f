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
        best_of: how many poolings of REFERENCE the best of each data set is taken from.
    """

    poolings: list[str]
    datasets: list[str]
    regret: Array
    failed: npt.NDArray[np.int64]
    runs: list[int]
    mean: list[Interval]
    worst: list[Interval]
    best_of: list[int]

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

    All are compared on the runs that they share. A reference pooling that was not run on all data sets has no
    regret, but counts for the best of each data set on which it has these runs.

    Args:
        found: scores of runs by (pooling, data set), 1 at best.
        seed: of the bootstrap.
    """
    named = list(dict.fromkeys(dataset for _, dataset in found))
    poolings = [p for p in dict.fromkeys(p for p, _ in found) if all((p, d) in found for d in named)]
    shared = on_common_runs({key: sample for key, sample in found.items() if key[0] in poolings})
    datasets = list(dict.fromkeys(dataset for _, dataset in shared))
    scores, references = [], []  # of the poolings, and of the other reference poolings of each data set
    for dataset in datasets:
        runs = list(shared[poolings[0], dataset].values)
        others = [
            p
            for p, d in found
            if d == dataset and p in REFERENCE and p not in poolings and set(runs) <= set(found[p, d].values)
        ]
        names = [*poolings, *others]
        scores.append(np.array([[found[p, dataset].values[run] for run in runs] for p in names]))
        references.append([i for i, p in enumerate(names) if p in REFERENCE])
    if not datasets or not all(references):
        raise ValueError(
            "pooling: expected at least one with runs on all data sets, and on each data set one of the "
            f"reference list, got {sorted({p for p, _ in found})}"
        )
    count = len(poolings)
    regret = _regret([score.mean(1) for score in scores], references, count)
    failed = np.stack([_failed(s, r)[:count] for s, r in zip(scores, references, strict=True)], 1)
    mean, worst = _bootstrap(scores, references, count, seed)
    order = np.argsort(regret.mean(1), kind="stable")
    return Regrets(
        [poolings[i] for i in order],
        datasets,
        regret[order],
        failed[order],
        [score.shape[1] for score in scores],
        [interval(regret[i].mean(), mean[:, i]) for i in order],
        [interval(regret[i].max(), worst[:, i]) for i in order],
        [len(reference) for reference in references],
    )


def _regret(means: Sequence[Array], references: Sequence[list[int]], count: int) -> Array:
    """Return the regrets, (poolings, data sets), of the first `count` poolings, from their mean scores."""
    pairs = zip(means, references, strict=True)
    return np.stack([100 * (mean[reference].max() - mean[:count]) for mean, reference in pairs], 1)


def _failed(score: Array, reference: list[int]) -> npt.NDArray[np.int64]:
    best = np.median(score[reference], axis=1).max()
    return np.asarray((score < best - FAILED).sum(1), dtype=np.int64)


def _bootstrap(
    scores: Sequence[Array], references: Sequence[list[int]], count: int, seed: int
) -> tuple[Array, Array]:
    """Draw data sets, and runs of each, again and again; return mean and worst regrets, (draws, poolings).

    All poolings get the same draws, as they were run on the same seeds.
    """
    random = np.random.RandomState(seed)
    mean, worst = [], []
    for _ in range(RESAMPLES):
        chosen = random.randint(len(scores), size=len(scores))
        drawn = [scores[i] for i in chosen]
        means = [score[:, random.randint(score.shape[1], size=score.shape[1])].mean(1) for score in drawn]
        regret = _regret(means, [references[i] for i in chosen], count)
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
