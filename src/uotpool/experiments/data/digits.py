"""Bags of scikit-learn's handwritten digits: is there a 9? The task of `examples/digit_bags.py`, as one set."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits

from uotpool.experiments.data.bags import Bags

TARGET = 9
BAGS = 400
SIZES = (5, 15)


def make(seed: int = 0) -> Bags:
    """400 bags of 5 to 15 different images; the first, third, ... have at least one 9.

    There are 1797 images, so most of them are in several bags: a split of the bags does not split the images.
    """
    data = load_digits()
    images, digits = data.data / 16, data.target
    wanted, others = np.flatnonzero(digits == TARGET), np.flatnonzero(digits != TARGET)
    random = np.random.RandomState(seed)  # whose numbers are the same in every version of numpy
    labels = (np.arange(BAGS) + 1) % 2
    members = []
    for label in labels:
        size = random.randint(SIZES[0], SIZES[1] + 1)
        bag = random.permutation(len(digits) if label else others)[:size]
        if label and not (digits[bag] == TARGET).any():
            bag[random.randint(size)] = random.choice(wanted)
        members.append(bag)
    ptr = np.cumsum([0, *map(len, members)])
    X = torch.from_numpy(images[np.concatenate(members)]).float()
    return Bags("digits", X, torch.from_numpy(ptr).long(), torch.from_numpy(labels).long())
