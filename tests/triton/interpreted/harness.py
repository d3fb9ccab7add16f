"""Problems for the interpreter, which takes 0.1 ms for each operation on a tile: small shapes, small tiles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import triton

from tests.backends.harness import Problem, randn
from uotpool.backends.triton import launch


def small_tile(D: int, itemsize: int, entries: int) -> dict[str, int]:
    """Return a tile of eight rows."""
    width = max(triton.next_power_of_2(D), 16)
    BL = min(width, 64)
    return {"R": 2, "C": width // BL, "W": 4, "BL": BL, "num_warps": 4}


@contextmanager
def small() -> Iterator[None]:
    """Make every call take tiles of eight rows and chunks of eleven, which is no multiple of it."""
    with mock.patch.object(launch, "tile", small_tile), mock.patch.object(launch, "CHUNK", 11):
        yield


def scaled(problem: Problem, length: int) -> Problem:
    """Give the problem scales of both signs, one of them 0."""
    scale = randn(length, seed=4)
    scale[1::4] = 0.0
    return problem._replace(scale=scale)
