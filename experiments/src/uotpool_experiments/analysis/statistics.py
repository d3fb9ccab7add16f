"""Means and tests over stored runs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from uotpool_experiments.runs.rows import Row
from uotpool_experiments.tasks.protocols import FOLDS

Case = tuple[int, int]  # (seed, fold)


@dataclass(frozen=True)
class Sample:
    """A metric of one pooling on one data set, run by run."""

    values: dict[Case, float]

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.values.values())))

    @property
    def std(self) -> float:
        """Over all folds and seeds; 0 for a single run."""
        return float(np.std(list(self.values.values()), ddof=1)) if len(self.values) > 1 else 0.0

    @property
    def seeds(self) -> int:
        return len({seed for seed, _ in self.values})

    def by_seed(self) -> Sample:
        """The means of the seeds, as cases (seed, 0)."""
        seeds = sorted({seed for seed, _ in self.values})
        means = {s: np.mean([value for (seed, _), value in self.values.items() if seed == s]) for s in seeds}
        return Sample({(s, 0): float(mean) for s, mean in means.items()})

    def __len__(self) -> int:
        return len(self.values)


def samples(rows: Iterable[Row], metric: str) -> dict[tuple[str, str], Sample]:
    """By (pooling, data set). A run that tests one model on several folds is one number: they hang together."""
    found: dict[tuple[str, str], dict[Case, float]] = defaultdict(dict)
    for row in rows:
        value = row.metrics[metric] if metric in row.metrics else row.detail(metric)
        if value is not None:
            found[row.spec.pooling, row.spec.dataset][row.spec.seed, row.spec.fold] = value
    return {key: Sample(values) for key, values in found.items()}


def common(parts: Sequence[Sample]) -> list[Sample]:
    """The same samples with the runs that all of them have."""
    cases = set.intersection(*(set(part.values) for part in parts)) if parts else set()
    return [Sample({case: part.values[case] for case in sorted(cases)}) for part in parts]


def sign(metric: str) -> int:
    """1 if more is better, -1 if less is."""
    return -1 if metric in ("loss", "validation_loss") else 1


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted by Holm (1979): below 5 % where it holds with all tests taken together."""
    order = np.argsort(p_values, kind="stable")
    adjusted = np.empty(len(order))
    steps = np.asarray(p_values, dtype=float)[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.maximum.accumulate(steps).clip(max=1.0)
    return [float(p) for p in adjusted]


@dataclass(frozen=True)
class Comparison:
    """A pooling against another on the same folds and seeds."""

    difference: float
    p_value: float
    pairs: int
    better: int = 1  # -1 if less is better

    @property
    def verdict(self) -> str:
        """One of "win" and "loss" if the test says so at 5 %, else "tie"."""
        if not self.p_value < 0.05:
            return "tie"
        return "win" if self.better * self.difference > 0 else "loss"


def compare(ours: Sample, theirs: Sample, folds: int = FOLDS, better: int = 1) -> Comparison | None:
    """Paired t-test with the correction of Nadeau and Bengio (2003), or None without two common runs.

    The training parts of the folds overlap, so the differences are not independent and their variance is
    underestimated; (1/J + n_test/n_train) takes the place of 1/J, for J differences.
    """
    common = sorted(ours.values.keys() & theirs.values.keys())
    if len(common) < 2:
        return None
    d = np.array([ours.values[case] - theirs.values[case] for case in common]).round(12)
    difference, variance = float(d.mean()), float(d.var(ddof=1))
    if variance < 1e-24:  # all the same: the t-test would be certain of two such; the sign test is not
        return Comparison(difference, 2 * 0.5 ** len(d) if difference else 1.0, len(d), better)
    t = difference / math.sqrt((1 / len(d) + 1 / (folds - 1)) * variance)
    return Comparison(difference, float(2 * stats.t.sf(abs(t), len(d) - 1)), len(d), better)


Tests = dict[tuple[str, str], Comparison]  # by (other pooling, data set)


def outcomes(found: Mapping[tuple[str, str], Sample], pooling: str, better: int = 1) -> Tests:
    """The pooling against each other one on each data set, where two runs are common."""
    tests: Tests = {}
    for (other, d), theirs in found.items():
        ours = found.get((pooling, d))
        if other != pooling and ours is not None and (test := compare(ours, theirs, better=better)):
            tests[other, d] = test
    return tests


def together(tests: Tests) -> dict[tuple[str, str], str]:
    """The verdicts when all tests are one family: "win" and "loss" where Holm's correction leaves them."""
    adjusted = holm([test.p_value for test in tests.values()])
    return {
        key: test.verdict if p < 0.05 else "tie" for (key, test), p in zip(tests.items(), adjusted, strict=True)
    }
