from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from uotpool import checks
from uotpool_experiments.datasets.catalog import BagStatistics


@dataclass(frozen=True, eq=False)
class Bags:
    """Labelled bags of instances, ragged: the rows of bag b are `X[ptr[b]:ptr[b + 1]]`.

    Attributes:
        name: of the data set.
        X: the instances, float32, (instances, d).
        ptr: where the bags start and end, int64, (bags + 1,).
        y: the labels, 0 or 1, int64, (bags,).
    """

    name: str
    X: Tensor
    ptr: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        if self.X.dim() != 2 or self.X.dtype != torch.float32:
            checks.fail("X", "a float32 tensor of shape (instances, d)", self.X)
        if self.ptr.dim() != 1 or self.ptr.dtype != torch.int64 or len(self.ptr) < 1:
            checks.fail("ptr", "an int64 tensor of shape (bags + 1,)", self.ptr)
        checks.ptr_values(self.ptr, len(self.X))
        if self.y.shape != (len(self.ptr) - 1,) or self.y.dtype != torch.int64:
            checks.fail("y", f"an int64 tensor of shape ({len(self.ptr) - 1},)", self.y)
        if not bool(((self.y == 0) | (self.y == 1)).all()):
            raise ValueError(f"y: expected the labels 0 and 1, got {self.y.unique().tolist()}")

    def __len__(self) -> int:
        return len(self.y)

    @property
    def sizes(self) -> Tensor:
        """The number of instances of each bag, (bags,)."""
        return self.ptr.diff()

    @property
    def index(self) -> Tensor:
        """The bag of each instance, (instances,)."""
        return torch.repeat_interleave(self.sizes)

    def subset(self, indices: Tensor | np.ndarray | Sequence[int]) -> Bags:
        """Return the bags with these numbers, in this order; a number may come more than once."""
        which = torch.as_tensor(indices, device=self.ptr.device)
        if which.numel() == 0:
            which = which.reshape(-1).long()  # the dtype of an empty list says nothing
        checks.integers("indices", which)
        checks.index_values(which, len(self))
        sizes = self.sizes[which]
        ptr = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        # All rows of a bag move by the same distance: from the old start of the bag to the new one.
        shift = torch.repeat_interleave(self.ptr[which] - ptr[:-1], sizes)
        rows = torch.arange(len(shift), device=shift.device) + shift
        return Bags(self.name, self.X[rows], ptr, self.y[which])

    def statistics(self) -> BagStatistics:
        sizes, positive = self.sizes, int(self.y.sum())
        low, high = (int(sizes.min()), int(sizes.max())) if len(self) else (0, 0)
        instances, dimension = self.X.shape
        return BagStatistics(dimension, len(self), positive, len(self) - positive, instances, low, high)

    def label_columns(self) -> list[int]:
        """Return the columns of X that give the label away: one value in all positive bags, another
        in all others.
        """
        positive = self.y[self.index] == 1
        parts = self.X[positive], self.X[~positive]
        if not all(len(part) for part in parts):
            return []
        constant = [(part == part[0]).all(0) for part in parts]
        different = parts[0][0] != parts[1][0]
        return (constant[0] & constant[1] & different).nonzero().flatten().tolist()
