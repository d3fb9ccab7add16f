"""Random problems and markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from uotpool_experiments.figures import problems
from uotpool_experiments.figures.problems import REGULARIZER, SOLVERS, Problem

__all__ = ["REGULARIZER", "SOLVERS", "Problem", "problem", "table"]


def problem(B: int, N: int, D: int, seed: int = 0) -> Problem:
    """X uniform in [0, 1], random priors, float64; what is drawn next also comes from this seed."""
    torch.manual_seed(seed)
    return problems.problem(B, N, D)


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a markdown table."""
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for row in rows:
        cells = (f"{c:.1e}" if isinstance(c, float) else str(c) for c in row)
        print("| " + " | ".join(cells) + " |")
