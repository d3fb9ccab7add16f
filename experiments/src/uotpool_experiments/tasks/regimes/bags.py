"""Draw the bags of a regime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.random import RandomState

from uotpool_experiments.tasks.regimes.images import Pool
from uotpool_experiments.tasks.regimes.problems import Regime

QUANTILE = 0.9
MARGIN, SPREAD = (
    1,
    6,
)  # samples by which the count of a bag is away from the threshold: from MARGIN to SPREAD of 20
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class DrawnBags:
    """Bags as numbers of images, (bags, size), with a label (0 or 1) or a value each."""

    members: Indices
    y: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.y)


def draw(regime: Regime, pool: Pool, bags: int, size: int, seed: int) -> DrawnBags:
    """Draw bags; half of them are positive. The order of the samples in a bag tells nothing."""
    random = RandomState(seed)  # its numbers are the same in every version of numpy
    if regime.is_regression:
        members = random.randint(len(pool.labels), size=(bags, size))
        return DrawnBags(members, _statistic(regime.family, pool.scalar[members]))
    by_class = {int(label): np.flatnonzero(pool.labels == label) for label in np.unique(pool.labels)}
    y = np.arange(bags) % 2
    contents = _CONTENTS[regime.family]
    rest = np.flatnonzero(~np.isin(pool.labels, regime.classes))
    members = np.empty((bags, size), dtype=np.int64)
    for bag, label in zip(members, y, strict=True):
        counts = contents(regime, bool(label), size, random)
        drawn = [random.choice(by_class[kind], count) for kind, count in counts.items()]
        drawn.append(random.choice(rest, size - sum(counts.values())))
        bag[:] = random.permutation(np.concatenate(drawn))
    return DrawnBags(members, y.astype(np.float64))


def _statistic(family: str, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    found = {
        "mean": lambda: values.mean(1),
        "max": lambda: values.max(1),
        "quantile": lambda: np.quantile(values, QUANTILE, axis=1),
        "range": lambda: np.ptp(values, axis=1),
    }
    return np.asarray(found[family]())


Counts = dict[int, int]  # samples of each class that the question is about; the others are of other classes


def _presence(regime: Regime, positive: bool, size: int, random: RandomState) -> Counts:
    """Decide the count of the class: a positive bag has exactly one sample of it."""
    return {regime.classes[0]: int(positive)}


def _share(regime: Regime, positive: bool, size: int, random: RandomState) -> Counts:
    """Decide the count of the class, which is near a threshold on either side."""
    least, largest = regime.share
    unit = size / 20
    near, far = max(round(MARGIN * unit), 1), round(SPREAD * unit)
    thresholds = [(least, 1)] + ([(largest, -1)] if largest < 1.0 else [])
    threshold, inside = thresholds[random.randint(len(thresholds))]
    away = random.randint(near, far + 1) * (inside if positive else -inside)
    count = round(threshold * size) + away
    if positive:  # not past the other threshold
        count = min(
            max(count, round(least * size) + near), round(largest * size) - (near if largest < 1.0 else 0)
        )
    return {regime.classes[0]: int(np.clip(count, 0, size))}


def _conjunction(regime: Regime, positive: bool, size: int, random: RandomState) -> Counts:
    """Decide the counts of two classes: a positive bag has one of the first and a majority of the second."""
    witness, majority = (
        (True, True) if positive else [(True, False), (False, True), (False, False)][random.randint(3)]
    )
    half = size // 2
    count = half + random.randint(1, 5) if majority else half - random.randint(1, 5)
    return {regime.classes[0]: int(witness), regime.classes[1]: count}


def _kinds(regime: Regime, positive: bool, size: int, random: RandomState) -> Counts:
    """Decide the counts of several classes, whose sum tells nothing: a positive bag has enough of the kinds."""
    kinds, needed = len(regime.classes), len(regime.classes) - 1
    samples = 2 * kinds
    present = random.randint(needed, kinds + 1) if positive else random.randint(1, needed)
    chosen = random.permutation(regime.classes)[:present]
    counts = np.ones(present, dtype=np.int64) + random.multinomial(
        samples - present, np.full(present, 1 / present)
    )
    return {int(kind): int(count) for kind, count in zip(chosen, counts, strict=True)}


_CONTENTS: dict[str, Callable[[Regime, bool, int, RandomState], Counts]] = {
    "presence": _presence,
    "share": _share,
    "conjunction": _conjunction,
    "kinds-2-of-3": _kinds,
    "kinds-3-of-4": _kinds,
}
