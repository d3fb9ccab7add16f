"""The backward pass: K passes over the rows for the adjoints of all modules, and one that forms dX."""

import triton
import triton.language as tl

from uotpool.backends.triton.kernels.tiles import (
    LN2,
    LOG2E,
    VARYING,
    centred_tops,
    chunk_of,
    chunks_of,
    columns,
    entries,
    log2,
    log_p_of,
    log_q_of,
    log_sum_of,
    rows_at,
    scale_of,
    sum_d,
    sum_of_chunks,
    sum_rc,
    weights_of,
)


@triton.jit
def output_of(DOUT, HEAD, MAXIMA, SUMS, at, at_last, here, CT: tl.constexpr, LOW: tl.constexpr):
    """Return the derivative by the pooled output over the sums of its columns, their maxima and their means."""
    share = tl.load(DOUT + at, mask=here, other=0.0).to(CT)
    share /= tl.load(SUMS + at_last, mask=here, other=1.0)
    m = tl.load(MAXIMA + at_last, mask=here, other=-LOW)
    return share, m, tl.load(HEAD + at, mask=here, other=0.0)


@triton.jit
def of_columns(by_sum, SUMS, at, here, FAST: tl.constexpr):
    """Return what the sums of columns add to the derivative by alpha0, from dL over them: sum of dL log s."""
    s = tl.load(SUMS + at, mask=here, other=1.0)
    return LN2 * tl.sum(tl.where(here, by_sum * s * log2(s, FAST), 0.0))


@triton.jit(do_not_specialize=VARYING)
def backward_pass(
    X, PTR, ORDER, PRESENT, WEIGHTS, SCALE, LOGQ, TOP, HEAD, MAXIMA, SUMS, U, ROWS,
    DOUT, PARTIAL, DL, FACTORS, MASSES, DQ, PD, PARTS, K, k, M, N, B,
    WAY: tl.constexpr, CHUNK: tl.constexpr, STEP: tl.constexpr, D: tl.constexpr, R: tl.constexpr,
    C: tl.constexpr, W: tl.constexpr, BL: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Do the columns of module k, or at k = K the output (WAY 1) or the plan (2), and the rows of k - 1.

    PD gets the sums of du over the chunk, DQ the derivative by log q0, to which modules add. FACTORS gets what
    exp((z + u - R) / a) of the rows is multiplied by in g, MASSES in the plan: rows are divided by sums made
    anew, as R is rounded. PARTS (slots, 5, K), zeros before, gets parts of the derivatives by weights: by
    alpha0 of the columns, of the rows and (in `backward_finish`) of u, by alpha1 and by alpha2.
    """
    slot, b, begin, end, is_first = chunk_of(PTR, B, M, N, CHUNK)
    d = columns(C, BL)
    here = d < D
    every = tl.cast(B, tl.int64) * D
    at = b * D + d
    at_rows = (k - 1) * every + at
    scale = scale_of(SCALE, d, here, STEP, CT)
    top = tl.load(TOP + at, mask=here, other=0.0)
    u = tl.load(U + at_rows, mask=here, other=LOW)
    a_rows, a1, a2 = weights_of(WEIGHTS, K, k - 1)
    tau2 = a2 / (a_rows + a2)
    a = a_rows
    by_a = a * 0.0
    if WAY == 2:
        largest = tl.load(HEAD + b)
        total = tl.load(HEAD + B + b)
        moment = sum_of_chunks(PARTIAL, PTR, b, M, N, CHUNK, CT)
    elif WAY == 1:
        by_sum, m, mean = output_of(DOUT, HEAD, MAXIMA, SUMS, at, K * every + at, here, CT, LOW)
    else:
        a = tl.load(WEIGHTS + k)
        m = tl.load(MAXIMA + k * every + at, mask=here, other=-LOW)
        by_sum = tl.load(DL + k * every + at, mask=here, other=0.0)
        by_a = tl.where(is_first, of_columns(by_sum, SUMS, k * every + at, here, FAST), 0.0)
    c2 = LOG2E / a
    c2_rows = LOG2E / a_rows
    of_rows = tl.cast(k - 1, tl.int64) * M
    du = tl.zeros((1, C, W, BL), dtype=CT)
    da = tl.zeros((1, 1, W, BL), dtype=CT)
    da_rows = tl.zeros((1, 1, W, BL), dtype=CT)
    dq = tl.zeros((1, 1, W, 1), dtype=CT)
    dtau2 = tl.zeros((1, 1, W, 1), dtype=CT)
    for start in range(begin, end, R * W):
        row, inside, live = rows_at(ORDER, PRESENT, start, end, M, R, W)
        r = tl.load(ROWS + of_rows + row, mask=live, other=-LOW)
        log_q = log_q_of(LOGQ, row, live, CT)
        v = tl.where(live, tau2 * (a_rows * log_q - r), LOW)
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
        da += sum_rc(g * z)
        dq += tl.sum(dv * log_q, axis=0, keep_dims=True)
        dtau2 += tl.sum(tl.where(live, dv * (a_rows * log_q - r), 0.0), axis=0, keep_dims=True)
        if DQ is not None:
            by_q = (a_rows * tau2) * dv
            if WAY == 0:
                by_q += tl.load(DQ + row, mask=inside, other=0.0)
            tl.store(DQ + row, by_q, mask=inside)
        factor = -tau2 * dv * inverse
        tl.store(FACTORS + of_rows + row, factor, mask=live)
        g = e * factor
        du += tl.sum(g, axis=0, keep_dims=True)
        da_rows += sum_rc(g * y)
    tl.store(PD + slot * D + d, tl.sum(du, axis=2, keep_dims=True), mask=here)
    parts = PARTS + slot * 5 * K
    by_a -= tl.sum(da) / a
    by_a_rows = tau2 * tl.sum(dq) - tl.sum(da_rows) / a_rows
    by_tau2 = tl.sum(dtau2) / ((a_rows + a2) * (a_rows + a2))
    if WAY == 0:
        tl.store(parts + k, by_a)
    else:  # the output has alpha0 of the last module
        by_a_rows += by_a
    tl.store(parts + K + k - 1, by_a_rows - by_tau2 * a2)
    tl.store(parts + 4 * K + k - 1, by_tau2 * a_rows)


@triton.jit(do_not_specialize=VARYING)
def backward_merge(
    PTR, WEIGHTS, SUMS, PD, DU, DL, K, k, M, N, B,
    CHUNK: tl.constexpr, D: tl.constexpr, CHUNKS: tl.constexpr, WIDTH: tl.constexpr, CT: tl.constexpr,
):  # fmt: skip
    """Add up du of module k over the chunks of a set; DL gets dL over the sums of its columns."""
    b = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    here = d < D
    du = tl.zeros((WIDTH,), dtype=CT)
    first, behind = chunks_of(PTR, b, M, N, CHUNK)
    for start in range(first, behind, CHUNKS):
        slot = start + tl.arange(0, CHUNKS)[:, None]
        there = (slot < behind) & here[None, :]
        du += tl.sum(tl.load(PD + slot * D + d[None, :], mask=there, other=0.0), axis=0)
    at = (tl.cast(k, tl.int64) * B + b) * D + d
    a, a1, a2 = weights_of(WEIGHTS, K, k)
    tl.store(DU + at, du, mask=here)
    tl.store(DL + at, (-a1 / (a + a1)) * du / tl.load(SUMS + at, mask=here, other=1.0), mask=here)


@triton.jit(do_not_specialize=VARYING)
def backward_finish(
    X, PTR, ORDER, PRESENT, WEIGHTS, SCALE, LOGP, LOGQ, TOP, HEAD, MAXIMA, SUMS, U, ROWS,
    DOUT, PARTIAL, DU, DL, FACTORS, MASSES, DX, DP, DS, PARTS, K, M, N, B, p_step,
    PLAN: tl.constexpr, CHUNK: tl.constexpr, STEP: tl.constexpr, D: tl.constexpr, R: tl.constexpr,
    C: tl.constexpr, W: tl.constexpr, BL: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Form dX from the adjoints of all modules, DP (B, D) by log p0, and DS (slots, D) by the scale."""
    slot, b, begin, end, is_first = chunk_of(PTR, B, M, N, CHUNK)
    d = columns(C, BL)
    here = d < D
    every = tl.cast(B, tl.int64) * D
    at_set = b * D + d
    scale = scale_of(SCALE, d, here, STEP, CT)
    top = tl.load(TOP + at_set, mask=here, other=0.0)
    if PLAN:
        moment = sum_of_chunks(PARTIAL, PTR, b, M, N, CHUNK, CT)
    else:
        share, m, mean = output_of(DOUT, HEAD, MAXIMA, SUMS, at_set, K * every + at_set, here, CT, LOW)
    ds = tl.zeros((1, C, W, BL), dtype=CT)
    da = tl.zeros((1, 1, W, BL), dtype=CT)
    # Every w loads its own copy of a column's value, so that the load has the layout of a tile.
    at = at_set + tl.zeros((1, 1, W, 1), dtype=tl.int64)
    for start in range(begin, end, R * W):
        row, inside, live = rows_at(ORDER, PRESENT, start, end, M, R, W)
        log_q = log_q_of(LOGQ, row, live, CT)
        x = entries(X, row, live, d, here, D, CT) - top
        a, a1, a2 = weights_of(WEIGHTS, K, 0)
        z = x * scale + tl.where(live, tl.zeros(row.shape, dtype=CT), LOW)
        g = tl.load(DL + at, mask=here, other=0.0) * tl.exp2(z * (LOG2E / a))
        da += sum_rc(g * z)
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
        if DS is not None:
            ds += tl.sum(g * x, axis=0, keep_dims=True)
        if DX is not None:
            tl.store(DX + row * D + d, tl.where(live, dx, 0.0), mask=inside & here)
    by_scale = tl.sum(ds, axis=2, keep_dims=True)
    by_a = -tl.sum(da) / tl.load(WEIGHTS)
    parts = PARTS + slot * 5 * K
    if is_first:
        by_a += of_columns(tl.load(DL + at_set, mask=here, other=0.0), SUMS, at_set, here, FAST)
        log_p = log_p_of(LOGP, b, p_step, d, here, CT)
        centred = centred_tops(scale, top, here, LOW, CT)
        dp = tl.zeros(d.shape, dtype=CT)
        for k in range(0, K):
            a, a1, a2 = weights_of(WEIGHTS, K, k)
            share1 = 1 / (a + a1)
            du = tl.load(DU + k * every + at_set, mask=here, other=0.0)
            dp += (a * a1 * share1) * du
            by_scale += (a * share1) * du * top
            log_sum = log_sum_of(MAXIMA, SUMS, k * every + at_set, here, a, FAST)
            by_tau1 = tl.sum(tl.where(here, du * (a * log_p - log_sum - centred), 0.0)) * share1 * share1
            tl.store(parts + 2 * K + k, (a1 * share1) * tl.sum(du * log_p) - by_tau1 * a1)
            tl.store(parts + 3 * K + k, by_tau1 * a)
        if DP is not None:
            tl.store(DP + at_set, dp, mask=here)
    tl.store(parts, by_a)
    if DS is not None:
        tl.store(DS + slot * D + d, by_scale, mask=here)
