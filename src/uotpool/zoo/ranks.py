"""Poolings of each feature by the order or the spread of its values."""

from __future__ import annotations

import torch
from torch import Tensor

from uotpool import checks
from uotpool.nn.base import Pooling
from uotpool.sets import Sets


class Quantile(Pooling):
    r"""A quantile of each feature, linear between two samples as `torch.quantile` is.

    .. math::
        y_d = (1 - f)\, x_{(i) d} + f\, x_{(i + 1) d}, \quad i + f = q (N - 1)

    Args:
        dim: number of features.
        q: from 0, the minimum, to 1, the maximum; 0.5 is the median.
    """

    def __init__(self, dim: int, *, q: float = 0.5) -> None:
        super().__init__(dim)
        self.q = checks.number("q", q, positive=False)
        if self.q > 1:
            checks.fail("q", "a number from 0 to 1", q)

    def _pool(self, X: Tensor, sets: Sets) -> Tensor:
        ordered = sets.sort_n(X)
        place = self.q * (ordered.sizes - 1).clamp_min(0).to(X.dtype)
        rank = place.floor().long()
        low, high = ordered.at(rank), ordered.at(rank + 1)
        # Not low + f (high - low), which overflows where the two are of opposite signs.
        share = place - rank
        return _with_nan((1 - share) * low + share * high, X, sets)

    def extra_repr(self) -> str:
        return f"{self.dim}, q={self.q}"


class TopKMean(Pooling):
    r"""The mean of the k largest values of each feature, :math:`y_d = \frac1k \sum_{i > N - k} x_{(i) d}`.

    Of all values where a set has fewer samples.

    Args:
        dim: number of features.
        k: how many.
    """

    def __init__(self, dim: int, *, k: int = 8) -> None:
        super().__init__(dim)
        self.k = checks.count("k", k, 1, high=10_000)

    def _pool(self, X: Tensor, sets: Sets) -> Tensor:
        ordered = sets.sort_n(X)
        total = torch.zeros_like(ordered.at(ordered.sizes))
        for i in range(1, self.k + 1):
            total = total + torch.where(ordered.sizes >= i, ordered.at(ordered.sizes - i), 0.0)
        return _with_nan(total / ordered.sizes.clamp(1, self.k), X, sets)

    def extra_repr(self) -> str:
        return f"{self.dim}, k={self.k}"


class Std(Pooling):
    r"""The standard deviation of each feature, :math:`y_d = \sqrt{\frac1N \sum_n (x_{nd} - \bar x_d)^2}`.

    Its gradient is 0 where all samples agree.
    """

    def _pool(self, X: Tensor, sets: Sets) -> Tensor:
        count = sets.count(X).clamp_min(1.0)
        X = X - sets.to_rows(sets.sum_n(X) / count)
        # In units of the largest deviation, since squares would overflow or vanish.
        unit = sets.max_n(X.detach().abs())
        unit = torch.where(unit > 0, unit, 1.0)
        variance = sets.sum_n((X / sets.to_rows(unit)).square()) / count
        root = torch.where(variance == 0, 1.0, variance).sqrt()
        return sets.squeeze(torch.where(variance == 0, 0.0, unit * root))


def _with_nan(y: Tensor, X: Tensor, sets: Sets) -> Tensor:
    """Return y, NaN where a sample is, which sorting puts behind all others and padding too."""
    return torch.where(sets.squeeze(sets.max_n(X.detach())).isnan(), torch.nan, y)
