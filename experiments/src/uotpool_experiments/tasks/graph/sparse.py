"""Products with sparse matrices by MKL, which are several times faster than gathering and scattering rows."""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any

import scipy.sparse
import torch
from torch import Tensor

with warnings.catch_warnings():  # torch warns once that this format is in beta
    warnings.simplefilter("ignore")
    torch.eye(1).to_sparse_csr()


def csr(ptr: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """Make a sparse matrix of parts that fit together. `ptr` and `columns` are int32, as MKL needs them."""
    return torch.sparse_csr_tensor(ptr, columns, values, shape, check_invariants=False)


class Fixed:
    """A sparse matrix that is not learned. `fixed(X)` is its product with X, differentiable in X."""

    def __init__(self, matrix: scipy.sparse.csr_array) -> None:
        self._matrix = matrix

    def __call__(self, X: Tensor) -> Tensor:
        out: Tensor = _Product.apply(X, self)
        return out

    @cached_property
    def matrix(self) -> Tensor:
        return _as_tensor(self._matrix)

    @cached_property
    def transposed(self) -> Tensor:
        """The transposed matrix, made when first asked for, as passes that learn nothing do not need it."""
        return _as_tensor(self._matrix.T.tocsr())


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, X: Tensor, fixed: Fixed) -> Tensor:
        ctx.fixed = fixed
        return fixed.matrix.to(X.dtype) @ X

    @staticmethod
    def backward(ctx: Any, dY: Tensor) -> tuple[Tensor, None]:
        return ctx.fixed.transposed.to(dY.dtype) @ dY, None


def _as_tensor(matrix: scipy.sparse.csr_array) -> Tensor:
    ptr, columns = (torch.from_numpy(part).int() for part in (matrix.indptr, matrix.indices))
    return csr(ptr, columns, torch.from_numpy(matrix.data), matrix.shape)
