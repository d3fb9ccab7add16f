"""Sets of one size, side by side."""

from __future__ import annotations

import torch
from torch import Tensor

from uotpool.sets.base import Sets, Sorted


class DenseSets(Sets):
    """Sets of one size, (B, N, D), with an optional mask."""

    def _sum(self, Y: Tensor) -> Tensor:
        return Y.sum(1, keepdim=True)

    def _max(self, Y: Tensor) -> Tensor:
        if Y.shape[1] == 0:  # torch's amax of nothing is an error
            return Y.sum(1, keepdim=True) - torch.inf  # stays in the graph, with gradient 0
        return Y.amax(1, keepdim=True)

    def to_rows(self, u: Tensor) -> Tensor:
        return u

    def per_feature(self, p: Tensor) -> Tensor:
        return p.unsqueeze(-2).expand(self.num_sets, 1, p.shape[-1])

    def per_sample(self, q: Tensor) -> Tensor:
        return q.unsqueeze(-1)

    def sort_n(self, Y: Tensor) -> Sorted:
        B, N, D = Y.shape
        rows = self.fill_absent(Y, torch.inf).sort(1).values.reshape(B * N, D)
        first = torch.arange(B, device=Y.device).unsqueeze(-1) * N
        return Sorted(rows, first, self.squeeze(self.count(Y)).long())
