"""Bags of scikit-learn's handwritten digits: is there a 9?"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from sklearn.datasets import load_digits

from uotpool_experiments.datasets.bags import Bags

TARGET = 9
BAGS = 160
SIZES = (5, 15)
MOST_TARGETS = 2  # in a positive bag; there are 180 targets in all


def members(seed: int = 0) -> list[list[int]]:
    """Return the images of each bag by their numbers in scikit-learn's data.

    Positive bags begin with their 9s.
    """
    digits = load_digits().target
    random = np.random.RandomState(seed)  # its numbers are the same in every version of numpy
    wanted, others = (list(random.permutation(np.flatnonzero((digits == TARGET) == y))) for y in (True, False))
    found = []
    for label in _labels():
        size = random.randint(SIZES[0], SIZES[1] + 1)
        targets = random.randint(1, MOST_TARGETS + 1) if label else 0
        bag = [wanted.pop() for _ in range(targets)] + [others.pop() for _ in range(size - targets)]
        found.append([int(image) for image in bag])
    return found


def make(seed: int = 0) -> Bags:
    """Make 160 bags of 5 to 15 images. The first, third, ... have one or two 9s.

    No image is in two bags, so that a split of the bags also splits the images.
    """
    bags = members(seed)
    ptr = np.cumsum([0, *map(len, bags)])
    X = torch.from_numpy(load_digits().data[np.concatenate(bags)] / 16).float()
    return Bags("digits", X, torch.from_numpy(ptr).long(), torch.from_numpy(_labels()).long())


def _labels() -> npt.NDArray[np.int64]:
    return (np.arange(BAGS) + 1) % 2
