"""Entropic Bregman ADMM as passes over the rows of a set, or over a chunk of them, without an N x D state.

Logarithms have base 2, x = X - top as in `passes`, and z is scale x. By induction log S = c z + u + v with a
number c, a vector u of columns and a vector v of rows, and so are P and the dual Z, so that they need not be
kept: where az is alpha0 of the module before, Z = az (c z + u) + rho (v before - v), less a constant. All of
these constants cancel, and only those of u and log mu are taken out, to keep numbers small. From az = c = z1 =
z2 = 0, u = log mu = log p0 and v = log eta = log q0, update j does with the weights of its module, a = alpha0,

    cP = c + (log2 e - az c) / rho        vP = v + ratio (v - v before),  ratio = rho before / rho
    L = log sum_n exp(cP z + vP)          rho t = rho log mu + (rho - az) u + scale top log2 e + z1
    log p = (t + L) / 2                   uS = (az u + rho (t - L) / 2) / (a + rho)
    cS = (rho c + log2 e) / (a + rho)     R = log sum_d exp(cS z + uS)
    vS = (rho (v + log eta - R) + z2) / (a + 2 rho)                     log q = vS + R

and goes on with c = cS, u = uS, v = vS, az = a and

    log mu' = (alpha1 log p0 + rho log p - z1) / (alpha1 + rho)         z1' = z1 + rho (log mu' - log p)
    log eta' = (alpha2 log q0 + 2 rho log q - rho log eta - z2) / (alpha2 + rho)
    z2' = z2 + rho (log eta - log q)

The output after K modules and a closing update is top + sum_n x A, A = softmax_n(cS z + vS); the plan is the
softmax of a row of cS z + uS times its mass q. A row is complete when it is read, so one pass makes R of an
update and the sums L of the next: K + 2 passes. L and R are kept as maxima and sums relative to these.

Backwards, dL and dR are all that X needs: with the softmaxes A and B that belong to L and R, the derivative by
z is the sum of cP dL A + cS dR B over the updates, and what the output has. The columns of update j + 1 give
dvP = sum_d dL A, with which the rows of update j give dR, and these du = sum_n dR B: one pass makes both. A
last pass forms dX. Where the sums of a column or row are all but one entry, dL A must leave it exactly: the
largest exponential of each is 1. States of rows are v, z2, log eta, and for R its maximum and inverse sum.
"""

import triton
import triton.language as tl

from uotpool.backends.triton.kernels.badmm import place
from uotpool.backends.triton.kernels.tiles import (
    LOG2E,
    entries,
    log2,
    max_d,
    per_row,
    rows_at,
    sign_of,
    sum_d,
)


@triton.jit
def start_rows(
    X, ORDER, PRESENT, LOGQ, ROWS, SLOTS, begin, end, M, d, here, scale, c,
    D: tl.constexpr, R: tl.constexpr, C: tl.constexpr, W: tl.constexpr, BL: tl.constexpr,
    CT: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    """Keep the first state of the rows; return the largest entry of each column and sums of exponentials.

    Entries are turned by the sign of the scale. One that is not finite makes its row NaN, and all its set.
    """
    sign = sign_of(scale)
    c2 = tl.abs(scale) * c
    m = tl.full((1, C, W, BL), LOW * 0.5, dtype=CT)
    s = tl.zeros((1, C, W, BL), dtype=CT)
    for start in range(begin, end, R * W):
        row, inside, live = rows_at(ORDER, PRESENT, start, end, M, R, W)
        log_q = per_row(LOGQ, row, live, row, CT) * LOG2E
        tl.store(place(ROWS, 0, SLOTS, M, row, 5), log_q, mask=live)
        tl.store(place(ROWS, 0, SLOTS, M, row, 5) + 1, log_q * 0.0, mask=live)
        tl.store(place(ROWS, 0, SLOTS, M, row, 5) + 2, log_q, mask=live)
        x = entries(X, row, live, d, here, D, CT)
        spoilt = sum_d(x * 0.0)
        x = tl.where(live & here, x * sign, LOW)
        new = tl.maximum(m, tl.max(x, axis=0, keep_dims=True))
        e = tl.exp2((x - new) * c2 + tl.where(live, spoilt + log_q, LOW))
        s = s * tl.exp2((m - new) * c2) + tl.sum(e, axis=0, keep_dims=True)
        m = new
    return m, s


@triton.jit
def update_rows(
    X, ORDER, PRESENT, LOGQ, ROWS, SLOTS, begin, end, M, d, here, scale, top, u, a, a2, rho, c, c_next,
    ratio, j,
    LAST: tl.constexpr, D: tl.constexpr, R: tl.constexpr, C: tl.constexpr, W: tl.constexpr, BL: tl.constexpr,
    CT: tl.constexpr, LOW: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Do the rows of update j, and keep the states after it.

    Returns maxima and sums of columns of the next update, whose cP and ratio are given. LAST is 1 for those of
    the pooled output instead, with sums of x times the same exponentials, and 2 for maximum and sum of log q.
    """
    half = 1 / (a + 2 * rho)
    share = 1 / (a2 + rho)
    m = tl.full((1, C, W, BL), LOW * 0.5, dtype=CT)
    s = tl.zeros((1, C, W, BL), dtype=CT)
    t = tl.zeros((1, C, W, BL), dtype=CT)
    if LAST == 2:
        m = tl.full((1, 1, W, 1), LOW * 0.5, dtype=CT)
        s = tl.zeros((1, 1, W, 1), dtype=CT)
    for start in range(begin, end, R * W):
        row, inside, live = rows_at(ORDER, PRESENT, start, end, M, R, W)
        v = tl.load(place(ROWS, j, SLOTS, M, row, 5), mask=live, other=0.0)
        z = tl.load(place(ROWS, j, SLOTS, M, row, 5) + 1, mask=live, other=0.0)
        eta = tl.load(place(ROWS, j, SLOTS, M, row, 5) + 2, mask=live, other=0.0)
        x = entries(X, row, live, d, here, D, CT) - top
        y = x * scale * c + u
        most = max_d(y)
        total = sum_d(tl.exp2(y - most))
        tl.store(place(ROWS, j, SLOTS, M, row, 5) + 3, most, mask=live)
        tl.store(place(ROWS, j, SLOTS, M, row, 5) + 4, 1 / total, mask=live)
        log_sum = most + log2(total, FAST)
        moved = (rho * (v + eta - log_sum) + z) * half
        log_q = moved + log_sum
        tl.store(place(ROWS, j + 1, SLOTS, M, row, 5), moved, mask=live)
        if LAST == 0:
            prior = per_row(LOGQ, row, live, row, CT) * LOG2E
            tl.store(place(ROWS, j + 1, SLOTS, M, row, 5) + 1, z + rho * (eta - log_q), mask=live)
            eta = (a2 * prior + rho * (2 * log_q - eta) - z) * share
            tl.store(place(ROWS, j + 1, SLOTS, M, row, 5) + 2, eta, mask=live)
            moved = vector_p(moved, v, ratio)
        if LAST == 2:
            w = tl.where(live, log_q, LOW)
        else:
            w = x * scale * c_next + tl.where(live, moved, LOW)
        new = tl.maximum(m, tl.max(w, axis=0, keep_dims=True))
        e = tl.exp2(w - new)
        old = tl.exp2(m - new)
        s = s * old + tl.sum(e, axis=0, keep_dims=True)
        if LAST == 1:
            t = t * old + tl.sum(e * x, axis=0, keep_dims=True)
        m = new
    return m, s, t


@triton.jit
def vector_p(v, before, ratio):
    """Return vP of an update from v of two states."""
    return v + ratio * (v - before)


@triton.jit
def plan_at(
    X, ORDER, PRESENT, ROWS, SLOTS, start, end, M, d, here, scale, top, u, c, largest, total, K,
    D: tl.constexpr, R: tl.constexpr, W: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Return the plan of a tile, the softmax of each row times its mass, and the rows of the tile."""
    row, inside, live = rows_at(ORDER, PRESENT, start, end, M, R, W)
    most = tl.load(place(ROWS, K, SLOTS, M, row, 5) + 3, mask=live, other=-LOW)
    inverse = tl.load(place(ROWS, K, SLOTS, M, row, 5) + 4, mask=live, other=1.0)
    v = tl.load(place(ROWS, K + 1, SLOTS, M, row, 5), mask=live, other=LOW)
    mass = tl.exp2((v + most) - log2(inverse, FAST) - largest) * inverse / total
    x = entries(X, row, live, d, here, D, CT) - top
    return tl.exp2(x * scale * c + u - most) * mass, row, inside, live


@triton.jit
def write_plan(
    X, ORDER, PRESENT, ROWS, P, SLOTS, begin, end, M, d, here, scale, top, u, c, largest, total, K,
    D: tl.constexpr, R: tl.constexpr, W: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Write the plan, from what the rows of the closing update kept."""
    for start in range(begin, end, R * W):
        p, row, inside, live = plan_at(
            X, ORDER, PRESENT, ROWS, SLOTS, start, end, M, d, here, scale, top, u, c, largest, total, K,
            D, R, W, CT, LOW, FAST,
        )  # fmt: skip
        tl.store(P + row * D + d, tl.where(live, p, 0.0), mask=inside & here)


@triton.jit
def plan_moment(
    X, ORDER, PRESENT, ROWS, DOUT, SLOTS, begin, end, M, d, here, scale, top, u, c, largest, total, K,
    D: tl.constexpr, R: tl.constexpr, W: tl.constexpr, BL: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr,
    FAST: tl.constexpr,
):  # fmt: skip
    """Return the sum of P dP over these rows, which the derivative of the plan's normalisation needs."""
    moment = tl.zeros((1, 1, W, BL), dtype=CT)
    for start in range(begin, end, R * W):
        p, row, inside, live = plan_at(
            X, ORDER, PRESENT, ROWS, SLOTS, start, end, M, d, here, scale, top, u, c, largest, total, K,
            D, R, W, CT, LOW, FAST,
        )  # fmt: skip
        g = tl.where(live, p * entries(DOUT, row, live, d, here, D, CT), 0.0)
        moment += tl.sum(tl.sum(g, axis=0, keep_dims=True), axis=1, keep_dims=True)
    return tl.sum(moment)
