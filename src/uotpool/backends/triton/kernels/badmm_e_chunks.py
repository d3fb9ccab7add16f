"""Entropic Bregman ADMM where many programs share the rows of a set; `slots` has which, and merges."""

import triton
import triton.language as tl

from uotpool.backends.triton.kernels.badmm import module_of, place
from uotpool.backends.triton.kernels.badmm_e import plan_moment, start_rows, update_rows, write_plan
from uotpool.backends.triton.kernels.badmm_e_columns import (
    keep_slopes,
    reverse_columns,
    slopes_of,
    start_columns,
    update_columns,
)
from uotpool.backends.triton.kernels.badmm_e_reverse import finish_rows, keep_parts, reverse_rows
from uotpool.backends.triton.kernels.slots import (
    added,
    centred_part,
    chunk_of,
    merged,
    sum_of_chunks,
    sums_of_rows,
)
from uotpool.backends.triton.kernels.tiles import LN2, LOG2E, columns, join, scale_of, sign_of


@triton.jit
def forward_pass(
    X, PTR, ORDER, PRESENT, WEIGHTS, SCALE, LOGP, LOGQ, TOP, SUMS, STATES, ROWS, PM, PS, PT,
    SLOTS, K, j, M, N, B, p_step,
    FIRST: tl.constexpr, LAST: tl.constexpr, CHUNK: tl.constexpr, STEP: tl.constexpr, D: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr, W: tl.constexpr, BL: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr,
    FAST: tl.constexpr,
):  # fmt: skip
    """Do the rows of update j, then the sums of the next one; FIRST: the sums of update 0 alone.

    LAST is 1 for the sums of the output instead, 2 for maximum and sum of log q.
    """
    slot = tl.program_id(0).to(tl.int64)
    b, begin, end, is_first = chunk_of(PTR, slot, B, M, N, CHUNK)
    d = columns(C, BL)
    here = d < D
    scale = scale_of(SCALE, d, here, STEP, CT)
    az, ratio, c_p, c_s = slopes_of(WEIGHTS, K, j, CT)
    if FIRST:
        start_columns(STATES, LOGP, b, p_step, d, here, B, SLOTS, is_first, D, CT)
        m, s = start_rows(
            X, ORDER, PRESENT, LOGQ, ROWS, SLOTS, begin, end, M, d, here, scale, c_p,
            D, R, C, W, BL, CT, LOW,
        )  # fmt: skip
        m, s, t = join(m, s, s, tl.abs(scale) * c_p)
    else:
        a, a1, a2, rho = module_of(WEIGHTS, K, j)
        top = tl.load(TOP + b * D + d, mask=here, other=0.0)
        u = update_columns(
            SUMS, STATES, LOGP, b, p_step, d, here, B, SLOTS, scale, top, a, a1, rho, az, j,
            is_first, D, CT, LOW, FAST,
        )  # fmt: skip
        c_next = c_s
        if LAST == 0:
            az, ratio, c_next, c_after = slopes_of(WEIGHTS, K, j + 1, CT)
        m, s, t = update_rows(
            X, ORDER, PRESENT, LOGQ, ROWS, SLOTS, begin, end, M, d, here, scale, top, u, a, a2, rho,
            c_s, c_next, ratio, j, LAST, D, R, C, W, BL, CT, LOW, FAST,
        )  # fmt: skip
        if LAST != 2:
            m, s, t = join(m, s, t, 1.0)
    if LAST == 2:
        most = tl.max(m)
        tl.store(PM + slot, most)
        tl.store(PS + slot, tl.sum(s * tl.exp2(m - most)))
    else:
        at = slot * D + d
        tl.store(PM + at, m, mask=here)
        tl.store(PS + at, s, mask=here)
        if LAST == 1:
            tl.store(PT + at, t, mask=here)


@triton.jit
def forward_merge(
    PTR, WEIGHTS, SCALE, PM, PS, PT, TOP, SUMS, HEAD, OUT,
    SLOTS, K, j, M, N, B,
    FIRST: tl.constexpr, LAST: tl.constexpr, CHUNK: tl.constexpr, STEP: tl.constexpr, D: tl.constexpr,
    CHUNKS: tl.constexpr, WIDTH: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    """Merge the maxima and sums of columns of update j over the chunks of a set; LAST: the output."""
    b = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    here = d < D
    scale = scale_of(SCALE, d, here, STEP, CT)
    c = tl.full((WIDTH,), 1.0, dtype=CT)
    if FIRST:
        az, ratio, c_p, c_s = slopes_of(WEIGHTS, K, 0, CT)
        c = tl.abs(scale) * c_p
    m, s, t = merged(PM, PS, PT, PTR, b, d, here, c, M, N, LAST, CHUNK, D, CHUNKS, WIDTH, CT, LOW)
    if FIRST:
        tl.store(TOP + b * D + d, m * sign_of(scale), mask=here)
        m = tl.zeros((WIDTH,), dtype=CT)
    tl.store(place(SUMS, j, SLOTS, B, b, 2 * D) + d, m, mask=here)
    tl.store(place(SUMS, j, SLOTS, B, b, 2 * D) + D + d, s, mask=here)
    if LAST:
        mean = t / s
        tl.store(OUT + b * D + d, tl.load(TOP + b * D + d, mask=here, other=0.0) + mean, mask=here)
        if HEAD is not None:
            tl.store(HEAD + b * D + d, mean, mask=here)


@triton.jit
def plan_pass(
    X, PTR, ORDER, PRESENT, WEIGHTS, SCALE, TOP, HEAD, STATES, ROWS, PM, PS, DOUT, OUT, PARTIAL,
    SLOTS, K, M, N, B,
    CHUNK: tl.constexpr, STEP: tl.constexpr, D: tl.constexpr, R: tl.constexpr, C: tl.constexpr, W: tl.constexpr,
    BL: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Write the plan to OUT; or, given DOUT, the sum of P dP over each chunk to PARTIAL."""
    slot = tl.program_id(0).to(tl.int64)
    b, begin, end, is_first = chunk_of(PTR, slot, B, M, N, CHUNK)
    d = columns(C, BL)
    here = d < D
    scale = scale_of(SCALE, d, here, STEP, CT)
    top = tl.load(TOP + b * D + d, mask=here, other=0.0)
    az, ratio, c_p, c = slopes_of(WEIGHTS, K, K, CT)
    u = tl.load(place(STATES, K + 1, SLOTS, B, b, 3 * D) + d, mask=here, other=LOW)
    if DOUT is None:
        largest, total = sums_of_rows(PM, PS, PTR, b, c * 0.0 + LOG2E, M, N, CHUNK, CT, LOW)
        if HEAD is not None:
            tl.store(HEAD + b, largest, mask=is_first)
            tl.store(HEAD + B + b, total, mask=is_first)
        write_plan(
            X, ORDER, PRESENT, ROWS, OUT, SLOTS, begin, end, M, d, here, scale, top, u, c, largest, total, K,
            D, R, W, CT, LOW, FAST,
        )  # fmt: skip
    else:
        moment = plan_moment(
            X, ORDER, PRESENT, ROWS, DOUT, SLOTS, begin, end, M, d, here, scale, top, u, c,
            tl.load(HEAD + b), tl.load(HEAD + B + b), K, D, R, W, BL, CT, LOW, FAST,
        )  # fmt: skip
        tl.store(PARTIAL + slot, moment)


@triton.jit
def backward_pass(
    X, PTR, ORDER, PRESENT, WEIGHTS, SCALE, LOGQ, TOP, HEAD, SUMS, STATES, ROWS,
    DOUT, PARTIAL, ROW_ADJOINTS, DL, DR, SLOPES, PD, PARTS,
    K, j, M, N, B,
    WAY: tl.constexpr, CHUNK: tl.constexpr, STEP: tl.constexpr, D: tl.constexpr, R: tl.constexpr,
    C: tl.constexpr, W: tl.constexpr, BL: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Do the columns of update j + 1, or of the output (WAY 1) or the plan (2), and the rows of update j.

    PD gets the sums of du over each chunk, PARTS (slots, 6, K + 1) the parts of derivatives by numbers.
    """
    slot = tl.program_id(0).to(tl.int64)
    b, begin, end, is_first = chunk_of(PTR, slot, B, M, N, CHUNK)
    d = columns(C, BL)
    here = d < D
    scale = scale_of(SCALE, d, here, STEP, CT)
    top = tl.load(TOP + b * D + d, mask=here, other=0.0)
    a, a1, a2, rho = module_of(WEIGHTS, K, j)
    az, ratio, c_p, c = slopes_of(WEIGHTS, K, j, CT)
    if slot == 0:
        keep_slopes(SLOPES, ratio, c_p, c, K, j)
    u = tl.load(place(STATES, j + 1, K + 2, B, b, 3 * D) + d, mask=here, other=LOW)
    c_next = c
    largest = a * 0.0
    total = a * 0.0
    moment = a * 0.0
    by_sum = top
    mean = top
    m = top
    if WAY == 2:
        largest = tl.load(HEAD + b)
        total = tl.load(HEAD + B + b)
        moment = sum_of_chunks(PARTIAL, PTR, b, M, N, CHUNK, CT)
    else:
        m = tl.load(place(SUMS, j + 1, K + 2, B, b, 2 * D) + d, mask=here, other=-LOW)
        if WAY == 1:
            s = tl.load(place(SUMS, j + 1, K + 2, B, b, 2 * D) + D + d, mask=here, other=1.0)
            by_sum = tl.load(DOUT + b * D + d, mask=here, other=0.0).to(CT) * LN2 / s
            mean = tl.load(HEAD + b * D + d, mask=here, other=0.0)
        else:
            az, ratio, c_next, c_after = slopes_of(WEIGHTS, K, j + 1, CT)
            by_sum = tl.load(place(DL, j + 1, K + 1, B, b, D) + d, mask=here, other=0.0)
    du, dcp, dcs, dratio, da, drho, da2 = reverse_rows(
        X, ORDER, PRESENT, LOGQ, ROWS, ROW_ADJOINTS, DR, DOUT, begin, end, M, d, here,
        scale, top, by_sum, m, mean, largest, total, moment, u, a, a2, rho, c, c_next, ratio, K, j,
        WAY, D, R, C, W, BL, CT, LOW, FAST,
    )  # fmt: skip
    tl.store(PD + slot * D + d, du, mask=here)
    keep_parts(PARTS + slot * 6 * (K + 1), dcp, dcs, dratio, da, drho, da2, K, j, WAY)


@triton.jit
def backward_merge(
    PTR, WEIGHTS, SCALE, LOGP, TOP, SUMS, STATES, COLUMN_ADJOINTS, DL, DP, PD, PARTS,
    K, j, M, N, B, p_step,
    CHUNK: tl.constexpr, STEP: tl.constexpr, D: tl.constexpr, CHUNKS: tl.constexpr, WIDTH: tl.constexpr,
    WIDTHS: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Merge du of update j over the chunks of a set, and do its columns backwards."""
    b = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    here = d < D
    du = added(PD, PTR, b, d, here, M, N, CHUNK, D, CHUNKS, WIDTH, CT)
    centred = centred_part(TOP, SCALE, b, d, here, STEP, D, WIDTH, WIDTHS, CT, LOW)
    a, a1, a2, rho = module_of(WEIGHTS, K, j)
    az, ratio, c_p, c_s = slopes_of(WEIGHTS, K, j, CT)
    reverse_columns(
        SUMS, STATES, LOGP, COLUMN_ADJOINTS, DL, DP,
        PARTS + (b * tl.num_programs(1) + tl.program_id(1)) * 4 * (K + 1),
        du, centred, b, p_step, d, here, B, a, a1, rho, az, K, j, D, CT, FAST,
    )  # fmt: skip


@triton.jit
def backward_finish(
    X, PTR, ORDER, PRESENT, WEIGHTS, SCALE, TOP, HEAD, SUMS, STATES, ROWS,
    DOUT, PARTIAL, ROW_ADJOINTS, COLUMN_ADJOINTS, DL, DR, SLOPES, DX, DQ, DS, PARTS,
    K, M, N, B,
    PLAN: tl.constexpr, CHUNK: tl.constexpr, STEP: tl.constexpr, D: tl.constexpr, R: tl.constexpr,
    C: tl.constexpr, W: tl.constexpr, BL: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Form dX from all adjoints, and derivatives by log q0 and (DS, a row for each slot) by the scale."""
    slot = tl.program_id(0).to(tl.int64)
    b, begin, end, is_first = chunk_of(PTR, slot, B, M, N, CHUNK)
    d = columns(C, BL)
    here = d < D
    scale = scale_of(SCALE, d, here, STEP, CT)
    top = tl.load(TOP + b * D + d, mask=here, other=0.0)
    dy = top
    mean = top
    largest = tl.load(SLOPES)
    total = largest
    moment = largest
    if PLAN:
        largest = tl.load(HEAD + b)
        total = tl.load(HEAD + B + b)
        moment = sum_of_chunks(PARTIAL, PTR, b, M, N, CHUNK, CT)
    else:
        s = tl.load(place(SUMS, K + 1, K + 2, B, b, 2 * D) + D + d, mask=here, other=1.0)
        dy = tl.load(DOUT + b * D + d, mask=here, other=0.0).to(CT) / s
        mean = tl.load(HEAD + b * D + d, mask=here, other=0.0)
    ds, dcp = finish_rows(
        X, ORDER, PRESENT, ROWS, SUMS, STATES, SLOPES, ROW_ADJOINTS, DL, DR, DOUT, DX, DQ,
        begin, end, M, K, B, b, d, here, scale, top, dy, mean, largest, total, moment,
        PLAN, DS is not None, D, R, C, W, BL, CT, LOW, FAST,
    )  # fmt: skip
    tl.store(PARTS + slot * 6 * (K + 1), dcp)
    if DS is not None:
        by_top = tl.load(place(COLUMN_ADJOINTS, 0, 2, B, b, 5 * D) + 4 * D + d, mask=here & is_first, other=0.0)
        tl.store(DS + slot * D + d, ds + top * (by_top * LOG2E), mask=here)
