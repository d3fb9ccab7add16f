"""Draw bags of MNIST digits: their sizes vary, and a positive bag has at least one 9."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from numpy.random import RandomState

from uotpool import checks
from uotpool_experiments.datasets import Bags, images

IMAGES = "mnist-5k"
TARGET = 9
SPREADS = {10: 2.0, 50: 10.0, 100: 20.0}  # the mean size of a bag, and the standard deviation of sizes
TRAINING = (50, 100, 200)  # numbers of training bags
HELD_OUT, TEST = 100, 500  # bags that choose the rate and the epoch, and bags that test
HELD_OUT_SHARE = 0.25  # of the training images, from which no training bag is drawn
SHARE = 0.1  # of 9s among the images of MNIST, and so in a positive bag
POOLED = 2  # a feature is the mean of so many pixels squared: 28 x 28 become 14 x 14


@dataclass(frozen=True)
class Problem:
    """The mean size of a bag and the number of training bags, as "mnist-bags-SIZE-BAGS" names them."""

    name: str
    size: int
    bags: int


PROBLEMS = {
    problem.name: problem
    for size in SPREADS
    for bags in TRAINING
    for problem in (Problem(f"mnist-bags-{size}-{bags}", size, bags),)
}


def problem(name: str) -> Problem:
    """Return the problem of this name."""
    if name not in PROBLEMS:
        checks.fail("dataset", f"one of {', '.join(PROBLEMS)} (mnist-bags-SIZE-BAGS)", name)
    return PROBLEMS[name]


@dataclass(frozen=True)
class Pool:
    """The images that bags are drawn from, as rows of pixels from 0 to 1."""

    X: npt.NDArray[np.float32]
    is_target: npt.NDArray[np.bool_]

    def part(self, rows: npt.NDArray[np.int64]) -> Pool:
        return Pool(self.X[rows], self.is_target[rows])


@lru_cache
def _pools() -> tuple[Pool, Pool]:
    """Return the training and the test images."""
    found = images.load(IMAGES)
    parts = ((found.x_train, found.y_train), (found.x_test, found.y_test))
    train, test = (Pool(_features(np.asarray(x)), np.asarray(y) == TARGET) for x, y in parts)
    return train, test


def _features(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    side = pixels.shape[1] // POOLED
    blocks = pixels.reshape(-1, side, POOLED, side, POOLED).astype(np.float32)
    means: npt.NDArray[np.float32] = blocks.mean((2, 4)) / np.float32(255)
    return means.reshape(len(pixels), -1)


def draw(pool: Pool, chosen: Problem, bags: int, seed: int) -> Bags:
    """Draw bags from the images of a pool, every second one positive.

    An image of a positive bag is a 9 with the probability `SHARE`, and one of them is a 9 in any case.
    """
    random = RandomState(seed)  # its numbers are the same in every version of numpy
    targets, others = (np.flatnonzero(pool.is_target == wanted) for wanted in (True, False))
    y = np.arange(bags) % 2
    sizes = np.maximum(np.rint(random.normal(chosen.size, SPREADS[chosen.size], bags)), 1).astype(np.int64)
    rows = []
    for size, positive in zip(sizes, y, strict=True):
        bag = random.choice(others, size)
        if positive:
            here = random.random_sample(size) < SHARE
            here[random.randint(size)] = True
            bag[here] = random.choice(targets, int(here.sum()))
        rows.append(bag)
    ptr = torch.from_numpy(np.append(0, np.cumsum(sizes)))
    X = torch.from_numpy(pool.X[np.concatenate(rows)])
    return Bags(chosen.name, X, ptr, torch.from_numpy(y))


def load(name: str, seed: Callable[[str], int]) -> tuple[Bags, Bags, Bags]:
    """Draw bags for training, for choosing and for the test; no image is in two of the three.

    Args:
        name: the name of a problem.
        seed: a function from the use of a seed to the seed.
    """
    chosen = problem(name)
    images_, test = _pools()
    order = RandomState(seed("images")).permutation(len(images_.X))
    held_out = round(HELD_OUT_SHARE * len(order))
    return (
        draw(images_.part(order[held_out:]), chosen, chosen.bags, seed("train")),
        draw(images_.part(order[:held_out]), chosen, HELD_OUT, seed("validation")),
        draw(test, chosen, TEST, seed("test")),
    )
