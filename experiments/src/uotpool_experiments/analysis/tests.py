"""Paired tests between poolings, each by itself and all of a family together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from uotpool_experiments.analysis.samples import Sample
from uotpool_experiments.tasks import load
from uotpool_experiments.tasks.protocols import FOLDS

# What the data that runs have in common adds to the variance of their mean, in variances of one run (Nadeau and
# Bengio, 2003): the size of a test part over that of a training part.
OVERLAP = 1 / (FOLDS - 1)


def overlap_of(task: str) -> float:
    """Return what the runs of a task have in common: nothing where each seed draws data of its own."""
    return 0.0 if load(task).draws_data else OVERLAP


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values adjusted by Holm (1979): one below 5 % holds with all tests taken together."""
    order = np.argsort(p_values, kind="stable")
    adjusted = np.empty(len(order))
    steps = np.asarray(p_values, dtype=float)[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.maximum.accumulate(steps).clip(max=1.0)
    return [float(p) for p in adjusted]


@dataclass(frozen=True)
class Comparison:
    """The test of one pooling against another on the same folds and seeds."""

    difference: float
    p_value: float
    pairs: int
    better: int = 1  # -1 if less is better

    @property
    def verdict(self) -> str:
        """What the test says at 5 %: "win", "loss" or "tie"."""
        if not self.p_value < 0.05:
            return "tie"
        return "win" if self.better * self.difference > 0 else "loss"


def compare(ours: Sample, theirs: Sample, better: int = 1, overlap: float = OVERLAP) -> Comparison | None:
    """Return the paired t-test with the correction of Nadeau and Bengio (2003), None without two common runs.

    Runs on one data set share training data, whether they differ in their folds or their seeds, so the
    differences are not independent and their variance is underestimated; (1/J + `overlap`) takes the place
    of 1/J, for J differences.
    """
    common = sorted(ours.values.keys() & theirs.values.keys())
    if len(common) < 2:
        return None
    d = np.array([ours.values[case] - theirs.values[case] for case in common]).round(12)
    difference, variance = float(d.mean()), float(d.var(ddof=1))
    if variance < 1e-24:  # all differences are equal: the t-test would be certain of two such
        return Comparison(difference, 2 * 0.5 ** len(d) if difference else 1.0, len(d), better)
    t = difference / math.sqrt((1 / len(d) + overlap) * variance)
    return Comparison(difference, float(2 * stats.t.sf(abs(t), len(d) - 1)), len(d), better)


Tests = dict[tuple[str, str], Comparison]  # by (other pooling, data set)


def outcomes(
    found: Mapping[tuple[str, str], Sample], pooling: str, better: int = 1, overlap: float = OVERLAP
) -> Tests:
    """Test the pooling against each other one on each data set where the two share at least two runs."""
    tests: Tests = {}
    for (other, d), theirs in found.items():
        ours = found.get((pooling, d))
        if other != pooling and ours is not None and (test := compare(ours, theirs, better, overlap)):
            tests[other, d] = test
    return tests


def together(tests: Tests) -> dict[tuple[str, str], str]:
    """Return the verdicts of all tests as one family: "win" and "loss" only where Holm's correction
    leaves them.
    """
    adjusted = holm([test.p_value for test in tests.values()])
    return {
        key: test.verdict if p < 0.05 else "tie" for (key, test), p in zip(tests.items(), adjusted, strict=True)
    }
