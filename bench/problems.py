"""Random problems for the measurements of the solvers."""

from __future__ import annotations

import torch
from uotpool_experiments.figures import problems
from uotpool_experiments.figures.problems import Problem


def problem(B: int, N: int, D: int, seed: int = 0) -> Problem:
    """Draw X uniform in [0, 1] and priors, in float64; what is drawn next also comes from this seed."""
    torch.manual_seed(seed)
    return problems.problem(B, N, D)


def log_uniform_weights(low: float, high: float) -> tuple[float, float, float]:
    """Draw log-uniformly between two powers of ten, from torch's seed, which `problem` sets."""
    exponents = torch.rand(3, dtype=torch.float64) * (high - low) + low
    a0, a1, a2 = (10**exponents).tolist()
    return a0, a1, a2
