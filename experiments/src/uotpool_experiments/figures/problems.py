"""What the figures of the solvers share: random problems, names and colours."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

LABELS = {"sinkhorn": "Sinkhorn", "badmm-e": "BADMM-E", "badmm-q": "BADMM-Q"}
COLOURS = {"sinkhorn": "#0072B2", "badmm-e": "#D55E00", "badmm-q": "#009E73"}  # Okabe and Ito
MARKERS = {"sinkhorn": "o", "badmm-e": "s", "badmm-q": "^"}


class Problem(NamedTuple):
    X: Tensor
    p0: Tensor
    q0: Tensor


def problem(B: int, N: int, D: int, generator: torch.Generator | None = None) -> Problem:
    """X uniform in [0, 1], random priors, float64; from torch's own generator if there is none."""
    X = torch.rand(B, N, D, dtype=torch.float64, generator=generator)
    p0 = torch.randn(B, D, dtype=torch.float64, generator=generator).softmax(-1)
    q0 = torch.randn(B, N, dtype=torch.float64, generator=generator).softmax(-1)
    return Problem(X, p0, q0)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def power(value: float) -> str:
    """A weight for a label: 0.01, 1, 1e4."""
    return f"{value:g}" if 1e-3 <= value < 1e3 else short(value, 0)


def short(value: float, digits: int = 1) -> str:
    """2.2e-5 where Python writes 2.2e-05."""
    number, _, exponent = f"{value:.{digits}e}".partition("e")
    return f"{number}e{int(exponent)}" if exponent else number
