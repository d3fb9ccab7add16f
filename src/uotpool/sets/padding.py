"""Rearrange the rows of a batch: without absent rows, or padded to one size."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from uotpool.sets.base import Sets
from uotpool.sets.dense import DenseSets
from uotpool.sets.ragged import RaggedSets


def flat(X: Tensor, sets: Sets) -> tuple[Tensor, Tensor, Tensor]:
    """Return the present rows (M, D) in order, the set of each, and their positions among all rows."""
    rows = X.reshape(-1, X.shape[-1])
    if isinstance(sets, RaggedSets):
        index = sets.index
    else:
        index = torch.arange(sets.num_sets, device=X.device).repeat_interleave(X.shape[1])
    if sets.present is None:
        return rows, index, torch.arange(rows.shape[0], device=X.device)
    positions = sets.present.flatten().nonzero().flatten()
    return rows[positions], index[positions], positions


def padded(X: Tensor, sets: Sets) -> tuple[Tensor, DenseSets]:
    """Return (B, longest, D) with zeros after the rows of a set.

    An empty set has one row of zeros, so that nothing is divided by 0. `Pooling.forward` replaces
    its output by zeros.
    """
    if isinstance(sets, DenseSets) and X.shape[1] > 0:
        if sets.present is None:
            return X, sets
        present = sets.present.squeeze(-1)
        is_empty = ~present.any(1, keepdim=True)
        first = torch.arange(X.shape[1], device=X.device) == 0
        return X, DenseSets(sets.num_sets, (present | (is_empty & first)).unsqueeze(-1))
    rows, index, _ = flat(X, sets)
    count = torch.bincount(index, minlength=sets.num_sets)
    longest = max(int(count.max()), 1) if sets.num_sets else 1
    index, order = index.sort(stable=True)
    place = torch.arange(rows.shape[0], device=X.device) - (count.cumsum(0) - count)[index]
    dense = X.new_zeros(sets.num_sets, longest, X.shape[-1])
    dense = dense.index_put((index, place), rows[order])
    present = torch.arange(longest, device=X.device) < count.clamp_min(1)[:, None]
    return dense, DenseSets(sets.num_sets, present.unsqueeze(-1))


def pool_padded(pool: Callable[[Tensor, DenseSets], Tensor], X: Tensor, sets: Sets) -> Tensor:
    """Apply `pool` to padded sets, (b, longest, D) -> (b, features); return all sets in their order.

    Where padding to the longest set would more than quadruple the rows, ragged sets are padded in
    at most log2(longest) + 1 groups whose sizes differ by less than a factor 2. Otherwise one large
    set would make all others as expensive.
    """
    if isinstance(sets, DenseSets):
        return pool(*padded(X, sets))
    rows, index, _ = flat(X, sets)
    count = torch.bincount(index, minlength=sets.num_sets).clamp_min(1)
    if len(count) * int(count.max()) <= 4 * int(count.sum()):
        return pool(*padded(rows, RaggedSets(index, sets.num_sets, None)))
    group = count.double().log2().ceil()
    chosen, pooled = [], []
    for value in group.unique():
        in_group = group == value
        number = in_group.cumsum(0) - 1  # of a set within its group
        chosen.append(in_group.nonzero().flatten())
        part = RaggedSets(number[index[in_group[index]]], len(chosen[-1]), None)
        pooled.append(pool(*padded(rows[in_group[index]], part)))
    return torch.cat(pooled)[torch.cat(chosen).argsort()]


def mask_of(X: Tensor, sets: DenseSets) -> Tensor:
    """Return the mask (B, N), True where a row is present."""
    if sets.present is None:
        return torch.ones(X.shape[:2], dtype=torch.bool, device=X.device)
    return sets.present.squeeze(-1)
