"""The way back of entropic Bregman ADMM as passes over rows; `badmm_e` has the formulas."""

import triton
import triton.language as tl

from uotpool.backends.triton.kernels.badmm import module_of, place
from uotpool.backends.triton.kernels.badmm_e import vector_p
from uotpool.backends.triton.kernels.tiles import LN2, LOG2E, entries, log2, per_row, rows_at, sum_d


@triton.jit
def reverse_rows(
    X, ORDER, PRESENT, LOGQ, ROWS, ADJOINTS, DR, DOUT, begin, end, M, d, here,
    scale, top, by_sum, m, mean, largest, total, moment, u, a, a2, rho, c, c_next, ratio, K, j,
    WAY: tl.constexpr, D: tl.constexpr, R: tl.constexpr, C: tl.constexpr, W: tl.constexpr, BL: tl.constexpr,
    CT: tl.constexpr, LOW: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Do a pass backwards: the columns of update j + 1 or the output, then the rows of update j.

    WAY is 0 for columns, whose dL over their sums is `by_sum`, whose maxima are `m` and whose cP and ratio are
    `c_next` and `ratio`; 1 for the pooled output, 2 for the plan. `u` and `c` are uS and cS of update j.
    ADJOINTS (2, M, 4) has those of v, z2 and log eta of the next state, and of log q0 so far. DR gets dR.

    Returns the sums of columns du, and the parts of the derivatives by cP, cS, ratio, alpha0, rho and alpha2.
    """
    half = 1 / (a + 2 * rho)
    share = 1 / (a2 + rho)
    du = tl.zeros((1, C, W, BL), dtype=CT)
    dcp = tl.zeros((1, 1, W, BL), dtype=CT)
    dcs = tl.zeros((1, 1, W, BL), dtype=CT)
    dratio = tl.zeros((1, 1, W, 1), dtype=CT)
    da = tl.zeros((1, 1, W, 1), dtype=CT)
    drho = tl.zeros((1, 1, W, 1), dtype=CT)
    da2 = tl.zeros((1, 1, W, 1), dtype=CT)
    for start in range(begin, end, R * W):
        row, inside, live = rows_at(ORDER, PRESENT, start, end, M, R, W)
        v = tl.load(place(ROWS, j, K + 2, M, row, 5), mask=live, other=0.0)
        eta = tl.load(place(ROWS, j, K + 2, M, row, 5) + 2, mask=live, other=0.0)
        most = tl.load(place(ROWS, j, K + 2, M, row, 5) + 3, mask=live, other=-LOW)
        inverse = tl.load(place(ROWS, j, K + 2, M, row, 5) + 4, mask=live, other=1.0)
        moved = tl.load(place(ROWS, j + 1, K + 2, M, row, 5), mask=live, other=0.0)
        log_sum = tl.where(live, most - log2(inverse, FAST), 0.0)
        log_q = moved + log_sum
        x = entries(X, row, live, d, here, D, CT) - top
        e = tl.exp2(x * scale * c + u - most)
        if WAY == 2:
            mass = tl.exp2(log_q - largest) * inverse / total
            g = e * (mass * LN2) * (entries(DOUT, row, live, d, here, D, CT) - moment)
            g = tl.where(live, g, 0.0)
            du += tl.sum(g, axis=0, keep_dims=True)
            dcs += tl.sum(tl.sum(g * (x * scale), axis=0, keep_dims=True), axis=1, keep_dims=True)
            by_v = sum_d(g)
        elif WAY == 1:
            g = by_sum * tl.exp2(x * scale * c + tl.where(live, moved, LOW) - m) * (x - mean)
            dcs += tl.sum(tl.sum(g * (x * scale), axis=0, keep_dims=True), axis=1, keep_dims=True)
            by_v = sum_d(g)
        else:
            w = x * scale * c_next + tl.where(live, vector_p(moved, v, ratio), LOW)
            g = by_sum * tl.exp2(w - m)
            dcp += tl.sum(tl.sum(g * (x * scale), axis=0, keep_dims=True), axis=1, keep_dims=True)
            by_vp = sum_d(g)
            dratio += tl.sum(by_vp * (moved - v), axis=0, keep_dims=True)
            by_v = (1 + ratio) * by_vp
            by_v += tl.load(place(ADJOINTS, j + 1, 2, M, row, 4), mask=live, other=0.0)
        by_before = tl.zeros(row.shape, dtype=CT)
        by_z = tl.zeros(row.shape, dtype=CT)
        by_eta = tl.zeros(row.shape, dtype=CT)
        by_prior = tl.zeros(row.shape, dtype=CT)
        by_q = tl.zeros(row.shape, dtype=CT)
        if WAY == 0:  # log eta' and z2', which the closing update does not have
            by_before = -ratio * by_vp
            by_z = tl.load(place(ADJOINTS, j + 1, 2, M, row, 4) + 1, mask=live, other=0.0)
            by_eta = tl.load(place(ADJOINTS, j + 1, 2, M, row, 4) + 2, mask=live, other=0.0) * share
            by_prior = tl.load(place(ADJOINTS, j + 1, 2, M, row, 4) + 3, mask=live, other=0.0)
            next_eta = tl.load(place(ROWS, j + 1, K + 2, M, row, 5) + 2, mask=live, other=0.0)
            prior = per_row(LOGQ, row, live, row, CT) * LOG2E
            da2 += tl.sum(by_eta * (prior - next_eta), axis=0, keep_dims=True)
            drho += tl.sum(by_eta * (2 * log_q - eta - next_eta) + by_z * (eta - log_q), axis=0, keep_dims=True)
            by_prior += a2 * by_eta
            by_q = rho * (2 * by_eta - by_z)
        by_v = (by_v + by_q) * half
        da -= tl.sum(by_v * moved, axis=0, keep_dims=True)
        drho += tl.sum(by_v * (v + eta - log_sum - 2 * moved), axis=0, keep_dims=True)
        dr = by_q - rho * by_v
        tl.store(DR + tl.cast(j, tl.int64) * M + row, dr, mask=live)
        tl.store(place(ADJOINTS, j, 2, M, row, 4), by_before + rho * by_v, mask=live)
        tl.store(place(ADJOINTS, j, 2, M, row, 4) + 1, by_z - by_eta + by_v, mask=live)
        tl.store(place(ADJOINTS, j, 2, M, row, 4) + 2, rho * (by_z - by_eta + by_v), mask=live)
        tl.store(place(ADJOINTS, j, 2, M, row, 4) + 3, by_prior, mask=live)
        g = (dr * inverse) * e
        du += tl.sum(g, axis=0, keep_dims=True)
        dcs += tl.sum(tl.sum(g * (x * scale), axis=0, keep_dims=True), axis=1, keep_dims=True)
    du = tl.sum(du, axis=2, keep_dims=True)
    return du, tl.sum(dcp), tl.sum(dcs), tl.sum(dratio), tl.sum(da), tl.sum(drho), tl.sum(da2)


@triton.jit
def finish_rows(
    X, ORDER, PRESENT, ROWS, SUMS, STATES, SLOPES, ADJOINTS, DL, DR, DOUT, DX, DQ,
    begin, end, M, K, B, b, d, here, scale, top, dy, mean, largest, total, moment,
    PLAN: tl.constexpr, SCALED: tl.constexpr, D: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
    W: tl.constexpr, BL: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Write dX and the derivative by log q0 from dL and dR of all updates; SLOPES (2, K + 1) has their cP, cS.

    Returns sum_n x g for each column, and the derivative by cP of update 0.
    """
    ds = tl.zeros((1, C, W, BL), dtype=CT)
    dcp = tl.zeros((1, 1, W, BL), dtype=CT)
    # Every w loads its own copy of a column's value, so that the load has the layout of a tile.
    d += tl.zeros((1, 1, W, 1), dtype=tl.int32)
    for start in range(begin, end, R * W):
        row, inside, live = rows_at(ORDER, PRESENT, start, end, M, R, W)
        x = entries(X, row, live, d, here, D, CT) - top
        v = tl.load(place(ROWS, 0, K + 2, M, row, 5), mask=live, other=LOW)
        w = x * scale * tl.load(SLOPES) + v
        m = tl.load(place(SUMS, 0, K + 2, B, b, 2 * D) + d, mask=here, other=-LOW)
        g = tl.load(place(DL, 0, K + 1, B, b, D) + d, mask=here, other=0.0) * tl.exp2(w - m)
        by_v = sum_d(g)
        dcp += tl.sum(tl.sum(g * (x * scale), axis=0, keep_dims=True), axis=1, keep_dims=True)
        g *= tl.load(SLOPES)
        g += rows_part(ROWS, STATES, SLOPES, DR, x, scale, row, live, here, B, b, d, M, K, 0, D, LOW)
        for j in range(1, K + 1):
            before = v
            v = tl.load(place(ROWS, j, K + 2, M, row, 5), mask=live, other=LOW)
            c = tl.load(SLOPES + j)
            ratio = tl.load(SLOPES + 2 * (K + 1) + j)
            w = x * scale * c + tl.where(live, vector_p(v, before, ratio), LOW)
            m = tl.load(place(SUMS, j, K + 2, B, b, 2 * D) + d, mask=here, other=-LOW)
            g += (c * tl.load(place(DL, j, K + 1, B, b, D) + d, mask=here, other=0.0)) * tl.exp2(w - m)
            g += rows_part(ROWS, STATES, SLOPES, DR, x, scale, row, live, here, B, b, d, M, K, j, D, LOW)
        c = tl.load(SLOPES + 2 * K + 1)
        v = tl.load(place(ROWS, K + 1, K + 2, M, row, 5), mask=live, other=LOW)
        if PLAN:
            most = tl.load(place(ROWS, K, K + 2, M, row, 5) + 3, mask=live, other=-LOW)
            inverse = tl.load(place(ROWS, K, K + 2, M, row, 5) + 4, mask=live, other=1.0)
            mass = tl.exp2((v + most) - log2(inverse, FAST) - largest) * inverse / total
            u = tl.load(place(STATES, K + 1, K + 2, B, b, 3 * D) + d, mask=here, other=LOW)
            p = tl.exp2(x * scale * c + u - most) * (mass * (c * LN2))
            g += p * (entries(DOUT, row, live, d, here, D, CT) - moment)
            dx = g * scale
        else:
            m = tl.load(place(SUMS, K + 1, K + 2, B, b, 2 * D) + d, mask=here, other=-LOW)
            e = dy * tl.exp2(x * scale * c + v - m)
            g += e * ((x - mean) * (c * LN2))
            dx = g * scale + e
        if SCALED:
            ds += tl.sum(tl.where(live, g * x, 0.0), axis=0, keep_dims=True)
        if DX is not None:
            tl.store(DX + row * D + d, tl.where(live, dx, 0.0), mask=inside & here)
        if DQ is not None:
            by_v += tl.load(place(ADJOINTS, 0, 2, M, row, 4), mask=live, other=0.0)
            by_v += tl.load(place(ADJOINTS, 0, 2, M, row, 4) + 2, mask=live, other=0.0)
            by_v += tl.load(place(ADJOINTS, 0, 2, M, row, 4) + 3, mask=live, other=0.0)
            tl.store(DQ + row, tl.where(live, by_v * LOG2E, 0.0), mask=inside)
    return tl.sum(ds, axis=2, keep_dims=True), tl.sum(dcp)


@triton.jit
def rows_part(
    ROWS, STATES, SLOPES, DR, x, scale, row, live, here, B, b, d, M, K, j, D: tl.constexpr, LOW: tl.constexpr
):
    """Return cS dR B of update j."""
    c = tl.load(SLOPES + K + 1 + j)
    dr = tl.load(DR + tl.cast(j, tl.int64) * M + row, mask=live, other=0.0)
    most = tl.load(place(ROWS, j, K + 2, M, row, 5) + 3, mask=live, other=-LOW)
    inverse = tl.load(place(ROWS, j, K + 2, M, row, 5) + 4, mask=live, other=1.0)
    u = tl.load(place(STATES, j + 1, K + 2, B, b, 3 * D) + d, mask=here, other=LOW)
    return (c * dr * inverse) * tl.exp2(x * scale * c + u - most)


@triton.jit
def keep_parts(parts, dcp, dcs, dratio, da, drho, da2, K, j, WAY: tl.constexpr):
    """Keep what `reverse_rows` returned: `parts` (6, K + 1) has cP, cS, ratio, alpha0, rho and alpha2."""
    if WAY == 0:
        tl.store(parts + j + 1, dcp)
        tl.store(parts + 2 * (K + 1) + j + 1, dratio)
    tl.store(parts + K + 1 + j, dcs)
    tl.store(parts + 3 * (K + 1) + j, da)
    tl.store(parts + 4 * (K + 1) + j, drho)
    tl.store(parts + 5 * (K + 1) + j, da2)


@triton.jit
def by_weights(ROWS, COLUMNS, WEIGHTS, DW, K, KP: tl.constexpr):
    """Write the derivatives by weights (4, K) from parts of rows (6, K + 1) and columns (4, K + 1) in float64.

    What is left is the way back through c, az and the ratio: one program does it for all sets.
    """
    i = tl.arange(0, KP)
    c = tl.load(WEIGHTS).to(tl.float64) * 0.0
    slopes = tl.zeros((KP,), dtype=tl.float64)  # c before each update
    for j in range(0, K):
        slopes += tl.where(i == j, c, 0.0)
        a, a1, a2, rho = module_of(WEIGHTS, K, j)
        c = (rho.to(tl.float64) * c + LOG2E) / (a.to(tl.float64) + rho.to(tl.float64))
    da = tl.zeros((KP,), dtype=tl.float64)
    da1 = tl.zeros((KP,), dtype=tl.float64)
    da2 = tl.zeros((KP,), dtype=tl.float64)
    drho = tl.zeros((KP,), dtype=tl.float64)
    dc = c * 0.0
    for back in range(0, K + 1):
        j = K - back
        k = tl.minimum(j, K - 1)
        if back > 0:
            c = tl.sum(tl.where(i == j, slopes, 0.0))
        a, a1, a2, rho = module_of(WEIGHTS, K, j)
        step = rho.to(tl.float64)
        total = a.to(tl.float64) + step
        az, ignored1, ignored2, before = module_of(WEIGHTS, K, tl.maximum(j - 1, 0))
        started = tl.where(j > 0, 1.0, 0.0)
        az = az.to(tl.float64) * started
        dcp = tl.load(ROWS + j)
        dcs = tl.load(ROWS + K + 1 + j) + dc
        dratio = tl.where(j > 0, tl.load(ROWS + 2 * (K + 1) + tl.maximum(j, 1)), 0.0)
        by_az = tl.load(COLUMNS + 2 * (K + 1) + j) - dcp * c / step
        by_a = tl.load(ROWS + 3 * (K + 1) + j) + tl.load(COLUMNS + j)
        by_a -= dcs * (step * c + LOG2E) / (total * total)
        by_rho = tl.load(ROWS + 4 * (K + 1) + j) + tl.load(COLUMNS + K + 1 + j)
        by_rho += dcs * (a.to(tl.float64) * c - LOG2E) / (total * total) - dcp * (LOG2E - az * c) / (
            step * step
        )
        by_rho -= dratio * before.to(tl.float64) / (step * step)
        dc = dcp * (1 - az / step) + dcs * step / total
        da += tl.where(i == k, by_a, 0.0) + tl.where(i == j - 1, by_az, 0.0)
        drho += tl.where(i == k, by_rho, 0.0) + tl.where(i == j - 1, dratio / step, 0.0)
        da1 += tl.where(i == k, tl.load(COLUMNS + 3 * (K + 1) + j), 0.0)
        da2 += tl.where(i == k, tl.load(ROWS + 5 * (K + 1) + j), 0.0)
    tl.store(DW + i, da, mask=i < K)
    tl.store(DW + K + i, da1, mask=i < K)
    tl.store(DW + 2 * K + i, da2, mask=i < K)
    tl.store(DW + 3 * K + i, drho, mask=i < K)
