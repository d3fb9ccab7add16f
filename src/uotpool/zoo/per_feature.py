"""Poolings in which features differ in how they are pooled."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from uotpool.nn.base import Pooling
from uotpool.sets import Sets
from uotpool.zoo.simple import GeM


class GeMPerFeature(GeM):
    r"""Generalised mean with an exponent per feature, :math:`y_d = (\frac1N \sum_n x_{nd}^{p_d})^{1/p_d}`.

    Each is learned from 3, as in `GeM`, and features below epsilon count as epsilon.

    F. Radenovic, G. Tolias, O. Chum, "Fine-tuning CNN image retrieval with no human annotation",
    TPAMI 2018.
    """

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.raw_p = nn.Parameter(torch.empty(dim))
        self.reset_parameters()


class HalfMeanMax(Pooling):
    r""":math:`\frac1N \sum_n x_{nd}` for the first half of the features, :math:`\max_n x_{nd}` for the others.

    With an odd number of features the one in the middle is pooled by its mean.
    """

    def _pool(self, X: Tensor, sets: Sets) -> Tensor:
        half = (self.dim + 1) // 2
        mean = sets.sum_n(X[..., :half]) / sets.count(X).clamp_min(1.0)
        if half == self.dim:
            return sets.squeeze(mean)
        return sets.squeeze(torch.cat([mean, sets.max_n(X[..., half:])], dim=-1))
