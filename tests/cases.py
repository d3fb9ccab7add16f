"""The one table of solvers, shapes and weights that the tests draw from."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

SOLVERS = ("sinkhorn", "badmm-e", "badmm-q")
FORMULATIONS = ("exact", "paper")
REGULARIZER = {"sinkhorn": "entropic", "badmm-e": "entropic", "badmm-q": "quadratic"}
SHAPES = ((12, 6), (30, 9), (5, 20), (1, 4), (7, 1))
DECADES = tuple(10.0**e for e in range(-5, 5))


class Case(NamedTuple):
    X: Tensor
    p0: Tensor
    q0: Tensor


def problem(B: int, N: int, D: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Case:
    """Random X in [0, 1] with random priors."""
    g = torch.Generator().manual_seed(seed)
    draw = {"generator": g, "dtype": torch.float64}
    X = torch.rand(B, N, D, **draw)  # type: ignore[call-overload]
    p0 = torch.randn(B, D, **draw).softmax(-1)  # type: ignore[call-overload]
    q0 = torch.randn(B, N, **draw).softmax(-1)  # type: ignore[call-overload]
    return Case(X.to(dtype), p0.to(dtype), q0.to(dtype))


def log_uniform(n: int, low: float, high: float, seed: int) -> list[float]:
    """n weights between two powers of ten."""
    g = torch.Generator().manual_seed(seed)
    e = torch.rand(n, generator=g, dtype=torch.float64)
    bounds = torch.tensor([low, high], dtype=torch.float64).log10()
    return [float(x) for x in 10 ** (bounds[0] + e * (bounds[1] - bounds[0]))]


def step(solver: str, rho: Any = 1.0) -> Any:
    """Return rho where the solver has one."""
    return None if solver == "sinkhorn" else rho


def module_weights(
    solver: str, K: int, seed: int = 0, dtype: torch.dtype = torch.float64
) -> list[Tensor | None]:
    """Different weights for every module, requiring gradients: alpha0, alpha1, alpha2, rho."""
    values = [
        torch.tensor(log_uniform(K, 0.3, 3.0, seed + i), dtype=dtype, requires_grad=True) for i in range(4)
    ]
    return [*values[:3], step(solver, values[3])]
