"""Random problems and markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from uotpool.solvers import REGULARIZER

__all__ = ["REGULARIZER", "SOLVERS", "Problem", "problem", "table"]

SOLVERS = tuple(REGULARIZER)


class Problem(NamedTuple):
    X: Tensor
    p0: Tensor
    q0: Tensor


def problem(B: int, N: int, D: int, seed: int = 0) -> Problem:
    """X uniform in [0, 1], random priors, float64."""
    torch.manual_seed(seed)
    X = torch.rand(B, N, D, dtype=torch.float64)
    p0 = torch.randn(B, D, dtype=torch.float64).softmax(-1)
    q0 = torch.randn(B, N, dtype=torch.float64).softmax(-1)
    return Problem(X, p0, q0)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a markdown table."""
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for row in rows:
        cells = (f"{c:.1e}" if isinstance(c, float) else str(c) for c in row)
        print("| " + " | ".join(cells) + " |")
