"""A set is the work of one program: one launch each way, K + 1 loops over rows that stay in cache."""

import triton
import triton.language as tl

from uotpool.backends.triton.kernels.passes import (
    finish_rows,
    finish_set,
    first_sums,
    next_sums,
    of_columns,
    output_of,
    plan_moment,
    plan_sums,
    reverse_sums,
    write_plan,
)
from uotpool.backends.triton.kernels.tiles import (
    LN2,
    LOG2E,
    VARYING,
    bounds,
    centred_tops,
    columns,
    join,
    log2,
    log_prior_of,
    log_sum_of,
    potential,
    scale_of,
    sign_of,
    weights_of,
)


@triton.jit(do_not_specialize=[*VARYING, "p_step"])
def forward_set(
    X, PTR, ORDER, PRESENT, WEIGHTS, SCALE, LOGP, LOGQ, TOP, HEAD, MAXIMA, SUMS, ROWS, OUT,
    K, M, N, B, p_step,
    PLAN: tl.constexpr, STEP: tl.constexpr, D: tl.constexpr, R: tl.constexpr, C: tl.constexpr, W: tl.constexpr,
    BL: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Solve a set. TOP, HEAD, MAXIMA, SUMS and ROWS, None or all there, are what the way back needs."""
    b = tl.program_id(0).to(tl.int64)
    begin, end = bounds(PTR, b, M, N)
    d = columns(C, BL)
    here = d < D
    every = tl.cast(B, tl.int64) * D
    at = b * D + d
    scale = scale_of(SCALE, d, here, STEP, CT)
    log_p = log_prior_of(LOGP, b, p_step, d, here, CT)
    a, a1, a2 = weights_of(WEIGHTS, K, 0)
    m, s = first_sums(X, ORDER, PRESENT, begin, end, M, d, here, scale, a, D, R, C, W, BL, CT, LOW)
    m, s, t = join(m, s, s, tl.abs(scale) * (LOG2E / a))
    top = tl.where(here & (s != 0.0), m * sign_of(scale), 0.0)
    centred = centred_tops(scale, top, here, LOW, CT)
    m = tl.zeros(d.shape, dtype=CT)
    s = tl.where(s == 0.0, 1.0, s)
    if TOP is not None:
        tl.store(TOP + at, top, mask=here)
        tl.store(MAXIMA + at, m, mask=here)
        tl.store(SUMS + at, s, mask=here)
    rows = ROWS
    for k in range(1, K):
        u = potential(m + (a * LN2) * log2(s, FAST), centred, log_p, a, a1, here, LOW)
        if ROWS is not None:
            rows = ROWS + tl.cast(k - 1, tl.int64) * M
        a_next, a1, a2_next = weights_of(WEIGHTS, K, k)
        m, s, t = next_sums(
            X, ORDER, PRESENT, LOGQ, rows, begin, end, M, d, here, scale, top, u, a, a2, a_next,
            False, D, R, C, W, BL, CT, LOW, FAST,
        )  # fmt: skip
        m, s, t = join(m, s, t, LOG2E / a_next)
        m = tl.where(s == 0.0, 0.0, m)
        s = tl.where(s == 0.0, 1.0, s)
        a = a_next
        a2 = a2_next
        if TOP is not None:
            tl.store(MAXIMA + k * every + at, m, mask=here)
            tl.store(SUMS + k * every + at, s, mask=here)
    u = potential(m + (a * LN2) * log2(s, FAST), centred, log_p, a, a1, here, LOW)
    if ROWS is not None:
        rows = ROWS + tl.cast(K - 1, tl.int64) * M
    if PLAN:
        largest, total = plan_sums(
            X, ORDER, PRESENT, LOGQ, rows, begin, end, M, d, here, scale, top, u, a, a2, D, R, W, CT, LOW, FAST
        )
        total = tl.where(total == 0.0, 1.0, total)
        if HEAD is not None:
            tl.store(HEAD + b, largest)
            tl.store(HEAD + B + b, total)
        tl.debug_barrier()  # R is read by other threads than wrote it
        write_plan(
            X, ORDER, PRESENT, LOGQ, rows, OUT, begin, end, M, d, here, scale, top, u, largest, total, a, a2,
            D, R, W, CT,
        )  # fmt: skip
    else:
        m, s, t = next_sums(
            X, ORDER, PRESENT, LOGQ, rows, begin, end, M, d, here, scale, top, u, a, a2, a,
            True, D, R, C, W, BL, CT, LOW, FAST,
        )  # fmt: skip
        m, s, t = join(m, s, t, LOG2E / a)
        m = tl.where(s == 0.0, 0.0, m)
        s = tl.where(s == 0.0, 1.0, s)
        mean = t / s
        if TOP is not None:
            tl.store(MAXIMA + K * every + at, m, mask=here)
            tl.store(SUMS + K * every + at, s, mask=here)
            tl.store(HEAD + at, mean, mask=here)
        tl.store(OUT + at, top + mean, mask=here)


@triton.jit(do_not_specialize=[*VARYING, "p_step"])
def backward_set(
    X, PTR, ORDER, PRESENT, WEIGHTS, SCALE, LOGP, LOGQ, TOP, HEAD, MAXIMA, SUMS, ROWS,
    DOUT, U, DU, DL, FACTORS, MASSES, DX, DP, DQ, DS, PARTS,
    K, M, N, B, p_step,
    PLAN: tl.constexpr, STEP: tl.constexpr, D: tl.constexpr, R: tl.constexpr, C: tl.constexpr, W: tl.constexpr,
    BL: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Do the way back of a set. PARTS (B, 4, K) gets parts of derivatives by weights, DS (B, D) by scales."""
    b = tl.program_id(0).to(tl.int64)
    begin, end = bounds(PTR, b, M, N)
    d = columns(C, BL)
    here = d < D
    every = tl.cast(B, tl.int64) * D
    at = b * D + d
    scale = scale_of(SCALE, d, here, STEP, CT)
    top = tl.load(TOP + at, mask=here, other=0.0)
    a, a1, a2 = weights_of(WEIGHTS, K, K - 1)
    u = potential_of(
        MAXIMA, SUMS, SCALE, LOGP, top, K - 1, every, b, p_step, at, d, here, a, a1, STEP, CT, LOW, FAST
    )
    tl.store(U + (K - 1) * every + at, u, mask=here)
    rows = ROWS + tl.cast(K - 1, tl.int64) * M
    factors = FACTORS + tl.cast(K - 1, tl.int64) * M
    parts = PARTS + b * 4 * K
    largest = a * 0.0
    total = a * 0.0 + 1.0
    moment = a * 0.0
    if PLAN:
        largest = tl.load(HEAD + b)
        total = tl.load(HEAD + B + b)
        moment = plan_moment(
            X, ORDER, PRESENT, LOGQ, rows, DOUT, begin, end, M, d, here, scale, top, u, largest, total, a, a2,
            D, R, W, BL, CT,
        )  # fmt: skip
        du, da, dar, dtau2 = reverse_sums(
            X, ORDER, PRESENT, LOGQ, rows, factors, MASSES, DQ, DOUT, begin, end, M, d, here, scale, top,
            top, top, top, largest, total, moment, u, a, a, a2, 2, D, R, C, W, BL, CT, LOW,
        )  # fmt: skip
    else:
        share, m, mean = output_of(DOUT, HEAD, MAXIMA + K * every, SUMS + K * every, at, here, CT, LOW)
        du, da, dar, dtau2 = reverse_sums(
            X, ORDER, PRESENT, LOGQ, rows, factors, MASSES, DQ, DOUT, begin, end, M, d, here, scale, top,
            share, m, mean, largest, total, moment, u, a, a, a2, 1, D, R, C, W, BL, CT, LOW,
        )  # fmt: skip
    da += dar
    for i in range(1, K):  # the columns of module k and the rows of module k - 1
        k = K - i
        by_sum = module_parts(
            MAXIMA, SUMS, SCALE, LOGP, TOP, DU, DL, parts, du, da, dtau2, K, k, every, b, p_step, at, d, here,
            a, a1, a2, STEP, CT, LOW, FAST,
        )  # fmt: skip
        of_sums = of_columns(by_sum, tl.load(SUMS + k * every + at, mask=here, other=1.0), here, FAST)
        m = tl.load(MAXIMA + k * every + at, mask=here, other=-LOW)
        a_before, a1, a2 = weights_of(WEIGHTS, K, k - 1)
        u = potential_of(
            MAXIMA,
            SUMS,
            SCALE,
            LOGP,
            top,
            k - 1,
            every,
            b,
            p_step,
            at,
            d,
            here,
            a_before,
            a1,
            STEP,
            CT,
            LOW,
            FAST,
        )
        tl.store(U + (k - 1) * every + at, u, mask=here)
        tl.debug_barrier()  # DQ is read by other threads than wrote it
        du, by_a, da, dtau2 = reverse_sums(
            X, ORDER, PRESENT, LOGQ, ROWS + tl.cast(k - 1, tl.int64) * M,
            FACTORS + tl.cast(k - 1, tl.int64) * M, MASSES, DQ, DOUT, begin, end, M, d, here,
            scale, top, by_sum, m, by_sum, largest, total, moment, u, a, a_before, a2,
            0, D, R, C, W, BL, CT, LOW,
        )  # fmt: skip
        tl.store(parts + k, by_a + of_sums)
        a = a_before
    by_sum = module_parts(
        MAXIMA, SUMS, SCALE, LOGP, TOP, DU, DL, parts, du, da, dtau2, K, 0, every, b, p_step, at, d, here,
        a, a1, a2, STEP, CT, LOW, FAST,
    )  # fmt: skip
    of_sums = of_columns(by_sum, tl.load(SUMS + at, mask=here, other=1.0), here, FAST)
    tl.debug_barrier()  # what the passes kept is read by other threads than wrote it
    share, m, mean = top, top, top
    if not PLAN:
        share, m, mean = output_of(DOUT, HEAD, MAXIMA + K * every, SUMS + K * every, at, here, CT, LOW)
    ds, by_a = finish_rows(
        X, ORDER, PRESENT, LOGQ, WEIGHTS, ROWS, MAXIMA, U, DL, FACTORS, MASSES, DOUT, DX,
        begin, end, M, K, every, at, d, here, scale, top, share, m, mean, moment,
        PLAN, DS is not None, D, R, C, W, BL, CT, LOW,
    )  # fmt: skip
    tl.store(parts, by_a + of_sums)
    by_top = finish_set(WEIGHTS, DU, DP, K, every, at, d, here, top, CT)
    if DS is not None:
        tl.store(DS + at, ds + by_top, mask=here)


@triton.jit
def potential_of(
    MAXIMA, SUMS, SCALE, LOGP, top, k, every, b, p_step, at, d, here, a, a1,
    STEP: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Return u of module k. All but the result is loaded here, so that no register holds it during a pass."""
    log_sum = log_sum_of(MAXIMA + k * every, SUMS + k * every, at, here, a, FAST)
    centred = centred_tops(scale_of(SCALE, d, here, STEP, CT), top, here, LOW, CT)
    return potential(log_sum, centred, log_prior_of(LOGP, b, p_step, d, here, CT), a, a1, here, LOW)


@triton.jit
def module_parts(
    MAXIMA, SUMS, SCALE, LOGP, TOP, DU, DL, parts, du, da, dtau2, K, k, every, b, p_step, at, d, here,
    a, a1, a2, STEP: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Keep du of module k and the parts of the derivatives by its weights but for its columns.

    `parts` (4, K) has rows for alpha0 by columns, alpha0 by the rest, alpha1 and alpha2. DL gets dL over the
    sums of columns, which is returned.
    """
    top = tl.load(TOP + at, mask=here, other=0.0)
    centred = centred_tops(scale_of(SCALE, d, here, STEP, CT), top, here, LOW, CT)
    log_p = log_prior_of(LOGP, b, p_step, d, here, CT)
    log_sum = log_sum_of(MAXIMA + k * every, SUMS + k * every, at, here, a, FAST)
    tl.store(DU + k * every + at, du, mask=here)
    share1 = 1 / (a + a1)
    share2 = 1 / (a + a2)
    dtau1 = tl.sum(tl.where(here, du * (a * log_p - log_sum - centred), 0.0))
    da += (a1 * share1) * tl.sum(du * log_p)
    dtau1 *= share1 * share1
    dtau2 *= share2 * share2
    tl.store(parts + K + k, da - dtau1 * a1 - dtau2 * a2)
    tl.store(parts + 2 * K + k, dtau1 * a)
    tl.store(parts + 3 * K + k, dtau2 * a)
    by_sum = (-a1 * share1) * du / tl.load(SUMS + k * every + at, mask=here, other=1.0)
    tl.store(DL + k * every + at, by_sum, mask=here)
    return by_sum
