"""What a call of the kernels is made of."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
KERNELS = ("sinkhorn", "badmm-e", "badmm-q")  # the solvers that there are kernels for
# Entries of a set on average that one program still solves in about the time of plain torch, by the model of
# `choice`: `badmm-q` has no other kernel.
MOST_ALONE = 2**17
MOST_COLUMNS = 1024  # a row of a tile, which has to fit the registers of a program


class Arguments(NamedTuple):
    """What the kernels are to solve.

    Set b has the rows b N .. (b + 1) N - 1; with `ptr`, the rows ptr[b] .. ptr[b + 1] - 1; with `order`
    too, the rows that it names at these places. A row that `present` is False for is absent.
    """

    X: Tensor  # (M, D), of `DTYPES`
    ptr: Tensor | None  # (B + 1,), int64
    order: Tensor | None  # (M,), int64
    present: Tensor | None  # (M,), bool
    N: int
    log_p0: Tensor | None  # (D,) or (B, D), this and all below in the dtype of computation
    log_q0: Tensor | None  # (M,)
    weights: Tensor  # (3, K), of Bregman ADMM (4, K)
    scale: Tensor | None  # (1,) or (D,)
    num_sets: int
    solver: str
    plan: bool

    @property
    def K(self) -> int:
        return self.weights.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """What is computed in: float32 for half precision."""
        return computed_in(self.X.dtype)

    def differentiable(self) -> tuple[Tensor | None, ...]:
        """Return the tensors that a derivative can be asked for."""
        return self.X, self.log_p0, self.log_q0, self.weights, self.scale

    def tensors(self) -> tuple[Tensor | None, ...]:
        """Return all tensors."""
        return *self.differentiable(), self.ptr, self.order, self.present

    def output_shape(self) -> Any:
        """Return the shape of the pooled output, or of the plan."""
        return self.X.shape if self.plan else (self.num_sets, self.X.shape[1])


class Saved(NamedTuple):
    """What a call keeps for its derivatives, in the dtype of computation.

    Sinkhorn keeps (2 K + 4) B D + K M numbers. Entropic Bregman ADMM keeps (5 K + 12) B D + (5 K + 10) M: its
    states before each of the K + 1 updates and after the last, see `kernels.badmm_e`. The quadratic one also
    keeps two matrices of each update, see `kernels.badmm_q`: in all
    (2 K + 2) M D + (6 K + 10) B D + (9 K + 18) M + (6 K + 12) B. The names of fields are those of Sinkhorn.
    """

    top: Tensor  # (B, D): the entry of each column where scale X is largest
    head: Tensor  # (B, D): the pooled output less that; for the plan (2, B): maximum and sum of its rows
    maxima: Tensor  # (K + 1, B, D): maxima of columns for L of each module, and, if pooled, of the output
    sums: Tensor  # (K + 1, B, D): sums of exponentials relative to these
    row_sums: Tensor  # (K, M): R

    @staticmethod
    def shapes(p: Arguments) -> list[tuple[int, ...]]:
        """Return the shapes of what a call keeps."""
        B, D, K, M = p.num_sets, p.X.shape[1], p.K, p.X.shape[0]
        head = (2, B) if p.plan else (B, D)
        if p.solver == "badmm-e":
            # Maxima and sums of columns; u, log mu and z1; v, z2, log eta, and maximum and 1 / sum of each row.
            return [(B, D), head, (K + 2, B, 2, D), (K + 2, B, 3, D), (K + 2, M, 5)]
        if p.solver == "badmm-q":
            # Top, mean, maxima and sums of the output; vectors of columns, of rows; numbers; YP and YS.
            return [(4, B, D), (K + 1, B, 6, D), (K + 2, M, 9), (K + 2, B, 6), (2, K + 1, M, D)]
        columns = (K, B, D) if p.plan else (K + 1, B, D)
        return [(B, D), head, columns, columns, (K, M)]

    @classmethod
    def empty(cls, p: Arguments) -> Saved:
        """Return memory for what a call keeps."""
        return cls(*[torch.empty(shape, dtype=p.dtype, device=p.X.device) for shape in cls.shapes(p)])


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that X of this dtype is computed in."""
    return dtype if dtype.itemsize >= 4 else torch.float32
