"""Second-order pooling."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from uotpool import checks
from uotpool.nn.base import Pooling
from uotpool.sets import DenseSets, Sets
from uotpool.sets.padding import pool_padded


class Covariance(Pooling):
    r"""Covariance pooling, :math:`y = \text{triu}(\Sigma^{1/2})`.

    .. math::
        \Sigma = \tfrac1N \sum_n (z_n - \bar z)(z_n - \bar z)^\top

    :math:`z = W x` has `rank` features, so y has rank (rank + 1) / 2. The root comes from five
    steps of Newton and Schulz on the matrix divided by its trace, as in the paper. For sets of one
    sample, 1e-5 is added to the diagonal.

    Args:
        dim: number of features.
        rank: rows of W; default 16, at most `dim`.

    P. Li, J. Xie, Q. Wang, Z. Gao, "Towards faster training of global covariance pooling networks
    by iterative matrix square root normalization", CVPR 2018.
    """

    RIDGE, STEPS = 1e-5, 5

    def __init__(self, dim: int, *, rank: int | None = None) -> None:
        super().__init__(dim)
        rank = min(16, dim) if rank is None else checks.count("rank", rank, 1)
        self.out_dim = rank * (rank + 1) // 2
        self.W = nn.Linear(dim, rank, bias=False)

    def _pool(self, X: Tensor, sets: Sets) -> Tensor:
        return pool_padded(self._root, X, sets)

    def _root(self, X: Tensor, sets: DenseSets) -> Tensor:
        count = sets.count(X).clamp_min(1.0)
        Z = self.W(sets.fill_absent(X - sets.sum_n(X) / count, 0.0))
        A = Z.transpose(1, 2) @ Z / count
        ridge = self.RIDGE * _trace(A) / A.shape[-1] + torch.finfo(A.dtype).tiny ** 0.5
        root = _matrix_root(A + ridge * torch.eye(A.shape[-1], dtype=A.dtype, device=A.device), self.STEPS)
        i, j = torch.triu_indices(*root.shape[1:], device=root.device)
        return root[:, i, j]


def _trace(A: Tensor) -> Tensor:
    return A.diagonal(dim1=1, dim2=2).sum(-1)[:, None, None]


def _matrix_root(A: Tensor, steps: int) -> Tensor:
    """Return the square root of symmetric positive definite matrices (B, r, r)."""
    eye = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    trace = _trace(A)
    Y, Z = A / trace, eye
    for _ in range(steps):
        T = 1.5 * eye - 0.5 * Z @ Y
        Y, Z = Y @ T, T @ Z
    return trace.sqrt() * Y
