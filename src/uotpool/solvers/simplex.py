"""Euclidean projection on the simplex of all entries of a set."""

from __future__ import annotations

import torch
from torch import Tensor

from uotpool.sets import Sets


def project(Y: Tensor, sets: Sets) -> Tensor:
    """Return argmin_Q |Q - Y|^2 over Q >= 0 of mass 1, set by set; 0 in absent rows.

    This is Michelot's active-set iteration: Q = max(Y - t, 0) with t the mean excess of the entries
    above t. As t only grows and the active set only shrinks, the iteration ends after finitely many
    rounds (a handful in practice), and each round is two sums, for sets of any sizes. The gradient
    is that of the final active set.
    """
    Y = Y - sets.to_rows(sets.max_n(Y.detach().amax(-1, keepdim=True)))  # t keeps its digits
    Y = sets.fill_absent(Y, -torch.inf)
    active = Y.detach() > -1.0  # the largest entry is 0 and Q <= 1, so t >= -1
    while True:
        count = sets.sum_all(active.to(Y.dtype)).clamp_min(1.0)
        t = (sets.sum_all(torch.where(active, Y, 0.0)) - 1.0) / count
        smaller = active & (Y.detach() > sets.to_rows(t.detach()))
        if torch.equal(smaller, active):
            return torch.where(active, Y - sets.to_rows(t), 0.0)
        active = smaller
