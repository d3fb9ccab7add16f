"""Quadratic Bregman ADMM as passes over the rows of a set; its dual Z is eliminated, P and S are kept.

Logarithms have base 2, and duals are in its units: those of `solvers.badmm` times log2 e. x = X - top and
centred tops are those of `passes`. The S update gives Z + rho (log P - log S) = alpha0 P + f with a vector f of
rows. So update j, with a = alpha0 of its module, az that of the module before (0 at first), the P of the update
before as Pb (0 at first) and rho = its weight + a max(Pb, S) of the set, does

    YP = log S + ((scale x - az Pb - a S) log2 e + z1 + scale top log2 e - f) / rho
    L = log sum_n exp(YP)     log p = norm((log mu + L) / 2)      log P = YP + log p - L
    YS = log P + ((az Pb - a P) log2 e + f + z2) / rho
    R = log sum_d exp(YS)     log q = norm((log eta + R) / 2)     log S' = YS + r,  r = log q - R
    log mu' = norm((alpha1 log p0 + rho log p - z1) / (alpha1 + rho))    z1' = z1 + rho (log mu' - log p)
    z2' = z2 + rho (log eta - log q)    log eta' = norm((alpha2 log q0 + rho log q - z2') / (alpha2 + rho))
    f' = -rho r - z2

from S = p0 q0, mu = p0, eta = q0 and duals of 0, where norm makes the mass of a vector 1. After the K modules
comes a closing update, and its S is the plan. YP and YS of every update are kept for the way back (without one
only the last), with `COLUMN` numbers of each column, `ROW` of each row and `NUMBER` of each set.

The largest entry of P in a column is p / sum_n exp(YP - its maximum), that of S in a row likewise, which gives
max(P, S); entries as large as it are counted, as they share its derivative.
"""

import triton
import triton.language as tl

from uotpool.backends.triton.kernels.badmm import place
from uotpool.backends.triton.kernels.tiles import LOG2E, log2, max_d, per_row, rows_at, sign_of, sum_d

# Of an update and a column: maximum and sum of exponentials of YP, log p, log mu', how many entries are as
# large as the maximum, and the logarithm of the largest P.
COLUMN = tl.constexpr(6)
# Of a state and a row: log eta but for its norm, z2, f, and of the update before it r, log q but for its norm,
# maximum and sum of exponentials of YS, how many entries are as large as that maximum, and the logarithm of the
# largest S. Many threads read the numbers of a row and one of them writes, so no pass writes what it reads.
ROW = tl.constexpr(9)
# Of a state and a set: log max(P, S), how many entries are as large, the norm of log eta; of the update behind
# it YP - log S and YS - log P where YP and YS are largest, and the norm of log q.
NUMBER = tl.constexpr(6)


@triton.jit
def entry_at(row, d, D: tl.constexpr):
    """Return where a tile of X is, of four neighbours in a thread: as many as of a matrix in float32.

    Half precision would have eight, and tiles of it would be turned to the layout of the others in every pass.
    """
    return tl.max_contiguous(row * D + d, [1, 1, 1, 4])


@triton.jit
def entries(X, row, live, d, here, D: tl.constexpr, CT: tl.constexpr):
    """Return a tile of X; 0 at absent rows."""
    return tl.load(X + entry_at(row, d, D), mask=live & here, other=0.0).to(CT)


@triton.jit
def norm(y, here, LOW: tl.constexpr, FAST: tl.constexpr):
    """Return y less the logarithm of its sum of exponentials."""
    y = tl.where(here, y, LOW)
    y -= tl.max(y)
    return y - log2(tl.sum(tl.exp2(y)), FAST)


@triton.jit
def start_rows(
    X, ORDER, PRESENT, LOGQ, ROWS, SLOTS, begin, end, M, d, here, scale,
    D: tl.constexpr, R: tl.constexpr, C: tl.constexpr, W: tl.constexpr, BL: tl.constexpr,
    CT: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    """Keep the first state of the rows; return the tops of columns.

    Also returns maximum and sum of exponentials of log q0. A row with an entry that is not finite has NaN
    there, which makes all of its set NaN.
    """
    sign = sign_of(scale)
    top = tl.full((1, C, W, BL), LOW, dtype=CT)
    m = tl.full((1, 1, W, 1), LOW * 0.5, dtype=CT)
    s = tl.zeros((1, 1, W, 1), dtype=CT)
    for start in range(begin, end, R * W):
        row, inside, live = rows_at(ORDER, PRESENT, start, end, M, R, W)
        x = entries(X, row, live, d, here, D, CT)
        log_q = per_row(LOGQ, row, live, row, CT) * LOG2E + sum_d(x * 0.0)
        state = place(ROWS, 0, SLOTS, M, row, ROW)
        tl.store(state, log_q, mask=live)
        tl.store(state + 1, log_q * 0.0, mask=live)
        tl.store(state + 2, log_q * 0.0, mask=live)
        tl.store(state + 3, log_q, mask=live)
        top = tl.maximum(top, tl.max(tl.where(live & here, x * sign, LOW), axis=0, keep_dims=True))
        log_q = tl.where(live, log_q, LOW)
        new = tl.maximum(m, tl.max(log_q, axis=0, keep_dims=True))
        s = s * tl.exp2(m - new) + tl.sum(tl.exp2(log_q - new), axis=0, keep_dims=True)
        m = new
    top = tl.max(top, axis=2, keep_dims=True)
    most = tl.max(m)
    total = tl.sum(s * tl.exp2(m - most))
    return tl.where(top == LOW, 0.0, top * sign), most, tl.where(total == 0.0, 1.0, total)


@triton.jit
def log_S_at(YS, ROWS, row, live, d, here, first, M, j, YS_SLOTS, SLOTS, D: tl.constexpr, LOW: tl.constexpr):
    """Return log S of state j of a tile; `first` has what stands for YS in state 0, for each column."""
    at = place(YS, tl.maximum(j - 1, 0), YS_SLOTS, M, row, D) + d
    y = tl.load(at, mask=live & here & (j > 0), other=0.0) + tl.where(j > 0, first * 0.0, first)
    r = tl.load(place(ROWS, j, SLOTS, M, row, ROW) + 3, mask=live, other=0.0)
    return tl.where(live & here, y + r, LOW)


@triton.jit
def P_before(YP, row, live, d, here, shift, M, j, YP_SLOTS, D: tl.constexpr, LOW: tl.constexpr):
    """Return P of the update before j of a tile, whose log p - L is `shift`; 0 where j = 0."""
    at = place(YP, tl.maximum(j - 1, 0), YP_SLOTS, M, row, D) + d
    return tl.exp2(tl.load(at, mask=live & here & (j > 0), other=LOW) + shift)


@triton.jit
def update_P(
    X, ORDER, PRESENT, ROWS, YP, YS, SLOTS, YP_SLOTS, YS_SLOTS, begin, end, M, d, here,
    scale, top, u, first, shift, a, az, rho, j,
    D: tl.constexpr, R: tl.constexpr, C: tl.constexpr, W: tl.constexpr, BL: tl.constexpr,
    CT: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    """Write YP of update j; u is z1 + scale top log2 e.

    Returns of each column the maximum, the sum of exponentials, how many are as large as the maximum, and
    YP - log S there.
    """
    move = 1 / rho
    m = tl.full((1, C, W, BL), LOW * 0.5, dtype=CT)
    s = tl.zeros((1, C, W, BL), dtype=CT)
    count = tl.zeros((1, C, W, BL), dtype=CT)
    slope = tl.full((1, C, W, BL), LOW, dtype=CT)
    for start in range(begin, end, R * W):
        row, inside, live = rows_at(ORDER, PRESENT, start, end, M, R, W)
        f = tl.load(place(ROWS, j, SLOTS, M, row, ROW) + 2, mask=live, other=0.0)
        log_S = log_S_at(YS, ROWS, row, live, d, here, first, M, j, YS_SLOTS, SLOTS, D, LOW)
        Pb = P_before(YP, row, live, d, here, shift, M, j, YP_SLOTS, D, LOW)
        x = entries(X, row, live, d, here, D, CT) - top
        moved = ((x * scale - az * Pb - a * tl.exp2(log_S)) * LOG2E + u - f) * move
        y = tl.where(live & here, log_S + moved, LOW)
        tl.store(place(YP, j, YP_SLOTS, M, row, D) + d, y, mask=live & here)
        new = tl.maximum(m, tl.max(y, axis=0, keep_dims=True))
        s = s * tl.exp2(m - new) + tl.sum(tl.exp2(y - new), axis=0, keep_dims=True)
        largest = y == new
        count = tl.where(m == new, count, 0.0) + tl.sum(tl.where(largest, 1.0, 0.0), axis=0, keep_dims=True)
        there = tl.max(tl.where(largest, moved, LOW), axis=0, keep_dims=True)
        slope = tl.maximum(tl.where(m == new, slope, LOW), there)
        m = new
    most = tl.max(m, axis=2, keep_dims=True)
    s = tl.sum(s * tl.exp2(m - most), axis=2, keep_dims=True)
    count = tl.sum(tl.where(m == most, count, 0.0), axis=2, keep_dims=True)
    slope = tl.max(tl.where(m == most, slope, LOW), axis=2, keep_dims=True)
    return tl.where(s == 0.0, 0.0, most), tl.where(s == 0.0, 1.0, s), count, slope


@triton.jit
def update_S(
    ORDER, PRESENT, ROWS, YP, YS, SLOTS, YP_SLOTS, YS_SLOTS, begin, end, M, d, here,
    shift, shift_before, eta_norm, a, az, rho, j,
    D: tl.constexpr, R: tl.constexpr, W: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Write YS of update j, and of its rows maximum, sum and (log eta + R) / 2, log q but for its norm.

    Returns this norm, and YS - log P where YS is largest.
    """
    move = 1 / rho
    m = tl.full((1, 1, W, 1), LOW * 0.5, dtype=CT)
    s = tl.zeros((1, 1, W, 1), dtype=CT)
    top = tl.full((1, 1, W, 1), LOW, dtype=CT)
    slope = tl.full((1, 1, W, 1), LOW, dtype=CT)
    for start in range(begin, end, R * W):
        row, inside, live = rows_at(ORDER, PRESENT, start, end, M, R, W)
        state = place(ROWS, j, SLOTS, M, row, ROW)
        after = place(ROWS, j + 1, SLOTS, M, row, ROW)
        eta = tl.load(state, mask=live, other=0.0) - eta_norm
        pull = tl.load(state + 1, mask=live, other=0.0) + tl.load(state + 2, mask=live, other=0.0)
        log_P = tl.load(place(YP, j, YP_SLOTS, M, row, D) + d, mask=live & here, other=LOW) + shift
        Pb = P_before(YP, row, live, d, here, shift_before, M, j, YP_SLOTS, D, LOW)
        moved = ((az * Pb - a * tl.exp2(log_P)) * LOG2E + pull) * move
        y = tl.where(live & here, log_P + moved, LOW)
        tl.store(place(YS, j, YS_SLOTS, M, row, D) + d, y, mask=live & here)
        most = max_d(y)
        total = sum_d(tl.exp2(y - most))
        largest = (y == most) & here
        there = max_d(tl.where(largest, moved, LOW))
        half = 0.5 * (eta + most + log2(total, FAST))
        tl.store(after + 4, half, mask=live)
        tl.store(after + 5, most, mask=live)
        tl.store(after + 6, total, mask=live)
        tl.store(after + 7, sum_d(tl.where(largest, 1.0, 0.0)), mask=live)
        half = tl.where(live, half, LOW)
        new = tl.maximum(m, tl.max(half, axis=0, keep_dims=True))
        s = s * tl.exp2(m - new) + tl.sum(tl.exp2(half - new), axis=0, keep_dims=True)
        m = new
        most = tl.where(live, most, LOW)
        new_top = tl.maximum(top, tl.max(most, axis=0, keep_dims=True))
        there = tl.max(tl.where(live & (most == new_top), there, LOW), axis=0, keep_dims=True)
        slope = tl.maximum(tl.where(top == new_top, slope, LOW), there)
        top = new_top
    most = tl.max(m)
    total = tl.sum(s * tl.exp2(m - most))
    highest = tl.max(top)
    return most + log2(tl.where(total == 0.0, 1.0, total), FAST), tl.max(tl.where(top == highest, slope, LOW))


@triton.jit
def update_rows(
    ORDER, PRESENT, LOGQ, ROWS, SLOTS, begin, end, M, q_norm, eta_norm, a2, rho, j,
    R: tl.constexpr, W: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Do the vectors of rows behind update j; q_norm is the norm of log q.

    Returns the logarithm of the largest S, how many entries are as large, and the norm of log eta'.
    """
    m = tl.full((1, 1, W, 1), LOW * 0.5, dtype=CT)
    s = tl.zeros((1, 1, W, 1), dtype=CT)
    top = tl.full((1, 1, W, 1), LOW, dtype=CT)
    count = tl.zeros((1, 1, W, 1), dtype=CT)
    for start in range(begin, end, R * W):
        row, inside, live = rows_at(ORDER, PRESENT, start, end, M, R, W)
        state = place(ROWS, j, SLOTS, M, row, ROW)
        after = place(ROWS, j + 1, SLOTS, M, row, ROW)
        eta = tl.load(state, mask=live, other=0.0) - eta_norm
        z = tl.load(state + 1, mask=live, other=0.0)
        log_q = tl.load(after + 4, mask=live, other=0.0) - q_norm
        log_total = log2(tl.load(after + 6, mask=live, other=1.0), FAST)
        r = log_q - tl.load(after + 5, mask=live, other=0.0) - log_total
        largest = tl.where(live, log_q - log_total, LOW)
        z_after = z + rho * (eta - log_q)
        prior = per_row(LOGQ, row, live, row, CT) * LOG2E
        eta = (a2 * prior + rho * log_q - z_after) / (a2 + rho)
        tl.store(after, eta, mask=live)
        tl.store(after + 1, z_after, mask=live)
        tl.store(after + 2, -rho * r - z, mask=live)
        tl.store(after + 3, r, mask=live)
        tl.store(after + 8, largest, mask=live)
        new_top = tl.maximum(top, tl.max(largest, axis=0, keep_dims=True))
        tied = tl.where(live & (largest == new_top), tl.load(after + 7, mask=live, other=0.0), 0.0)
        count = tl.where(top == new_top, count, 0.0) + tl.sum(tied, axis=0, keep_dims=True)
        top = new_top
        eta = tl.where(live, eta, LOW)
        new = tl.maximum(m, tl.max(eta, axis=0, keep_dims=True))
        s = s * tl.exp2(m - new) + tl.sum(tl.exp2(eta - new), axis=0, keep_dims=True)
        m = new
    most = tl.max(m)
    total = tl.sum(s * tl.exp2(m - most))
    highest = tl.max(top)
    count = tl.sum(tl.where(top == highest, count, 0.0))
    return highest, count, most + log2(tl.where(total == 0.0, 1.0, total), FAST)


@triton.jit
def output_rows(
    X, ORDER, PRESENT, ROWS, YS, OUT, SLOTS, YS_SLOTS, begin, end, M, K, d, here, top,
    PLAN: tl.constexpr, D: tl.constexpr, R: tl.constexpr, C: tl.constexpr, W: tl.constexpr, BL: tl.constexpr,
    CT: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    """Write the plan; or return maxima and sums of columns of S, and sums of x times the same exponentials."""
    m = tl.full((1, C, W, BL), LOW * 0.5, dtype=CT)
    s = tl.zeros((1, C, W, BL), dtype=CT)
    t = tl.zeros((1, C, W, BL), dtype=CT)
    for start in range(begin, end, R * W):
        row, inside, live = rows_at(ORDER, PRESENT, start, end, M, R, W)
        log_S = log_S_at(YS, ROWS, row, live, d, here, top, M, K + 1, YS_SLOTS, SLOTS, D, LOW)
        if PLAN:
            tl.store(OUT + entry_at(row, d, D), tl.exp2(log_S), mask=inside & here)
        else:
            x = entries(X, row, live, d, here, D, CT) - top
            new = tl.maximum(m, tl.max(log_S, axis=0, keep_dims=True))
            e = tl.exp2(log_S - new)
            old = tl.exp2(m - new)
            s = s * old + tl.sum(e, axis=0, keep_dims=True)
            t = t * old + tl.sum(e * x, axis=0, keep_dims=True)
            m = new
    return m, s, t
