"""One view of a batch of sets for every input layout.

The solvers need three operations: a reduction over the samples of each set, spreading a value of a
set to its rows, and the mask of present rows. `Sets` has these, so each solver is written once for
all layouts. The table has the shapes for B sets, D features and M rows in all:

| kind of value    | letter | dense          | ragged    |
|------------------|--------|----------------|-----------|
| sample x feature | Y      | (B, N, D)      | (M, D)    |
| per sample       | v      | (B, N, 1)      | (M, 1)    |
| per feature      | u      | (B, 1, D)      | (B, D)    |
| per set          | s      | (B, 1, 1)      | (B, 1)    |

An absent row (padding, or a sample whose prior is zero) holds a finite value and is left out of all
reductions over samples. Absent rows are not removed, so no size depends on data and no call waits for a
GPU.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import copy
from typing import NamedTuple

import torch
from torch import Tensor


def logsumexp_d(Y: Tensor) -> Tensor:
    """Return log sum exp over the features of each sample, (..., D) -> (..., 1)."""
    # The maximum is detached: its two gradients cancel exactly, and `torch.logsumexp`, which keeps
    # them apart in rounding, is off by orders of magnitude in float32 for |Y| near 1e8.
    m = Y.detach().amax(-1, keepdim=True)
    return m + (Y - m).exp().sum(-1, keepdim=True).log()


class Sorted(NamedTuple):
    """The rows of each set in ascending order of each feature, set by set, with absent rows last.

    Attributes:
        rows: (rows, D); inf in absent ones.
        first: position of the first row of each set, (B, 1).
        sizes: number of present rows of each set, (B, 1).
    """

    rows: Tensor
    first: Tensor
    sizes: Tensor

    def at(self, rank: Tensor) -> Tensor:
        """Return the values of a rank in each set, (B, D), 0 for empty sets.

        Args:
            rank: (B, 1), from 0; clamped to the samples of the set.
        """
        last = (self.sizes - 1).clamp_min(0)
        place = (self.first + torch.minimum(rank.clamp_min(0), last)).squeeze(-1)
        rows = torch.cat([self.rows, self.rows.new_zeros(1, self.rows.shape[1])])  # a row for sets without any
        values = rows.index_select(0, torch.where(self.sizes.squeeze(-1) > 0, place, len(self.rows)))
        return torch.where(self.sizes > 0, values, 0.0)


class Sets(ABC):
    """How the rows of a batch are grouped in sets; see the table of shapes above."""

    def __init__(self, num_sets: int, present: Tensor | None) -> None:
        self.num_sets = num_sets
        self.present = present  # bool, shape of v; None: every row is present

    @abstractmethod
    def _sum(self, Y: Tensor) -> Tensor: ...

    @abstractmethod
    def _max(self, Y: Tensor) -> Tensor: ...

    @abstractmethod
    def to_rows(self, u: Tensor) -> Tensor:
        """Turn per-set values (u or s) into values that broadcast against the rows (Y or v)."""

    @abstractmethod
    def per_feature(self, p: Tensor) -> Tensor:
        """Bring (D,) or (B, D) to the shape of u."""

    @abstractmethod
    def per_sample(self, q: Tensor) -> Tensor:
        """Bring (B, N) or (M,) to the shape of v."""

    @abstractmethod
    def sort_n(self, Y: Tensor) -> Sorted:
        """Sort the samples of each set, feature by feature. Gradients follow the samples."""

    def squeeze(self, u: Tensor) -> Tensor:
        """Bring u to (B, D), or s to (B, 1)."""
        return u.reshape(self.num_sets, u.shape[-1])

    def restrict(self, present: Tensor) -> Sets:
        """Return the same sets with only the rows that are also in `present` (bool, shape of v)."""
        sets = copy(self)
        sets.present = present if self.present is None else self.present & present
        return sets

    def fill_absent(self, Y: Tensor, fill: float) -> Tensor:
        """Return Y with `fill` in the absent rows, which get no gradient."""
        return Y if self.present is None else torch.where(self.present, Y, fill)

    def sum_n(self, Y: Tensor) -> Tensor:
        """Return the sum over the samples of each set."""
        return self._sum(self.fill_absent(Y, 0.0))

    def sum_all(self, Y: Tensor) -> Tensor:
        """Return the sum over all entries of each set."""
        return self.sum_n(Y.sum(-1, keepdim=True))

    def max_n(self, Y: Tensor) -> Tensor:
        """Return the maximum over the samples of each set; 0 for a set without samples."""
        m = self._max(self.fill_absent(Y, -torch.inf))
        return torch.where(m == -torch.inf, 0.0, m)

    def logsumexp_n(self, Y: Tensor) -> Tensor:
        """Return log sum exp over the samples of each set; 0 for a set without samples."""
        m = self.max_n(Y.detach())
        total = self._sum((self.fill_absent(Y, -torch.inf) - self.to_rows(m)).exp())
        # The largest term is exp(0), so total >= 1 except for a set without samples. The clamp acts
        # only there and keeps log and its gradient finite.
        return m + total.clamp_min(1.0).log()

    def logsumexp_all(self, Y: Tensor) -> Tensor:
        """Return log sum exp over all entries of each set."""
        return self.logsumexp_n(logsumexp_d(Y))

    def softmax_n(self, Y: Tensor) -> Tensor:
        """Return the softmax over the samples of each set, feature by feature; 0 in absent rows."""
        # We divide by the sum and not by exp(logsumexp): beside a maximum of 1e8 the log of the sum
        # is lost to rounding.
        E = (self.fill_absent(Y, -torch.inf) - self.to_rows(self.max_n(Y.detach()))).exp()
        return E / self.to_rows(self._sum(E).clamp_min(1.0))

    def log_softmax_n(self, Y: Tensor) -> Tensor:
        """Return the log of `softmax_n`, with finite filler in absent rows."""
        # We subtract the maximum first, for the same reason.
        Y = Y - self.to_rows(self.max_n(Y.detach()))
        total = self._sum(self.fill_absent(Y, -torch.inf).exp())
        return Y - self.to_rows(total.clamp_min(1.0).log())

    def count(self, like: Tensor) -> Tensor:
        """Return the number of samples of each set, as s in the dtype of `like`."""
        return self.sum_n(torch.ones_like(like[..., :1]))

    def log_priors(self, X: Tensor, log_p0: Tensor | None, log_q0: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return log p0, given as (D,) or (B, D), as u, and log q0 as v; None means uniform."""
        if log_p0 is None:
            D = X.shape[-1]
            log_p0 = torch.full((D,), 1.0 / D, dtype=X.dtype, device=X.device).log()
        if log_q0 is None:
            log_q0 = -self.to_rows(self.count(X).clamp_min(1.0).log())
            log_q0 = log_q0.expand(*X.shape[:-1], 1)
        return self.per_feature(log_p0), log_q0
