"""Split bags (or graphs, or images) into those that train a model, that choose it and that test it.

The protocol `fair` has stratified outer folds. A stratified hold-out of the training part makes
every choice (configuration, epoch), scalers see training data only, and the test fold is looked at
once. The protocol `paper` does what the authors' code for multi-instance learning does: the same
outer folds, scalers on all data, and the epoch with the least *test* loss. Its numbers are
optimistic, and every table says so.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import StratifiedKFold, StratifiedShuffleSplit

PROTOCOLS = ("paper", "fair")
FOLDS = 5
HOLD_OUT = 0.2

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """The indices of one outer fold."""

    train: Indices
    validation: Indices  # the samples that make the choices; under "paper" the test fold itself
    test: Indices
    scaling: Indices  # the samples that the scaler sees

    def packed(self, size: int) -> dict[str, str]:
        """Pack the split for the store: one bit per sample, in base64."""
        return {name: _pack(getattr(self, name), size) for name in ("train", "validation", "test")}


def split(y: npt.ArrayLike, protocol: str, fold: int, seed: int, folds: int = FOLDS) -> Split:
    """Make the outer fold `fold` of the seed from the labels alone."""
    labels = np.asarray(y)
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol: expected one of {PROTOCOLS}, got {protocol!r}")
    if not 0 <= fold < folds:
        raise ValueError(f"fold: expected 0 to {folds - 1}, got {fold}")
    parts = StratifiedKFold(folds, shuffle=True, random_state=seed).split(labels, labels)
    outer, test = list(parts)[fold]
    if protocol == "paper":
        return Split(outer, test, test, np.arange(len(labels)))
    inner = StratifiedShuffleSplit(1, test_size=HOLD_OUT, random_state=seed)
    train, validation = next(inner.split(outer, labels[outer]))
    return Split(outer[train], outer[validation], test, outer[train])


def _pack(indices: Indices, size: int) -> str:
    bits = np.zeros(size, dtype=bool)
    bits[indices] = True
    return base64.b64encode(np.packbits(bits).tobytes()).decode()


def unpack(text: str, size: int) -> Indices:
    """Return the indices that `Split.packed` wrote."""
    bits = np.unpackbits(np.frombuffer(base64.b64decode(text), dtype=np.uint8), count=size)
    return np.flatnonzero(bits)
