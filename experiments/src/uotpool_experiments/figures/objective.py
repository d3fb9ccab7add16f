"""The value of the transport problem at a plan, for figures and for the explorer."""

from __future__ import annotations

import torch
from torch import Tensor

Weights = tuple[float, float, float]


def objective(
    X: Tensor,
    P: Tensor,
    weights: Weights,
    regularizer: str,
    *,
    p0: Tensor | None = None,
    q0: Tensor | None = None,
) -> Tensor:
    """The value of the problem at plans of mass 1.

    Args:
        X, P: (B, N, D).
        weights: alpha0, alpha1, alpha2.
        regularizer: "entropic" or "quadratic".
        p0: prior over features, positive, (D,) or (B, D). Default: uniform.
        q0: prior over samples, positive, (N,) or (B, N). Default: uniform.

    Returns:
        (B,).
    """
    alpha0, alpha1, alpha2 = weights
    _, n, d = X.shape
    smooth = P.square() if regularizer == "quadratic" else torch.special.xlogy(P, P) - P
    kl_p = _divergence(P.sum(1), 1 / d if p0 is None else p0)
    kl_q = _divergence(P.sum(2), 1 / n if q0 is None else q0)
    return (alpha0 * smooth - X * P).sum((1, 2)) + alpha1 * kl_p + alpha2 * kl_q


def _divergence(marginal: Tensor, prior: Tensor | float) -> Tensor:
    return torch.special.xlogy(marginal, marginal / prior).sum(-1)
