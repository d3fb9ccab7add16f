"""A metric run by run, and the runs that several poolings have in common."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from uotpool_experiments.runs.rows import Row

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
        """The standard deviation over all folds and seeds; 0 for a single run."""
        return float(np.std(list(self.values.values()), ddof=1)) if len(self.values) > 1 else 0.0

    @property
    def seeds(self) -> int:
        return len({seed for seed, _ in self.values})

    def by_seed(self) -> Sample:
        """Return the mean of each seed as the case (seed, 0)."""
        seeds = sorted({seed for seed, _ in self.values})
        means = {s: np.mean([value for (seed, _), value in self.values.items() if seed == s]) for s in seeds}
        return Sample({(s, 0): float(mean) for s, mean in means.items()})

    def __len__(self) -> int:
        return len(self.values)


Samples = dict[tuple[str, str], Sample]  # by (pooling, data set)


def samples(rows: Iterable[Row], metric: str) -> Samples:
    """Return the samples by (pooling, data set).

    A run that tests one model on several folds counts as one number.
    """
    found: dict[tuple[str, str], dict[Case, float]] = defaultdict(dict)
    for row in rows:
        value = row.metrics[metric] if metric in row.metrics else row.detail(metric)
        if value is not None:
            found[row.spec.pooling, row.spec.dataset][row.spec.seed, row.spec.fold] = value
    return {key: Sample(values) for key, values in found.items()}


def common(parts: Sequence[Sample]) -> list[Sample]:
    """Return the same samples, each with only the runs that all of them have."""
    cases = set.intersection(*(set(part.values) for part in parts)) if parts else set()
    return [Sample({case: part.values[case] for case in sorted(cases)}) for part in parts]


def on_common_runs(found: Mapping[tuple[str, str], Sample]) -> Samples:
    """Return the samples of each data set on the runs that all its poolings have.

    A data set whose poolings have no run in common is left out.
    """
    shared: Samples = {}
    for dataset in dict.fromkeys(d for _, d in found):
        keys = [key for key in found if key[1] == dataset]
        parts = common([found[key] for key in keys])
        shared |= {key: part for key, part in zip(keys, parts, strict=True) if len(part)}
    return shared
