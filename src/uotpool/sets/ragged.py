"""Sets of any sizes, one below the other."""

from __future__ import annotations

import torch
from torch import Tensor

from uotpool.sets import segments
from uotpool.sets.base import Sets, Sorted


class RaggedSets(Sets):
    """Sets of any sizes as rows (M, D); row i belongs to set index[i]. The rows may come in any order."""

    def __init__(
        self,
        index: Tensor | None,
        num_sets: int,
        present: Tensor | None,
        *,
        ptr: Tensor | None = None,
        like: Tensor | None = None,
    ) -> None:
        """Group by `index`, or by `ptr` with the rows `like`; the rows `like` alone are one set."""
        super().__init__(num_sets, present)
        self._index, self.ptr, self._like = index, ptr, like
        self.one = index is None and ptr is None

    @property
    def index(self) -> Tensor:
        """The set of each row, computed at first use."""
        if self._index is None:
            assert self._like is not None
            rows, device = self._like.shape[0], self._like.device
            if self.ptr is None:
                self._index = torch.zeros(rows, dtype=torch.int64, device=device)
            else:
                self._index = index_from_ptr(self.ptr, rows)
        return self._index

    def _sum(self, Y: Tensor) -> Tensor:
        return segments.sum(Y, self.index, self.num_sets)

    def _max(self, Y: Tensor) -> Tensor:
        largest = segments.max(Y.detach(), self.index, self.num_sets)
        if not Y.requires_grad:
            return largest
        top = self.to_rows(largest)
        hit = (Y.detach() == top) | top.isnan()  # ties share the gradient; a NaN gives NaN
        return self._sum(torch.where(hit, Y, 0.0)) / self._sum(hit.to(Y.dtype)).clamp_min(1.0)

    def to_rows(self, u: Tensor) -> Tensor:
        return segments.to_rows(u, self.index)

    def per_feature(self, p: Tensor) -> Tensor:
        return p.expand(self.num_sets, p.shape[-1])

    def per_sample(self, q: Tensor) -> Tensor:
        return q.unsqueeze(-1)

    def sort_n(self, Y: Tensor) -> Sorted:
        # By value, then stably by set: each feature has an order of its own.
        by_value = self.fill_absent(Y, torch.inf).sort(0)
        sets = self.index[by_value.indices]
        by_set = sets.sort(stable=True, dim=0).indices
        rows = by_value.values.gather(0, by_set)
        sizes = torch.zeros(self.num_sets, dtype=torch.int64, device=Y.device)
        sizes = sizes.index_add(0, self.index, torch.ones_like(self.index))
        first = (sizes.cumsum(0) - sizes).unsqueeze(-1)
        return Sorted(rows, first, self.count(Y).long())


def index_from_ptr(ptr: Tensor, num_rows: int) -> Tensor:
    """Return the set of each row from the offsets. The number of rows is known, so we never wait for a GPU."""
    rows = torch.arange(num_rows, device=ptr.device)
    return torch.bucketize(rows, ptr[1:].contiguous(), right=True)
