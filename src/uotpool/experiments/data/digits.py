"""Bags of scikit-learn's handwritten digits: is there a 9? The task of `examples/digit_bags.py`, as one set."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits

from uotpool.experiments.data.bags import Bags

TARGET = 9
BAGS = 160
SIZES = (5, 15)
MOST_TARGETS = 2  # in a positive bag: there are 180 of them


def make(seed: int = 0) -> Bags:
    """160 bags of 5 to 15 images; the first, third, ... have one or two 9s.

    No image is in two bags, so that a split of the bags also splits the images.
    """
    data = load_digits()
    images, digits = data.data / 16, data.target
    random = np.random.RandomState(seed)  # whose numbers are the same in every version of numpy
    wanted, others = (list(random.permutation(np.flatnonzero((digits == TARGET) == y))) for y in (True, False))
    labels = (np.arange(BAGS) + 1) % 2
    members = []
    for label in labels:
        size = random.randint(SIZES[0], SIZES[1] + 1)
        targets = random.randint(1, MOST_TARGETS + 1) if label else 0
        members.append([wanted.pop() for _ in range(targets)] + [others.pop() for _ in range(size - targets)])
    ptr = np.cumsum([0, *map(len, members)])
    X = torch.from_numpy(images[np.concatenate(members)]).float()
    return Bags("digits", X, torch.from_numpy(ptr).long(), torch.from_numpy(labels).long())
