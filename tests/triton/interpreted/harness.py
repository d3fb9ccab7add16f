"""Problems for the interpreter, which takes 0.1 ms for each operation on a tile: small shapes, small tiles."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from tests.kernels.harness import Problem, Weights, off, randn, solved
from uotpool.backends.triton import calls
from uotpool.backends.triton.choice import Choice, Tile, by_chunk, by_set, power_of_two

REGIMES = ("set", "chunk")


def small(regime: str, D: int) -> Choice:
    """Return tiles of eight rows and chunks of eleven, which is no multiple of it."""
    width = max(power_of_two(D), 16)
    tile = Tile(2, width // min(width, 64), 4, min(width, 64), 4)
    return Choice(0 if regime == "set" else 11, tile, tile, tile)


def real(regime: str, D: int, itemsize: int) -> Choice:
    """Return the tiles that a GPU gets."""
    return by_set(D, itemsize) if regime == "set" else by_chunk(D, itemsize, 64)


@contextmanager
def forced(choice: Choice) -> Any:
    """Make every call take this choice."""
    with mock.patch.object(calls, "chosen", return_value=choice):
        yield


def errors(problem: Problem, weights: Weights, choice: Choice, *, plan: bool = False) -> dict[str, float]:
    """Return how far the kernels are from the reference, both in the dtype of X, value and all derivatives."""
    want = solved(problem, weights, "sinkhorn", plan=plan, impl="reference")
    with forced(choice):
        got = solved(problem, weights, "sinkhorn", plan=plan, impl="triton")
    return off(got, want, weights, plan=plan)


def scaled(problem: Problem, length: int) -> Problem:
    """Give the problem scales of both signs, one of them 0."""
    scale = randn(length, seed=4)
    scale[1::4] = 0.0
    return problem._replace(scale=scale)


def zero_priors(problem: Problem) -> Problem:
    """Make every third sample absent, by a prior of 0, and the prior of a feature all but 0."""
    assert problem.q0 is not None
    assert problem.p0 is not None
    q0, p0 = problem.q0.clone(), problem.p0.clone()
    q0.view(-1)[::3] = -torch.inf
    p0.view(-1)[1] = -600.0
    return problem._replace(p0=p0, q0=q0)
