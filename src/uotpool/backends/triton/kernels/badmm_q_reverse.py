"""The way back of quadratic Bregman ADMM, update by update; `badmm_q` has the formulas and what is kept.

Derivatives are by natural logarithms and by duals in the units of X. GS has those by log S, GP those by P that
the next update needs as Pb, G the sum of those by scale X. Through update j, with g a derivative by YP or YS,

    log S' = YS + r      dlog q += sum_d dlog S', dR -= the same; log q = norm(w): dw = dlog q - q sum_n dlog q
    YS                   g = dlog S' + dR softmax_d(YS)            dlog P = g (1 - a P / rho) + P dP
    log P = YP + ...     likewise with columns in the place of rows
    YP                   g = dlog P + dL softmax_n(YP)             dlog S = g (1 - a S / rho), dX += g / rho

and by rho as a part of both slopes: -sum g (YP - log S) / rho. The sum of all g is 0, but for rounding, which a
large slope would multiply. So the slope where YP is largest is taken out first, as `solvers.badmm` does.
"""

import triton
import triton.language as tl

from uotpool.backends.triton.kernels.badmm import place
from uotpool.backends.triton.kernels.badmm_q import ROW, P_before, entries, entry_at, log_S_at
from uotpool.backends.triton.kernels.tiles import LN2, LOG2E, per_row, rows_at, sum_d

# Of a row: the sum of its dlog S, derivatives by f, z2, log eta, and log q0 so far; those by log q and R of the
# update; and by z2 and log eta without what YS adds. As in `badmm_q`, no pass writes what it reads, but for
# sums that it does not use.
ADJOINT = tl.constexpr(9)


@triton.jit
def start_reverse(
    X, ORDER, PRESENT, ROWS, YS, DOUT, GS, GP, G, ADJOINTS, SLOTS, begin, end, M, K, d, here,
    top, share, m, mean,
    PLAN: tl.constexpr, D: tl.constexpr, R: tl.constexpr, W: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    """Write the derivatives by the last log S, and zeros for all others.

    `share` is the derivative by the output over the sums of its columns, whose maxima are m.
    """
    for start in range(begin, end, R * W):
        row, inside, live = rows_at(ORDER, PRESENT, start, end, M, R, W)
        log_S = log_S_at(YS, ROWS, row, live, d, here, top, M, K + 1, SLOTS - 1, SLOTS, D, LOW)
        if PLAN:
            g = tl.exp2(log_S) * entries(DOUT, row, live, d, here, D, CT)
        else:
            x = entries(X, row, live, d, here, D, CT) - top
            g = tl.exp2(log_S - m) * (share * (x - mean))
        tl.store(GS + row * D + d, g, mask=live & here)
        tl.store(GP + row * D + d, g * 0.0, mask=live & here)
        tl.store(G + row * D + d, g * 0.0, mask=live & here)
        adjoint = ADJOINTS + row * ADJOINT
        total = sum_d(g)
        tl.store(adjoint, total, mask=live)
        for i in range(1, 5):
            tl.store(adjoint + i, total * 0.0, mask=live)


@triton.jit
def reverse_rows(
    ORDER, PRESENT, LOGQ, ROWS, ADJOINTS, SLOTS, begin, end, M, eta_norm, eta_norm_after, q_norm, by_eta, most,
    tie, a2, rho, j,
    R: tl.constexpr, W: tl.constexpr, CT: tl.constexpr,
):  # fmt: skip
    """Go back through the vectors of rows of update j; by_eta is the sum of the derivatives by log eta'.

    `tie` is what an entry of S gets that is as large as max(P, S), whose logarithm is `most`.

    Returns the sum of the derivatives by log q, and parts of the derivatives by rho and alpha2.
    """
    share = 1 / (a2 + rho)
    total = tl.zeros((1, 1, W, 1), dtype=CT)
    drho = tl.zeros((1, 1, W, 1), dtype=CT)
    da2 = tl.zeros((1, 1, W, 1), dtype=CT)
    for start in range(begin, end, R * W):
        row, inside, live = rows_at(ORDER, PRESENT, start, end, M, R, W)
        after = place(ROWS, j + 1, SLOTS, M, row, ROW)
        eta = tl.load(place(ROWS, j, SLOTS, M, row, ROW), mask=live, other=0.0) - eta_norm
        eta_after = tl.load(after, mask=live, other=0.0) - eta_norm_after
        r = tl.load(after + 3, mask=live, other=0.0)
        log_q = tl.load(after + 4, mask=live, other=0.0) - q_norm
        count = tl.load(after + 7, mask=live, other=0.0)
        largest = tl.load(after + 8, mask=live, other=0.0)
        prior = per_row(LOGQ, row, live, row, CT) * LOG2E
        adjoint = ADJOINTS + row * ADJOINT
        by_S = tl.load(adjoint, mask=live, other=0.0) + tl.where(live & (largest == most), count * tie, 0.0)
        df = tl.load(adjoint + 1, mask=live, other=0.0)
        dz = tl.load(adjoint + 2, mask=live, other=0.0)
        dt = tl.load(adjoint + 3, mask=live, other=0.0)
        dt = tl.where(live, dt - tl.exp2(eta_after) * by_eta, 0.0) * share
        dz -= dt
        dlog_q = rho * (dt - dz - df) + by_S
        drho += tl.sum(dt * (log_q - eta_after) + dz * (eta - log_q) - df * r, axis=0, keep_dims=True)
        da2 += tl.sum(dt * (prior - eta_after), axis=0, keep_dims=True)
        total += tl.sum(dlog_q, axis=0, keep_dims=True)
        tl.store(adjoint + 7, dz - df, mask=live)
        tl.store(adjoint + 8, rho * dz, mask=live)
        tl.store(adjoint + 4, tl.load(adjoint + 4, mask=live, other=0.0) + a2 * dt, mask=live)
        tl.store(adjoint + 5, dlog_q, mask=live)
        tl.store(adjoint + 6, rho * df - by_S, mask=live)
    return tl.sum(total), tl.sum(drho) * LN2, tl.sum(da2) * LN2


@triton.jit
def reverse_S(
    ORDER, PRESENT, ROWS, YP, YS, GS, GP, ADJOINTS, SLOTS, begin, end, M, d, here,
    shift, shift_before, m, column_largest, q_norm, by_q, most, tie, slope, a, az, rho, j,
    D: tl.constexpr, R: tl.constexpr, C: tl.constexpr, W: tl.constexpr, BL: tl.constexpr,
    CT: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    """Go back through YS of update j, from GS and GP to the derivatives by log P in GS, and by Pb in GP.

    m and `column_largest` are maxima of YP and logarithms of the largest P of columns, by_q is the sum of the
    derivatives by log q, `slope` is taken out of YS - log P.

    Returns the column sums of dlog P, the sum of derivatives by log eta, and parts of those by a, az and rho.
    """
    move = 1 / rho
    columns = tl.zeros((1, C, W, BL), dtype=CT)
    with_P = tl.zeros((1, 1, W, BL), dtype=CT)
    with_Pb = tl.zeros((1, 1, W, BL), dtype=CT)
    with_slope = tl.zeros((1, 1, W, BL), dtype=CT)
    by_eta = tl.zeros((1, 1, W, 1), dtype=CT)
    for start in range(begin, end, R * W):
        row, inside, live = rows_at(ORDER, PRESENT, start, end, M, R, W)
        after = place(ROWS, j + 1, SLOTS, M, row, ROW)
        adjoint = ADJOINTS + row * ADJOINT
        dw = tl.load(adjoint + 5, mask=live, other=0.0)
        dw -= tl.exp2(tl.load(after + 4, mask=live, other=LOW) - q_norm) * by_q
        dR = tl.load(adjoint + 6, mask=live, other=0.0) + 0.5 * dw
        most_n = tl.load(after + 5, mask=live, other=0.0)
        dR /= tl.load(after + 6, mask=live, other=1.0)
        tied = tl.where(live & (tl.load(after + 8, mask=live, other=0.0) == most), dR * 0.0 + tie, 0.0)
        y = tl.load(place(YS, j, SLOTS - 1, M, row, D) + d, mask=live & here, other=LOW)
        g = tl.load(GS + row * D + d, mask=live & here, other=0.0)
        g += tl.where(y == most_n, tied, 0.0) + dR * tl.exp2(y - most_n)
        yp = tl.load(place(YP, j, SLOTS - 1, M, row, D) + d, mask=live & here, other=LOW)
        log_P = yp + shift
        P = tl.exp2(log_P)
        Pb = P_before(YP, row, live, d, here, shift_before, M, j, SLOTS - 1, D, LOW)
        by_P = tl.load(GP + row * D + d, mask=live & here, other=0.0)
        tl.store(GP + row * D + d, (az * move) * g, mask=live & here)
        with_P += tl.sum(tl.sum(g * P, axis=0, keep_dims=True), axis=1, keep_dims=True)
        with_Pb += tl.sum(tl.sum(g * Pb, axis=0, keep_dims=True), axis=1, keep_dims=True)
        moved = tl.where(live & here, y - log_P - slope, 0.0)
        with_slope += tl.sum(tl.sum(g * moved, axis=0, keep_dims=True), axis=1, keep_dims=True)
        row_sum = sum_d(g) * move
        g = g - (a * move) * g * P + P * by_P
        g += tl.where((column_largest == most) & (yp == m) & live & here, g * 0.0 + tie, 0.0)
        tl.store(GS + row * D + d, g, mask=live & here)
        columns += tl.sum(g, axis=0, keep_dims=True)
        tl.store(adjoint + 1, row_sum, mask=live)
        tl.store(adjoint + 2, tl.load(adjoint + 7, mask=live, other=0.0) + row_sum, mask=live)
        deta = tl.load(adjoint + 8, mask=live, other=0.0) + 0.5 * dw
        tl.store(adjoint + 3, deta, mask=live)
        by_eta += tl.sum(tl.where(live, deta, 0.0), axis=0, keep_dims=True)
    columns = tl.sum(columns, axis=2, keep_dims=True)
    by_rho = -tl.sum(with_slope) * move * LN2
    return columns, tl.sum(by_eta), -tl.sum(with_P) * move, tl.sum(with_Pb) * move, by_rho


@triton.jit
def reverse_P(
    ORDER, PRESENT, ROWS, YP, YS, GS, GP, G, ADJOINTS, SLOTS, begin, end, M, d, here,
    first, shift_before, m, share, slope, a, az, rho, j,
    D: tl.constexpr, R: tl.constexpr, C: tl.constexpr, W: tl.constexpr, BL: tl.constexpr,
    CT: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    """Go back through YP of update j, from GS with dlog P to GS with dlog S of the state before.

    `share` is the derivative by L over the sum of exponentials of each column, `slope` as in `reverse_S`.

    Returns the column sums of g / rho and of the new GS, and parts of derivatives by a, az and rho.
    """
    move = 1 / rho
    columns = tl.zeros((1, C, W, BL), dtype=CT)
    columns_S = tl.zeros((1, C, W, BL), dtype=CT)
    with_S = tl.zeros((1, 1, W, BL), dtype=CT)
    with_Pb = tl.zeros((1, 1, W, BL), dtype=CT)
    with_slope = tl.zeros((1, 1, W, BL), dtype=CT)
    for start in range(begin, end, R * W):
        row, inside, live = rows_at(ORDER, PRESENT, start, end, M, R, W)
        y = tl.load(place(YP, j, SLOTS - 1, M, row, D) + d, mask=live & here, other=LOW)
        g = tl.load(GS + row * D + d, mask=live & here, other=0.0) + share * tl.exp2(y - m)
        log_S = log_S_at(YS, ROWS, row, live, d, here, first, M, j, SLOTS - 1, SLOTS, D, LOW)
        S = tl.exp2(log_S)
        Pb = P_before(YP, row, live, d, here, shift_before, M, j, SLOTS - 1, D, LOW)
        with_S += tl.sum(tl.sum(g * S, axis=0, keep_dims=True), axis=1, keep_dims=True)
        with_Pb += tl.sum(tl.sum(g * Pb, axis=0, keep_dims=True), axis=1, keep_dims=True)
        moved = tl.where(live & here, y - log_S - slope, 0.0)
        with_slope += tl.sum(tl.sum(g * moved, axis=0, keep_dims=True), axis=1, keep_dims=True)
        at = row * D + d
        by_Pb = tl.load(GP + at, mask=live & here, other=0.0) - (az * move) * g
        tl.store(GP + at, by_Pb, mask=live & here)
        by_S = g - (a * move) * g * S
        tl.store(GS + at, by_S, mask=live & here)
        g *= move
        tl.store(G + at, tl.load(G + at, mask=live & here, other=0.0) + g, mask=live & here)
        columns += tl.sum(g, axis=0, keep_dims=True)
        columns_S += tl.sum(by_S, axis=0, keep_dims=True)
        adjoint = ADJOINTS + row * ADJOINT
        tl.store(adjoint, sum_d(by_S), mask=live)
        tl.store(adjoint + 1, tl.load(adjoint + 1, mask=live, other=0.0) - sum_d(g), mask=live)
    columns = tl.sum(columns, axis=2, keep_dims=True)
    columns_S = tl.sum(columns_S, axis=2, keep_dims=True)
    by_rho = -tl.sum(with_slope) * move * LN2
    return columns, columns_S, -tl.sum(with_S) * move, -tl.sum(with_Pb) * move, by_rho


@triton.jit
def finish_rows(
    X, ORDER, PRESENT, ROWS, YS, DOUT, G, DX, SLOTS, begin, end, M, K, d, here, scale, top, share, m,
    PLAN: tl.constexpr, D: tl.constexpr, R: tl.constexpr, C: tl.constexpr, W: tl.constexpr, BL: tl.constexpr,
    CT: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    """Write dX from G, and with a pooled output what X itself adds to it; return the sums of x G and of G."""
    with_x = tl.zeros((1, C, W, BL), dtype=CT)
    total = tl.zeros((1, C, W, BL), dtype=CT)
    for start in range(begin, end, R * W):
        row, inside, live = rows_at(ORDER, PRESENT, start, end, M, R, W)
        g = tl.load(G + row * D + d, mask=live & here, other=0.0)
        x = entries(X, row, live, d, here, D, CT) - top
        with_x += tl.sum(tl.where(live, g * x, 0.0), axis=0, keep_dims=True)
        total += tl.sum(g, axis=0, keep_dims=True)
        dx = g * scale
        if not PLAN:
            log_S = log_S_at(YS, ROWS, row, live, d, here, top, M, K + 1, SLOTS - 1, SLOTS, D, LOW)
            dx += share * tl.exp2(log_S - m)
        if DX is not None:
            tl.store(DX + entry_at(row, d, D), tl.where(live, dx, 0.0), mask=inside & here)
    return tl.sum(with_x, axis=2, keep_dims=True), tl.sum(total, axis=2, keep_dims=True)


@triton.jit
def finish_prior(
    ORDER, PRESENT, LOGQ, ADJOINTS, DQ, begin, end, M, q_norm, by_most,
    R: tl.constexpr, W: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    """Write the derivative by log q0, through which S and eta begin; by_most is that by its maximum."""
    top = tl.full((1, 1, W, 1), LOW, dtype=CT)
    total = tl.zeros((1, 1, W, 1), dtype=CT)
    for start in range(begin, end, R * W):
        row, inside, live = rows_at(ORDER, PRESENT, start, end, M, R, W)
        log_q = tl.where(live, per_row(LOGQ, row, live, row, CT) * LOG2E, LOW)
        top = tl.maximum(top, tl.max(log_q, axis=0, keep_dims=True))
        adjoint = ADJOINTS + row * ADJOINT
        by_q = tl.load(adjoint, mask=live, other=0.0) + tl.load(adjoint + 3, mask=live, other=0.0)
        total += tl.sum(by_q, axis=0, keep_dims=True)
    most = tl.max(top)
    count = tl.zeros((1, 1, W, 1), dtype=CT)
    for start in range(begin, end, R * W):
        row, inside, live = rows_at(ORDER, PRESENT, start, end, M, R, W)
        log_q = per_row(LOGQ, row, live, row, CT) * LOG2E
        count += tl.sum(tl.where(live & (log_q == most), log_q * 0.0 + 1.0, 0.0), axis=0, keep_dims=True)
    tie = by_most / tl.maximum(tl.sum(count), 1.0)
    of_set = tl.sum(total) + by_most
    for start in range(begin, end, R * W):
        row, inside, live = rows_at(ORDER, PRESENT, start, end, M, R, W)
        log_q = per_row(LOGQ, row, live, row, CT) * LOG2E
        adjoint = ADJOINTS + row * ADJOINT
        by_q = tl.load(adjoint, mask=live, other=0.0) + tl.load(adjoint + 3, mask=live, other=0.0)
        by_q += tl.where(live & (log_q == most), log_q * 0.0 + tie, 0.0)
        by_q += tl.load(adjoint + 4, mask=live, other=0.0) - tl.exp2(log_q - q_norm) * of_set
        tl.store(DQ + row, tl.where(live, by_q, 0.0), mask=inside)
