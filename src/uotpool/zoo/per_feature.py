"""Poolings in which features differ in how they are pooled."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from uotpool.nn.base import Pooling
from uotpool.sets import Sets
from uotpool.zoo.simple import GeM


class GeMPerFeature(GeM):
    r"""Generalised mean with an exponent p_d per feature, each learned from 3; see `GeM`."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.raw_p = nn.Parameter(torch.empty(dim))
        self.reset_parameters()


class HalfMeanMax(Pooling):
    r"""Mean pooling of the first half of the features, max pooling of the others; nothing is learned.

    With an odd number of features the one in the middle is pooled by its mean.
    """

    def _pool(self, X: Tensor, sets: Sets) -> Tensor:
        half = (self.dim + 1) // 2
        mean = sets.sum_n(X[..., :half]) / sets.count(X).clamp_min(1.0)
        if half == self.dim:
            return sets.squeeze(mean)
        return sets.squeeze(torch.cat([mean, sets.max_n(X[..., half:])], dim=-1))
