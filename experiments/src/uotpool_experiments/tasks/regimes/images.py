"""The images of the regimes as 20 features each, with the scalars that regressions are about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.sparse.linalg import svds

from uotpool_experiments.datasets import images as image_data

FEATURES = 20
MOST_IMAGES = 10_000  # more would make no bag better
SHARES = (0.5, 0.2)  # of the images, for training bags and for validation bags; test bags have the rest
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Pool:
    """The images that bags of one part of the data are drawn from."""

    features: npt.NDArray[np.float32]  # (images, 20)
    labels: npt.NDArray[np.int64]
    scalar: Array  # (images,), mean 0 and variance 1 over the training images


def _brightness(pixels: Array) -> Array:
    return pixels.mean((1, 2, 3))


def _balance(pixels: Array) -> Array:
    """Return how much brighter the upper half is than the lower one."""
    middle = pixels.shape[1] // 2
    return pixels[:, :middle].mean((1, 2, 3)) - pixels[:, -middle:].mean((1, 2, 3))


def _tilt(pixels: Array) -> Array:
    """Return how much brighter the left half is than the right one."""
    middle = pixels.shape[2] // 2
    return pixels[:, :, :middle].mean((1, 2, 3)) - pixels[:, :, -middle:].mean((1, 2, 3))


def _warmth(pixels: Array) -> Array:
    """Return how much stronger red is than blue."""
    return pixels[..., 0].mean((1, 2)) - pixels[..., -1].mean((1, 2))


SCALARS: dict[str, Callable[[Array], Array]] = {
    "brightness": _brightness,
    "balance": _balance,
    "tilt": _tilt,
    "warmth": _warmth,
}


@lru_cache(maxsize=4)
def _pixels(name: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    found = image_data.load(name)
    x = np.concatenate([np.asarray(found.x_train), np.asarray(found.x_test)])
    y = np.concatenate([np.asarray(found.y_train), np.asarray(found.y_test)])
    chosen = np.random.RandomState(0).permutation(len(x))[:MOST_IMAGES]
    pixels = x[chosen].astype(np.float32) / np.float32(255)
    return (pixels if pixels.ndim == 4 else pixels[..., None]), y[chosen]


def _held(features: npt.NDArray[np.float32], values: Array, train: npt.NDArray[np.int64]) -> Array:
    """Return the part of a property that is linear in the features, so that no model has to guess the rest."""
    design = np.column_stack([features.astype(np.float64), np.ones(len(features))])
    weights, *_ = np.linalg.lstsq(design[train], values[train], rcond=None)
    held = design @ weights
    return (held - held[train].mean()) / held[train].std()


@lru_cache(maxsize=32)  # all seeds that a worker trains together, of two data sets
def _features(name: str, seed: int) -> tuple[npt.NDArray[np.float32], list[npt.NDArray[np.int64]]]:
    """Return the features of all images, and which images are for training, validation and test.

    The features are the first principal components of the training images, each divided by its standard
    deviation among these.
    """
    pixels, labels = _pixels(name)
    order = np.random.RandomState(seed).permutation(len(labels))
    first, second = (round(len(order) * share) for share in np.cumsum(SHARES))
    parts = [order[:first], order[first:second], order[second:]]
    flat = pixels.reshape(len(pixels), -1).astype(np.float64)
    flat -= flat[parts[0]].mean(0)
    train = flat[parts[0]]
    start = np.ones(flat.shape[1])  # or it would be drawn
    _, sizes, axes = svds(train, k=FEATURES, v0=start[: min(train.shape)], solver="arpack")
    axes = axes[::-1].T / (sizes[::-1] / np.sqrt(len(train) - 1))
    axes *= np.sign(axes[np.abs(axes).argmax(0), np.arange(FEATURES)])  # an axis has no sign of its own
    return (flat @ axes).astype(np.float32), parts


@lru_cache(maxsize=32)
def pools(name: str, scalar: str, seed: int) -> tuple[Pool, Pool, Pool]:
    """Return the images for training, validation and test bags, none in two of them."""
    pixels, labels = _pixels(name)
    features, parts = _features(name, seed)
    values = _held(features, SCALARS[scalar or "brightness"](pixels.astype(np.float64)), parts[0])
    train, validation, test = (Pool(features[rows], labels[rows], values[rows]) for rows in parts)
    return train, validation, test
