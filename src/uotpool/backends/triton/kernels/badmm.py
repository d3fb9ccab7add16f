"""What both kinds of Bregman ADMM share: the weights of an update, and where states are kept."""

import triton
import triton.language as tl


@triton.jit
def module_of(WEIGHTS, K, j):
    """Return alpha0, alpha1, alpha2 and rho of update j; the closing one, K, has those of the last module."""
    k = tl.minimum(tl.cast(j, tl.int32), K - 1)
    a = tl.load(WEIGHTS + k)
    a1 = tl.load(WEIGHTS + K + k)
    a2 = tl.load(WEIGHTS + 2 * K + k)
    return a, a1, a2, tl.load(WEIGHTS + 3 * K + k)


@triton.jit
def place(KEPT, j, SLOTS, count, i, SIZE: tl.constexpr):
    """Return where the SIZE numbers of row or set i, of so many, before update j are; the last SLOTS are kept.

    Numbers of one row or set are side by side, so that one address does for all of them.
    """
    return KEPT + (tl.cast(j % SLOTS, tl.int64) * count + i) * SIZE
