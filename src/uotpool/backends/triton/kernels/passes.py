"""Sinkhorn as passes over the rows of a set, or over a chunk of them: `sets` and `chunks` combine these.

Let Z = scale X, top the entry of each column of X where Z is largest, x = X - top and z = scale x, so
z <= 0. Potentials and sums are in the units of Z and relative to the tops. Module k does, from v = 0 and with
its weights a = alpha0 and tau_i = alpha_i / (a + alpha_i),

    L_d = a log sum_n exp((z + v) / a)      u = tau1 (a log p0 - L) + (1 - tau1) scale top, less its maximum
    R_n = a log sum_d exp((z + u) / a)      v = tau2 (a log q0 - R)

and the output is top + sum_n x A, A = exp((z + v - L) / a), with L once more and a of the last module. The
plan is E exp((R + v) / a) of mass 1, where E = exp((z + u - R) / a) is the softmax of a row. A row is complete
when it is read, so one pass makes R and v of module k, and from the same registers the sums L of module k + 1:
K + 1 passes in all. L is kept as the maximum of a column and the sum of exponentials relative to it: for small
a an exponential of L would have lost its digits to rounding.

Backwards, g stands for a derivative by Z. With dL, dR, du, dv the derivatives by the sums and potentials,

    output   g = dy A (x - mean) / a, and dy A by X itself            dv = sum_d g, du = sum_n g = 0
    plan     g = P (dP - sum P dP) / a                                dv = sum_d g, du = sum_n g
    rows     dR = -tau2 dv, g = dR E                                  du += sum_n g
    columns  dL = -tau1 du, g = dL exp((z + v - L) / a)               dv = sum_d g of the module before

so the columns of module k give dv of a row, which is all that the rows of module k - 1 need: one pass makes
both. The tops are no variables: what they add cancels. A last pass forms dX = scale times the sum of all g
from the adjoints du and dv, and the derivative by the scale: sum_n x g + top sum_n g, where sum_n g is the
sum of (1 - tau1) du over the modules. By a, at fixed tau, a sum such as L has the derivative
-sum g (z + v - L) / a, and u has tau1 log p0.
"""

import triton
import triton.language as tl

from uotpool.backends.triton.kernels.tiles import (
    LN2,
    LOG2E,
    entries,
    log2,
    max_d,
    per_row,
    rows_at,
    sign_of,
    sum_d,
    weights_of,
)


@triton.jit
def first_sums(
    X, ORDER, PRESENT, begin, end, M, d, here, scale, a,
    D: tl.constexpr, R: tl.constexpr, C: tl.constexpr, W: tl.constexpr, BL: tl.constexpr,
    CT: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    """Return the largest entry of each column, turned by the sign of the scale, and sums of exponentials.

    An entry that is not finite makes its row NaN, and the row all sums of its set.
    """
    sign = sign_of(scale)
    c2 = tl.abs(scale) * (LOG2E / a)
    m = tl.full((1, C, W, BL), LOW * 0.5, dtype=CT)
    s = tl.zeros((1, C, W, BL), dtype=CT)
    for start in range(begin, end, R * W):
        row, inside, live = rows_at(ORDER, PRESENT, start, end, M, R, W)
        x = entries(X, row, live, d, here, D, CT)
        spoilt = sum_d(x * 0.0)
        x = tl.where(live & here, x * sign, LOW)
        new = tl.maximum(m, tl.max(x, axis=0, keep_dims=True))
        e = tl.exp2((x - new) * c2 + tl.where(live, spoilt, LOW))
        s = s * tl.exp2((m - new) * c2) + tl.sum(e, axis=0, keep_dims=True)
        m = new
    return m, s


@triton.jit
def next_sums(
    X, ORDER, PRESENT, LOGQ, ROWS, begin, end, M, d, here, scale, top, u, a, a2, a_next,
    OUT: tl.constexpr, D: tl.constexpr, R: tl.constexpr, C: tl.constexpr, W: tl.constexpr, BL: tl.constexpr,
    CT: tl.constexpr, LOW: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Do the rows of a module, whose R is kept in ROWS, then column sums of the next one or (OUT) the output.

    Returns maxima and sums of columns, and with OUT sums of x times the same exponentials.
    """
    tau2 = a2 / (a + a2)
    c2 = LOG2E / a
    c2_next = LOG2E / a_next
    m = tl.full((1, C, W, BL), LOW * 0.5, dtype=CT)
    s = tl.zeros((1, C, W, BL), dtype=CT)
    t = tl.zeros((1, C, W, BL), dtype=CT)
    for start in range(begin, end, R * W):
        row, inside, live = rows_at(ORDER, PRESENT, start, end, M, R, W)
        x = entries(X, row, live, d, here, D, CT) - top
        y = x * scale + u
        most = max_d(y)
        r = most + (a * LN2) * log2(sum_d(tl.exp2((y - most) * c2)), FAST)
        if ROWS is not None:
            tl.store(ROWS + row, r, mask=live)
        v = tl.where(live, tau2 * (a * per_row(LOGQ, row, live, row, CT) - r), LOW)
        z = x * scale + v
        new = tl.maximum(m, tl.max(z, axis=0, keep_dims=True))
        e = tl.exp2((z - new) * c2_next)
        old = tl.exp2((m - new) * c2_next)
        s = s * old + tl.sum(e, axis=0, keep_dims=True)
        if OUT:
            t = t * old + tl.sum(e * x, axis=0, keep_dims=True)
        m = new
    return m, s, t


@triton.jit
def plan_sums(
    X, ORDER, PRESENT, LOGQ, ROWS, begin, end, M, d, here, scale, top, u, a, a2,
    D: tl.constexpr, R: tl.constexpr, W: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Do the rows of the last module, whose R is kept in ROWS.

    Returns the maximum and the sum of exponentials of R + v over the rows, for the masses of rows of the plan.
    """
    tau2 = a2 / (a + a2)
    c2 = LOG2E / a
    m = tl.full((1, 1, W, 1), LOW * 0.5, dtype=CT)
    s = tl.zeros((1, 1, W, 1), dtype=CT)
    for start in range(begin, end, R * W):
        row, inside, live = rows_at(ORDER, PRESENT, start, end, M, R, W)
        y = (entries(X, row, live, d, here, D, CT) - top) * scale + u
        most = max_d(y)
        r = most + (a * LN2) * log2(sum_d(tl.exp2((y - most) * c2)), FAST)
        tl.store(ROWS + row, r, mask=live)
        w = tl.where(live, r + tau2 * (a * per_row(LOGQ, row, live, row, CT) - r), LOW)
        new = tl.maximum(m, tl.max(w, axis=0, keep_dims=True))
        s = s * tl.exp2((m - new) * c2) + tl.sum(tl.exp2((w - new) * c2), axis=0, keep_dims=True)
        m = new
    most = tl.max(m)
    return most, tl.sum(s * tl.exp2((m - most) * c2))


@triton.jit
def plan_at(
    X, ORDER, PRESENT, LOGQ, ROWS, start, end, M, d, here, scale, top, u, largest, total, a, a2,
    D: tl.constexpr, R: tl.constexpr, W: tl.constexpr, CT: tl.constexpr,
):  # fmt: skip
    """Return the plan of a tile, the softmax of each row times its mass, and the rows of the tile."""
    tau2 = a2 / (a + a2)
    c2 = LOG2E / a
    row, inside, live = rows_at(ORDER, PRESENT, start, end, M, R, W)
    y = (entries(X, row, live, d, here, D, CT) - top) * scale + u
    e = tl.exp2((y - max_d(y)) * c2)
    r = tl.load(ROWS + row, mask=live, other=0.0)
    w = r + tau2 * (a * per_row(LOGQ, row, live, row, CT) - r)
    return e * (tl.exp2((w - largest) * c2) / (sum_d(e) * total)), row, inside, live


@triton.jit
def write_plan(
    X, ORDER, PRESENT, LOGQ, ROWS, P, begin, end, M, d, here, scale, top, u, largest, total, a, a2,
    D: tl.constexpr, R: tl.constexpr, W: tl.constexpr, CT: tl.constexpr,
):  # fmt: skip
    """Write the plan, from R of the last module in ROWS."""
    for start in range(begin, end, R * W):
        p, row, inside, live = plan_at(
            X, ORDER, PRESENT, LOGQ, ROWS, start, end, M, d, here, scale, top, u, largest, total, a, a2,
            D, R, W, CT,
        )  # fmt: skip
        tl.store(P + row * D + d, tl.where(live, p, 0.0), mask=inside & here)


@triton.jit
def plan_moment(
    X, ORDER, PRESENT, LOGQ, ROWS, DOUT, begin, end, M, d, here, scale, top, u, largest, total, a, a2,
    D: tl.constexpr, R: tl.constexpr, W: tl.constexpr, BL: tl.constexpr, CT: tl.constexpr,
):  # fmt: skip
    """Return the sum of P dP over these rows, which the derivative of the plan's normalisation needs."""
    moment = tl.zeros((1, 1, W, BL), dtype=CT)
    for start in range(begin, end, R * W):
        p, row, inside, live = plan_at(
            X, ORDER, PRESENT, LOGQ, ROWS, start, end, M, d, here, scale, top, u, largest, total, a, a2,
            D, R, W, CT,
        )  # fmt: skip
        g = tl.where(live, p * entries(DOUT, row, live, d, here, D, CT), 0.0)
        moment += tl.sum(tl.sum(g, axis=0, keep_dims=True), axis=1, keep_dims=True)
    return tl.sum(moment)


@triton.jit
def reverse_sums(
    X, ORDER, PRESENT, LOGQ, ROWS, FACTORS, MASSES, DQ, DOUT, begin, end, M, d, here,
    scale, top, by_sum, m, mean, largest, total, moment, u, a, ar, ar2,
    WAY: tl.constexpr, D: tl.constexpr, R: tl.constexpr, C: tl.constexpr, W: tl.constexpr, BL: tl.constexpr,
    CT: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    """Do a pass backwards: the columns of a module or the output, then the rows of the module before.

    WAY is 0 for columns, whose dL over their sums is `by_sum` and whose maxima are `m`, 1 for the pooled
    output, 2 for the plan. `a` is alpha0 of the columns, `ar` and `ar2` are weights of the rows, whose R is in
    ROWS and whose u is given. FACTORS gets what exp((z + u - R) / a) is multiplied by in g, MASSES in the plan:
    rows are divided by sums made anew, as R is rounded. DQ gets the derivative by log q0, to which modules add.

    Returns the sums of columns du, and the parts of the derivatives by a and ar (at fixed tau2) and by tau2; by
    a without what the sums of columns themselves add.
    """
    tau2 = ar2 / (ar + ar2)
    c2 = LOG2E / a
    c2_rows = LOG2E / ar
    du = tl.zeros((1, C, W, BL), dtype=CT)
    da = tl.zeros((1, 1, W, BL), dtype=CT)
    dar = tl.zeros((1, 1, W, BL), dtype=CT)
    dq = tl.zeros((1, 1, W, 1), dtype=CT)
    dtau2 = tl.zeros((1, 1, W, 1), dtype=CT)
    for start in range(begin, end, R * W):
        row, inside, live = rows_at(ORDER, PRESENT, start, end, M, R, W)
        r = tl.load(ROWS + row, mask=live, other=-LOW)
        log_q = per_row(LOGQ, row, live, row, CT)
        v = tl.where(live, tau2 * (ar * log_q - r), LOW)
        x = entries(X, row, live, d, here, D, CT) - top
        y = x * scale + u - r
        e = tl.exp2(y * c2_rows)
        inverse = 1 / tl.where(live, sum_d(e), 1.0)
        if WAY == 2:
            mass = tl.where(live, tl.exp2((r + v - largest) * c2) * inverse, 0.0) / total
            tl.store(MASSES + row, mass, mask=live)
            g = e * (mass * ((entries(DOUT, row, live, d, here, D, CT) - moment) * (1 / a)))
            z = y + tl.where(live, r + v - largest, 0.0)
        else:
            z = x * scale + v - m
            g = by_sum * tl.exp2(z * c2)
            if WAY == 1:
                g = g * ((x - mean) * (1 / a))
        if WAY != 0:
            # The sums over a pooled column are 0 but for rounding, which cancels if u has it too.
            du += tl.sum(g, axis=0, keep_dims=True)
        dv = tl.where(live, sum_d(g), 0.0)
        da += tl.sum(tl.sum(g * z, axis=0, keep_dims=True), axis=1, keep_dims=True)
        dq += tl.sum(dv * log_q, axis=0, keep_dims=True)
        dtau2 += tl.sum(tl.where(live, dv * (ar * log_q - r), 0.0), axis=0, keep_dims=True)
        if DQ is not None:
            by_q = (ar * tau2) * dv
            if WAY == 0:
                by_q += tl.load(DQ + row, mask=inside, other=0.0)
            tl.store(DQ + row, by_q, mask=inside)
        factor = -tau2 * dv * inverse
        tl.store(FACTORS + row, factor, mask=live)
        g = e * factor
        du += tl.sum(g, axis=0, keep_dims=True)
        dar += tl.sum(tl.sum(g * y, axis=0, keep_dims=True), axis=1, keep_dims=True)
    by_ar = tau2 * tl.sum(dq) - tl.sum(dar) / ar
    return tl.sum(du, axis=2, keep_dims=True), -tl.sum(da) / a, by_ar, tl.sum(dtau2)


@triton.jit
def output_of(DOUT, HEAD, MAXIMA, SUMS, at, here, CT: tl.constexpr, LOW: tl.constexpr):
    """Return the derivative by the pooled output over the sums of its columns, their maxima and their means."""
    share = tl.load(DOUT + at, mask=here, other=0.0).to(CT)
    share /= tl.load(SUMS + at, mask=here, other=1.0)
    m = tl.load(MAXIMA + at, mask=here, other=-LOW)
    return share, m, tl.load(HEAD + at, mask=here, other=0.0)


@triton.jit
def of_columns(by_sum, s, here, FAST: tl.constexpr):
    """Return what the sums of columns add to the derivative by alpha0, from dL over them: sum of dL log s."""
    return LN2 * tl.sum(tl.where(here, by_sum * s * log2(s, FAST), 0.0))


@triton.jit
def finish_rows(
    X, ORDER, PRESENT, LOGQ, WEIGHTS, ROWS, MAXIMA, U, DL, FACTORS, MASSES, DOUT, DX,
    begin, end, M, K, every, at, d, here, scale, top, share, m, mean, moment,
    PLAN: tl.constexpr, SCALED: tl.constexpr, D: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
    W: tl.constexpr, BL: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    """Write dX from the adjoints of all modules: dL over the sums of columns in DL, and the factors of rows.

    `share` and `m` are those of the output: its derivative over the sums of its columns, and their maxima.

    Returns sum_n x g for each column, and the part of the derivative by alpha0[0] that its columns have,
    without what their sums add.
    """
    ds = tl.zeros((1, C, W, BL), dtype=CT)
    da = tl.zeros((1, 1, W, BL), dtype=CT)
    # Every w loads its own copy of a column's value, so that the load has the layout of a tile.
    at += tl.zeros((1, 1, W, 1), dtype=tl.int64)
    for start in range(begin, end, R * W):
        row, inside, live = rows_at(ORDER, PRESENT, start, end, M, R, W)
        log_q = per_row(LOGQ, row, live, row, CT)
        x = entries(X, row, live, d, here, D, CT) - top
        a, a1, a2 = weights_of(WEIGHTS, K, 0)
        z = x * scale + tl.where(live, tl.zeros(row.shape, dtype=CT), LOW)
        g = tl.load(DL + at, mask=here, other=0.0) * tl.exp2(z * (LOG2E / a))
        da += tl.sum(tl.sum(g * z, axis=0, keep_dims=True), axis=1, keep_dims=True)
        for k in range(1, K):  # the rows of module k - 1 and the columns of module k
            of_row = tl.cast(k - 1, tl.int64) * M + row
            r = tl.load(ROWS + of_row, mask=live, other=-LOW)
            u = tl.load(U + (k - 1) * every + at, mask=here, other=LOW)
            factor = tl.load(FACTORS + of_row, mask=live, other=0.0)
            g += factor * tl.exp2((x * scale + u - r) * (LOG2E / a))
            v = tl.where(live, (a2 / (a + a2)) * (a * log_q - r), LOW)
            a, a1, a2 = weights_of(WEIGHTS, K, k)
            z = x * scale + v - tl.load(MAXIMA + k * every + at, mask=here, other=-LOW)
            g += tl.load(DL + k * every + at, mask=here, other=0.0) * tl.exp2(z * (LOG2E / a))
        of_row = tl.cast(K - 1, tl.int64) * M + row
        r = tl.load(ROWS + of_row, mask=live, other=-LOW)
        u = tl.load(U + (K - 1) * every + at, mask=here, other=LOW)
        e = tl.exp2((x * scale + u - r) * (LOG2E / a))
        factor = tl.load(FACTORS + of_row, mask=live, other=0.0)
        if PLAN:
            mass = tl.load(MASSES + row, mask=live, other=0.0)
            g += e * (factor + mass * ((entries(DOUT, row, live, d, here, D, CT) - moment) * (1 / a)))
            dx = g * scale
        else:
            g += factor * e
            v = tl.where(live, (a2 / (a + a2)) * (a * log_q - r), LOW)
            e = share * tl.exp2((x * scale + v - m) * (LOG2E / a))
            g += e * ((x - mean) * (1 / a))
            dx = g * scale + e
        if SCALED:
            ds += tl.sum(g * x, axis=0, keep_dims=True)
        if DX is not None:
            tl.store(DX + row * D + d, tl.where(live, dx, 0.0), mask=inside & here)
    a, a1, a2 = weights_of(WEIGHTS, K, 0)
    return tl.sum(ds, axis=2, keep_dims=True), -tl.sum(da) / a


@triton.jit
def finish_set(
    WEIGHTS, DU, DP, K, every, at, d, here, top,
    CT: tl.constexpr,
):  # fmt: skip
    """Write the derivative by log p0 of a set; return top times the sum of all g over each column."""
    dp = tl.zeros(d.shape, dtype=CT)
    ds = tl.zeros(d.shape, dtype=CT)
    for k in range(0, K):
        a, a1, a2 = weights_of(WEIGHTS, K, k)
        du = tl.load(DU + k * every + at, mask=here, other=0.0) * (a / (a + a1))
        dp += a1 * du
        ds += du
    if DP is not None:
        tl.store(DP + at, dp, mask=here)
    return ds * top
