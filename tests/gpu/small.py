"""Kernels whose machine code is known in advance, to see that what reads machine code counts right."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def exponentials(X, Y, M, R: tl.constexpr, D: tl.constexpr):
    """One exponential for each entry, in a loop."""
    d = tl.arange(0, D)[None, :]
    total = tl.zeros((1, D), dtype=tl.float32)
    for row in range(0, M, R):
        at = row + tl.arange(0, R)[:, None]
        total += tl.sum(tl.exp2(tl.load(X + at * D + d, mask=at < M, other=0.0)), axis=0, keep_dims=True)
    tl.store(Y + d, total)


@triton.jit
def transposes(X, Y, M, R: tl.constexpr, D: tl.constexpr):
    """Rows are read along rows and written along columns: a tile changes its layout in the loop."""
    d = tl.arange(0, D)[None, :]
    for row in range(0, M, R):
        at = row + tl.arange(0, R)[:, None]
        tile = tl.load(X + at * D + d)
        tl.store(Y + (row + tl.arange(0, R)[None, :]) + tl.arange(0, D)[:, None] * M, tl.trans(tile))


@triton.jit
def too_wide(X, Y, M, R: tl.constexpr, D: tl.constexpr):
    """All entries of a tile are alive at a time."""
    d = tl.arange(0, D)[None, :]
    r = tl.arange(0, R)[:, None]
    tile = tl.load(X + r * D + d)
    for row in range(0, M):
        tile = tl.exp2(tile) + row
    tl.store(Y + r * D + d, tile)
