"""The rows of a set are shared by many programs: one pass over X and one launch that merges for each module.

Every program has one chunk of rows of one set; `slots` has which, and what merges have in common.
"""

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
from uotpool.backends.triton.kernels.slots import (
    added,
    centred_part,
    chunk_of,
    merged,
    sum_of_chunks,
    sums_of_rows,
)
from uotpool.backends.triton.kernels.tiles import (
    LOG2E,
    VARYING,
    centred_tops,
    columns,
    join,
    log_prior_of,
    log_sum_of,
    potential,
    scale_of,
    sign_of,
    weights_of,
)


@triton.jit(do_not_specialize=[*VARYING, "k", "p_step"])
def forward_pass(
    X, PTR, ORDER, PRESENT, WEIGHTS, SCALE, LOGP, LOGQ, TOP, MAXIMA, SUMS, ROWS, PM, PS, PT,
    K, k, M, N, B, p_step,
    FIRST: tl.constexpr, LAST: tl.constexpr, PLAN: tl.constexpr, CHUNK: tl.constexpr, STEP: tl.constexpr,
    D: tl.constexpr, R: tl.constexpr, C: tl.constexpr, W: tl.constexpr, BL: tl.constexpr, CT: tl.constexpr,
    LOW: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Do the rows of module k, then sums of module k + 1 or (LAST) of the output; FIRST: sums of module 0."""
    slot = tl.program_id(0).to(tl.int64)
    b, begin, end, is_first = chunk_of(PTR, slot, B, M, N, CHUNK)
    d = columns(C, BL)
    here = d < D
    scale = scale_of(SCALE, d, here, STEP, CT)
    a, a1, a2 = weights_of(WEIGHTS, K, k)
    at_slot = slot * D + d
    if FIRST:
        m, s = first_sums(X, ORDER, PRESENT, begin, end, M, d, here, scale, a, D, R, C, W, BL, CT, LOW)
        m, s, t = join(m, s, s, tl.abs(scale) * (LOG2E / a))
        tl.store(PM + at_slot, m, mask=here)
        tl.store(PS + at_slot, s, mask=here)
    else:
        at = (tl.cast(k, tl.int64) * B + b) * D + d
        top = tl.load(TOP + b * D + d, mask=here, other=0.0)
        log_p = log_prior_of(LOGP, b, p_step, d, here, CT)
        centred = centred_tops(scale, top, here, LOW, CT)
        u = potential(log_sum_of(MAXIMA, SUMS, at, here, a, FAST), centred, log_p, a, a1, here, LOW)
        rows = ROWS
        if ROWS is not None:
            rows = ROWS + tl.cast(k, tl.int64) * M
        if LAST and PLAN:
            largest, total = plan_sums(
                X, ORDER, PRESENT, LOGQ, rows, begin, end, M, d, here, scale, top, u, a, a2,
                D, R, W, CT, LOW, FAST,
            )  # fmt: skip
            tl.store(PM + slot, largest)
            tl.store(PS + slot, total)
        else:
            a_next = a
            if not LAST:
                a_next, n1, n2 = weights_of(WEIGHTS, K, k + 1)
            m, s, t = next_sums(
                X, ORDER, PRESENT, LOGQ, rows, begin, end, M, d, here, scale, top, u, a, a2, a_next,
                LAST, D, R, C, W, BL, CT, LOW, FAST,
            )  # fmt: skip
            m, s, t = join(m, s, t, LOG2E / a_next)
            tl.store(PM + at_slot, m, mask=here)
            tl.store(PS + at_slot, s, mask=here)
            if LAST:
                tl.store(PT + at_slot, t, mask=here)


@triton.jit(do_not_specialize=[*VARYING, "k"])
def forward_merge(
    PTR, WEIGHTS, SCALE, PM, PS, PT, TOP, MAXIMA, SUMS, HEAD, OUT,
    K, k, M, N, B,
    FIRST: tl.constexpr, LAST: tl.constexpr, CHUNK: tl.constexpr, STEP: tl.constexpr, D: tl.constexpr,
    CHUNKS: tl.constexpr, WIDTH: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    """Merge the sums of the chunks of a set: those of module k, and for k = K (LAST) the output."""
    b = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    here = d < D
    a, a1, a2 = weights_of(WEIGHTS, K, tl.minimum(k, K - 1))
    scale = scale_of(SCALE, d, here, STEP, CT)
    c2 = tl.full((WIDTH,), 1.0, dtype=CT) * (LOG2E / a)
    if FIRST:
        c2 *= tl.abs(scale)
    m, s, t = merged(PM, PS, PT, PTR, b, d, here, c2, M, N, LAST, CHUNK, D, CHUNKS, WIDTH, CT, LOW)
    at = b * D + d
    if FIRST:
        tl.store(TOP + at, m * sign_of(scale), mask=here)
        m = tl.zeros((WIDTH,), dtype=CT)
    at_module = tl.cast(k, tl.int64) * B * D + at
    tl.store(MAXIMA + at_module, m, mask=here)
    tl.store(SUMS + at_module, s, mask=here)
    if LAST:
        mean = t / s
        tl.store(OUT + at, tl.load(TOP + at, mask=here, other=0.0) + mean, mask=here)
        if HEAD is not None:
            tl.store(HEAD + at, mean, mask=here)


@triton.jit(do_not_specialize=[*VARYING, "p_step"])
def plan_pass(
    X, PTR, ORDER, PRESENT, WEIGHTS, SCALE, LOGP, LOGQ, TOP, HEAD, MAXIMA, SUMS, ROWS,
    PM, PS, DOUT, OUT, PARTIAL,
    K, M, N, B, p_step,
    CHUNK: tl.constexpr, STEP: tl.constexpr, D: tl.constexpr, R: tl.constexpr, C: tl.constexpr, W: tl.constexpr,
    BL: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Write the plan to OUT; or, given DOUT, the sum of P dP over each chunk to PARTIAL."""
    slot = tl.program_id(0).to(tl.int64)
    b, begin, end, is_first = chunk_of(PTR, slot, B, M, N, CHUNK)
    d = columns(C, BL)
    here = d < D
    at = b * D + d
    scale = scale_of(SCALE, d, here, STEP, CT)
    log_p = log_prior_of(LOGP, b, p_step, d, here, CT)
    a, a1, a2 = weights_of(WEIGHTS, K, K - 1)
    top = tl.load(TOP + at, mask=here, other=0.0)
    at += tl.cast(K - 1, tl.int64) * B * D
    log_sum = log_sum_of(MAXIMA, SUMS, at, here, a, FAST)
    u = potential(log_sum, centred_tops(scale, top, here, LOW, CT), log_p, a, a1, here, LOW)
    rows = ROWS + tl.cast(K - 1, tl.int64) * M
    if DOUT is None:
        largest, total = sums_of_rows(PM, PS, PTR, b, a, M, N, CHUNK, CT, LOW)
        if HEAD is not None:
            tl.store(HEAD + b, largest, mask=is_first)
            tl.store(HEAD + B + b, total, mask=is_first)
        write_plan(
            X, ORDER, PRESENT, LOGQ, rows, OUT, begin, end, M, d, here, scale, top, u, largest, total, a, a2,
            D, R, W, CT,
        )  # fmt: skip
    else:
        moment = plan_moment(
            X, ORDER, PRESENT, LOGQ, rows, DOUT, begin, end, M, d, here, scale, top, u,
            tl.load(HEAD + b), tl.load(HEAD + B + b), a, a2, D, R, W, BL, CT,
        )  # fmt: skip
        tl.store(PARTIAL + slot, moment)


@triton.jit(do_not_specialize=[*VARYING, "k", "p_step"])
def backward_pass(
    X, PTR, ORDER, PRESENT, WEIGHTS, SCALE, LOGP, LOGQ, TOP, HEAD, MAXIMA, SUMS, ROWS,
    DOUT, PARTIAL, U, DL, FACTORS, MASSES, DQ, PD, PARTS,
    K, k, M, N, B, p_step,
    WAY: tl.constexpr, CHUNK: tl.constexpr, STEP: tl.constexpr, D: tl.constexpr, R: tl.constexpr,
    C: tl.constexpr, W: tl.constexpr, BL: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Do the columns of module k, or at k = K the output (WAY 1) or the plan (2), and the rows of k - 1.

    PD gets the sums of du over each chunk, PARTS (slots, 4, K) the parts of the derivatives by weights.
    """
    slot = tl.program_id(0).to(tl.int64)
    b, begin, end, is_first = chunk_of(PTR, slot, B, M, N, CHUNK)
    d = columns(C, BL)
    here = d < D
    every = tl.cast(B, tl.int64) * D
    at = b * D + d
    scale = scale_of(SCALE, d, here, STEP, CT)
    log_p = log_prior_of(LOGP, b, p_step, d, here, CT)
    top = tl.load(TOP + at, mask=here, other=0.0)
    a_rows, a1, a2 = weights_of(WEIGHTS, K, k - 1)
    log_sum = log_sum_of(MAXIMA + (k - 1) * every, SUMS + (k - 1) * every, at, here, a_rows, FAST)
    u = potential(log_sum, centred_tops(scale, top, here, LOW, CT), log_p, a_rows, a1, here, LOW)
    tl.store(U + (k - 1) * every + at, u, mask=here & is_first)
    a = a_rows
    largest = a * 0.0
    total = a * 0.0
    moment = a * 0.0
    of_sums = a * 0.0
    by_sum = top
    mean = top
    m = top
    if WAY == 2:
        largest = tl.load(HEAD + b)
        total = tl.load(HEAD + B + b)
        moment = sum_of_chunks(PARTIAL, PTR, b, M, N, CHUNK, CT)
    elif WAY == 1:
        by_sum, m, mean = output_of(DOUT, HEAD, MAXIMA + K * every, SUMS + K * every, at, here, CT, LOW)
    else:
        a, n1, n2 = weights_of(WEIGHTS, K, k)
        m = tl.load(MAXIMA + k * every + at, mask=here, other=-LOW)
        by_sum = tl.load(DL + k * every + at, mask=here, other=0.0)
        s = tl.load(SUMS + k * every + at, mask=here, other=1.0)
        of_sums = tl.where(is_first, of_columns(by_sum, s, here, FAST), 0.0)
    du, by_a, by_a_rows, dtau2 = reverse_sums(
        X, ORDER, PRESENT, LOGQ, ROWS + tl.cast(k - 1, tl.int64) * M,
        FACTORS + tl.cast(k - 1, tl.int64) * M, MASSES, DQ, DOUT, begin, end, M, d, here,
        scale, top, by_sum, m, mean, largest, total, moment, u, a, a_rows, a2,
        WAY, D, R, C, W, BL, CT, LOW,
    )  # fmt: skip
    tl.store(PD + slot * D + d, du, mask=here)
    parts = PARTS + slot * 4 * K
    dtau2 *= 1 / ((a_rows + a2) * (a_rows + a2))
    if WAY == 0:
        tl.store(parts + k, by_a + of_sums)
    else:  # the output has alpha0 of the last module
        by_a_rows += by_a
    tl.store(parts + K + k - 1, by_a_rows - dtau2 * a2)
    tl.store(parts + 2 * K + k - 1, by_a_rows * 0.0)
    tl.store(parts + 3 * K + k - 1, dtau2 * a_rows)


@triton.jit(do_not_specialize=[*VARYING, "k", "p_step"])
def backward_merge(
    PTR, WEIGHTS, SCALE, LOGP, TOP, MAXIMA, SUMS, PD, DU, DL, PARTS,
    K, k, M, N, B, p_step,
    CHUNK: tl.constexpr, STEP: tl.constexpr, D: tl.constexpr, CHUNKS: tl.constexpr, WIDTH: tl.constexpr,
    WIDTHS: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Merge du of module k over the chunks of a set; PARTS gets its parts of the derivatives by weights."""
    b = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    here = d < D
    du = added(PD, PTR, b, d, here, M, N, CHUNK, D, CHUNKS, WIDTH, CT)
    at = (tl.cast(k, tl.int64) * B + b) * D + d
    tl.store(DU + at, du, mask=here)
    a, a1, a2 = weights_of(WEIGHTS, K, k)
    centred = centred_part(TOP, SCALE, b, d, here, STEP, D, WIDTH, WIDTHS, CT, LOW)
    log_p = log_prior_of(LOGP, b, p_step, d, here, CT)
    share = 1 / (a + a1)
    tl.store(DL + at, (-a1 * share) * du / tl.load(SUMS + at, mask=here, other=1.0), mask=here)
    log_sum = log_sum_of(MAXIMA, SUMS, at, here, a, FAST)
    dtau1 = tl.sum(tl.where(here, du * (a * log_p - log_sum - centred), 0.0))
    dtau1 *= share * share
    parts = PARTS + (b * tl.num_programs(1) + tl.program_id(1)) * 4 * K
    tl.store(parts + k, dtau1 * 0.0)
    tl.store(parts + K + k, (a1 * share) * tl.sum(du * log_p) - dtau1 * a1)
    tl.store(parts + 2 * K + k, dtau1 * a)
    tl.store(parts + 3 * K + k, dtau1 * 0.0)


@triton.jit(do_not_specialize=VARYING)
def backward_finish(
    X, PTR, ORDER, PRESENT, WEIGHTS, SCALE, LOGQ, TOP, HEAD, MAXIMA, SUMS, ROWS,
    DOUT, PARTIAL, U, DU, DL, FACTORS, MASSES, DX, DP, DS, PARTS,
    K, M, N, B,
    PLAN: tl.constexpr, CHUNK: tl.constexpr, STEP: tl.constexpr, D: tl.constexpr, R: tl.constexpr,
    C: tl.constexpr, W: tl.constexpr, BL: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Form dX from all adjoints, and derivatives by priors and (DS, a row for each slot) by the scale."""
    slot = tl.program_id(0).to(tl.int64)
    b, begin, end, is_first = chunk_of(PTR, slot, B, M, N, CHUNK)
    d = columns(C, BL)
    here = d < D
    every = tl.cast(B, tl.int64) * D
    at = b * D + d
    scale = scale_of(SCALE, d, here, STEP, CT)
    top = tl.load(TOP + at, mask=here, other=0.0)
    a, a1, a2 = weights_of(WEIGHTS, K, 0)
    by_sum = tl.load(DL + at, mask=here, other=0.0)
    of_sums = of_columns(by_sum, tl.load(SUMS + at, mask=here, other=1.0), here, FAST)
    moment = a * 0.0
    share = top
    m = top
    mean = top
    if PLAN:
        moment = sum_of_chunks(PARTIAL, PTR, b, M, N, CHUNK, CT)
    else:
        share, m, mean = output_of(DOUT, HEAD, MAXIMA + K * every, SUMS + K * every, at, here, CT, LOW)
    ds, by_a = finish_rows(
        X, ORDER, PRESENT, LOGQ, WEIGHTS, ROWS, MAXIMA, U, DL, FACTORS, MASSES, DOUT, DX,
        begin, end, M, K, every, at, d, here, scale, top, share, m, mean, moment,
        PLAN, DS is not None, D, R, C, W, BL, CT, LOW,
    )  # fmt: skip
    tl.store(PARTS + slot * 4 * K, by_a + tl.where(is_first, of_sums, 0.0))
    if is_first:
        by_top = finish_set(WEIGHTS, DU, DP, K, every, at, d, here, top, CT)
        if DS is not None:
            ds += by_top
    if DS is not None:
        tl.store(DS + slot * D + d, ds, mask=here)
