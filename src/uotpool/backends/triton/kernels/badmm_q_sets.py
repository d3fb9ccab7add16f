"""Quadratic Bregman ADMM, a set the work of one program: one launch each way."""

import triton
import triton.language as tl

from uotpool.backends.triton.kernels.badmm import module_of, place
from uotpool.backends.triton.kernels.badmm_q import (
    COLUMN,
    NUMBER,
    norm,
    output_rows,
    start_rows,
    update_P,
    update_rows,
    update_S,
)
from uotpool.backends.triton.kernels.badmm_q_reverse import (
    finish_prior,
    finish_rows,
    reverse_P,
    reverse_rows,
    reverse_S,
    start_reverse,
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
    scale_of,
)


@triton.jit(do_not_specialize=[*VARYING, "p_step"])
def forward_set(
    X, PTR, ORDER, PRESENT, WEIGHTS, SCALE, LOGP, LOGQ, HEAD, COLUMNS, ROWS, NUMBERS, YP, YS, OUT,
    SLOTS, YP_SLOTS, YS_SLOTS, K, M, N, B, p_step,
    PLAN: tl.constexpr, STEP: tl.constexpr, D: tl.constexpr, R: tl.constexpr, C: tl.constexpr, W: tl.constexpr,
    BL: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Solve a set. HEAD, COLUMNS and NUMBERS, None or all there, are what the way back needs beside states.

    Between two passes stands a barrier, as threads read what others wrote.
    """
    b = tl.program_id(0).to(tl.int64)
    begin, end = bounds(PTR, b, M, N)
    d = columns(C, BL)
    here = d < D
    every = tl.cast(B, tl.int64) * D
    scale = scale_of(SCALE, d, here, STEP, CT)
    prior = log_prior_of(LOGP, b, p_step, d, here, CT) * LOG2E
    mu = norm(prior, here, LOW, FAST)
    top, q_most, q_total = start_rows(
        X, ORDER, PRESENT, LOGQ, ROWS, SLOTS, begin, end, M, d, here, scale, D, R, C, W, BL, CT, LOW
    )
    centred = centred_tops(scale, top, here, LOW, CT) * LOG2E
    eta_norm = q_most + log2(q_total, FAST)
    most = tl.max(mu) + q_most - eta_norm
    first = mu - eta_norm
    z = tl.zeros(d.shape, dtype=CT)
    shift = tl.zeros(d.shape, dtype=CT)
    az = most * 0.0
    if HEAD is not None:
        tl.store(HEAD + b * D + d, top, mask=here)
        tl.store(NUMBERS + b * NUMBER, most)
        tl.store(NUMBERS + b * NUMBER + 2, eta_norm)
    for j in range(0, K + 1):
        a, a1, a2, rho = module_of(WEIGHTS, K, j)
        rho += a * tl.exp2(most)
        tl.debug_barrier()
        m, s, count, slope = update_P(
            X, ORDER, PRESENT, ROWS, YP, YS, SLOTS, YP_SLOTS, YS_SLOTS, begin, end, M, d, here,
            scale, top, z + centred, first, shift, a, az, rho, j, D, R, C, W, BL, CT, LOW,
        )  # fmt: skip
        log_s = log2(s, FAST)
        log_p = norm(0.5 * (mu + m + log_s), here, LOW, FAST)
        largest = tl.where(here, log_p - log_s, LOW)
        mu = norm((a1 * prior + rho * log_p - z) / (a1 + rho), here, LOW, FAST)
        z = tl.where(here, z + rho * (mu - log_p), 0.0)
        shift_before = shift
        shift = tl.where(here, log_p - m - log_s, 0.0)
        tl.debug_barrier()
        q_norm, slope_S = update_S(
            ORDER, PRESENT, ROWS, YP, YS, SLOTS, YP_SLOTS, YS_SLOTS, begin, end, M, d, here,
            shift, shift_before, eta_norm, a, az, rho, j, D, R, W, CT, LOW, FAST,
        )  # fmt: skip
        if HEAD is not None:
            kept = place(COLUMNS, j, K + 1, B, b, COLUMN * D) + d
            tl.store(kept, m, mask=here)
            tl.store(kept + D, s, mask=here)
            tl.store(kept + 2 * D, log_p, mask=here)
            tl.store(kept + 3 * D, mu, mask=here)
            tl.store(kept + 4 * D, count, mask=here)
            tl.store(kept + 5 * D, largest, mask=here)
            highest = tl.max(tl.where(here, m, LOW))
            number = place(NUMBERS, j, K + 2, B, b, NUMBER)
            tl.store(number + 3, tl.max(tl.where(here & (m == highest), slope, LOW)))
            tl.store(number + 4, slope_S)
            tl.store(number + 5, q_norm)
        tl.debug_barrier()
        most_S, count_S, eta_norm = update_rows(
            ORDER, PRESENT, LOGQ, ROWS, SLOTS, begin, end, M, q_norm, eta_norm, a2, rho, j, R, W, CT, LOW, FAST
        )
        most = tl.maximum(tl.max(largest), most_S)
        if HEAD is not None:
            number = place(NUMBERS, j + 1, K + 2, B, b, NUMBER)
            tl.store(number, most)
            tied = tl.sum(tl.where(largest == most, count, 0.0)) + tl.where(most_S == most, count_S, 0.0)
            tl.store(number + 1, tied)
            tl.store(number + 2, eta_norm)
        az = a
    tl.debug_barrier()
    m, s, t = output_rows(
        X, ORDER, PRESENT, ROWS, YS, OUT, SLOTS, YS_SLOTS, begin, end, M, K, d, here, top,
        PLAN, D, R, C, W, BL, CT, LOW,
    )  # fmt: skip
    if not PLAN:
        m, s, t = join(m, s, t, 1.0)
        m = tl.where(s == 0.0, 0.0, m)
        s = tl.where(s == 0.0, 1.0, s)
        mean = t / s
        tl.store(OUT + b * D + d, top + mean, mask=here)
        if HEAD is not None:
            tl.store(HEAD + every + b * D + d, mean, mask=here)
            tl.store(HEAD + 2 * every + b * D + d, m, mask=here)
            tl.store(HEAD + 3 * every + b * D + d, s, mask=here)


@triton.jit(do_not_specialize=[*VARYING, "p_step"])
def backward_set(
    X, PTR, ORDER, PRESENT, WEIGHTS, SCALE, LOGP, LOGQ, HEAD, COLUMNS, ROWS, NUMBERS, YP, YS,
    DOUT, GS, GP, G, ADJOINTS, DX, DP, DQ, DS, PARTS,
    K, M, N, B, p_step,
    PLAN: tl.constexpr, STEP: tl.constexpr, D: tl.constexpr, R: tl.constexpr, C: tl.constexpr, W: tl.constexpr,
    BL: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Do the way back of a set. PARTS (B, 4, K) gets derivatives by weights, DS (B, D) by scales.

    Vectors of columns are loaded where they are needed, so that no register holds them during a pass.
    """
    b = tl.program_id(0).to(tl.int64)
    begin, end = bounds(PTR, b, M, N)
    d = columns(C, BL)
    here = d < D
    every = tl.cast(B, tl.int64) * D
    at = b * D + d
    slots = K + 2
    top, share, m_out, mean = output_of(DOUT, HEAD, every, at, here, PLAN, CT)
    start_reverse(
        X, ORDER, PRESENT, ROWS, YS, DOUT, GS, GP, G, ADJOINTS, slots, begin, end, M, K, d, here,
        top, share, m_out, mean, PLAN, D, R, W, CT, LOW,
    )  # fmt: skip
    q_norm = tl.load(NUMBERS + b * NUMBER + 2)
    dmu = tl.zeros(d.shape, dtype=CT)
    dz = tl.zeros(d.shape, dtype=CT)
    dp = tl.zeros(d.shape, dtype=CT)
    by_S = tl.zeros(d.shape, dtype=CT)
    by_eta = q_norm * 0.0
    by_most = q_norm * 0.0
    closing_a = q_norm * 0.0
    closing_rho = q_norm * 0.0
    parts = PARTS + b * 4 * K
    for back in range(0, K + 1):
        j = K - back
        a, a1, a2, weight = module_of(WEIGHTS, K, j)
        az, b1, b2, weight_before = module_of(WEIGHTS, K, tl.maximum(j - 1, 0))
        az = tl.where(j > 0, az, 0.0)
        number = place(NUMBERS, j, slots, B, b, NUMBER)
        after = place(NUMBERS, j + 1, slots, B, b, NUMBER)
        rho = weight + a * tl.exp2(tl.load(number))
        most = tl.load(after)
        tie = by_most / tl.maximum(tl.load(after + 1), 1.0)
        kept = place(COLUMNS, j, K + 1, B, b, COLUMN * D) + d
        before = place(COLUMNS, tl.maximum(j - 1, 0), K + 1, B, b, COLUMN * D) + d
        m = tl.load(kept, mask=here, other=0.0)
        s = tl.load(kept + D, mask=here, other=1.0)
        log_p = tl.load(kept + 2 * D, mask=here, other=0.0)
        mu = tl.load(kept + 3 * D, mask=here, other=0.0)
        largest = tl.load(kept + 5 * D, mask=here, other=LOW)
        shift_before = tl.load(before + 2 * D, mask=here, other=0.0) - tl.load(before, mask=here, other=0.0)
        shift_before -= log2(tl.load(before + D, mask=here, other=1.0), FAST)
        tl.debug_barrier()
        by_q, drho, da2 = reverse_rows(
            ORDER, PRESENT, LOGQ, ROWS, ADJOINTS, slots, begin, end, M, tl.load(number + 2), tl.load(after + 2),
            tl.load(number + 5), by_eta, most, tie, a2, rho, j, R, W, CT,
        )  # fmt: skip
        prior = log_prior_of(LOGP, b, p_step, d, here, CT) * LOG2E
        # z1' = z1 + rho (log mu' - log p),  log mu' = norm((alpha1 log p0 + rho log p - z1) / (alpha1 + rho))
        drho += LN2 * tl.sum(tl.where(here, dz * (mu - log_p), 0.0))
        dt = tl.where(here, dmu + rho * dz, 0.0)
        dt = (dt - tl.where(here, tl.exp2(mu), 0.0) * tl.sum(dt)) / (a1 + rho)
        drho += LN2 * tl.sum(tl.where(here, dt * (log_p - mu), 0.0))
        da1 = LN2 * tl.sum(tl.where(here, dt * (prior - mu), 0.0))
        dlog_p = rho * (dt - dz)
        dz -= dt
        dp += a1 * dt
        tl.debug_barrier()
        by_P, by_eta, da, daz, part = reverse_S(
            ORDER, PRESENT, ROWS, YP, YS, GS, GP, ADJOINTS, slots, begin, end, M, d, here,
            log_p - m - log2(s, FAST), shift_before, m, largest, tl.load(number + 5), by_q, most, tie,
            tl.load(number + 4), a, az, rho, j, D, R, C, W, BL, CT, LOW,
        )  # fmt: skip
        drho += part
        # log P = YP + log p - L,  log p = norm((log mu + L) / 2)
        dlog_p += by_P
        dh = tl.where(here, dlog_p - tl.exp2(log_p) * tl.sum(tl.where(here, dlog_p, 0.0)), 0.0)
        dmu = 0.5 * dh
        tl.debug_barrier()
        first = norm(log_prior_of(LOGP, b, p_step, d, here, CT) * LOG2E, here, LOW, FAST) - q_norm
        by_z, by_S, part_a, part_az, part = reverse_P(
            ORDER, PRESENT, ROWS, YP, YS, GS, GP, G, ADJOINTS, slots, begin, end, M, d, here,
            first, shift_before, m, (dmu - by_P) / s, tl.load(number + 3), a, az, rho, j,
            D, R, C, W, BL, CT, LOW,
        )  # fmt: skip
        drho += part
        dz += by_z
        da += part_a + drho * tl.exp2(tl.load(number))
        by_most = drho * a * tl.exp2(tl.load(number))
        k = tl.minimum(j, K - 1)
        tl.store(parts + k, da + closing_a, mask=j < K)
        tl.store(parts + K + k, da1, mask=j < K)
        tl.store(parts + 2 * K + k, da2, mask=j < K)
        tl.store(parts + 3 * K + k, drho + closing_rho, mask=j < K)
        # The closing update has the weights of the last module, and az is alpha0 of the module before.
        closing_a = daz + part_az + tl.where(j == K, da, 0.0)
        closing_rho = tl.where(j == K, drho, 0.0)
    tl.debug_barrier()
    if DQ is not None:
        finish_prior(ORDER, PRESENT, LOGQ, ADJOINTS, DQ, begin, end, M, q_norm, by_most, R, W, CT, LOW)
    if DP is not None:
        mu = norm(log_prior_of(LOGP, b, p_step, d, here, CT) * LOG2E, here, LOW, FAST)
        tied = here & (mu == tl.max(mu))
        by_p = by_S + dmu + tl.where(tied, by_most / tl.sum(tl.where(tied, 1.0, 0.0)), 0.0)
        by_p = tl.where(here, by_p, 0.0)
        tl.store(DP + at, dp + by_p - tl.exp2(mu) * tl.sum(by_p), mask=here)
    scale = scale_of(SCALE, d, here, STEP, CT)
    top, share, m_out, mean = output_of(DOUT, HEAD, every, at, here, PLAN, CT)
    with_x, total = finish_rows(
        X, ORDER, PRESENT, ROWS, YS, DOUT, G, DX, slots, begin, end, M, K, d, here, scale, top, share, m_out,
        PLAN, D, R, C, W, BL, CT, LOW,
    )  # fmt: skip
    if DS is not None:
        tl.store(DS + at, with_x + top * total, mask=here)


@triton.jit
def output_of(DOUT, HEAD, every, at, here, PLAN: tl.constexpr, CT: tl.constexpr):
    """Return the tops, the derivative by the pooled output over the sums of its columns, maxima and means."""
    top = tl.load(HEAD + at, mask=here, other=0.0)
    if PLAN:
        return top, top, top, top
    else:
        share = tl.load(DOUT + at, mask=here, other=0.0).to(CT)
        share /= tl.load(HEAD + 3 * every + at, mask=here, other=1.0)
        mean = tl.load(HEAD + every + at, mask=here, other=0.0)
        return top, share, tl.load(HEAD + 2 * every + at, mask=here, other=0.0), mean
