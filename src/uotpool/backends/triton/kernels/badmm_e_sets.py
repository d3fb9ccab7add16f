"""Entropic Bregman ADMM where a set is the work of one program: one launch each way."""

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
from uotpool.backends.triton.kernels.tiles import (
    LN2,
    LOG2E,
    bounds,
    centred_tops,
    columns,
    join,
    scale_of,
    sign_of,
)


@triton.jit
def forward_set(
    X, PTR, ORDER, PRESENT, WEIGHTS, SCALE, LOGP, LOGQ, TOP, HEAD, SUMS, STATES, ROWS, OUT,
    SLOTS, K, M, N, B, p_step,
    PLAN: tl.constexpr, STEP: tl.constexpr, D: tl.constexpr, R: tl.constexpr, C: tl.constexpr, W: tl.constexpr,
    BL: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Solve a set. Between two passes, threads read what others wrote."""
    b = tl.program_id(0).to(tl.int64)
    begin, end = bounds(PTR, b, M, N)
    d = columns(C, BL)
    here = d < D
    scale = scale_of(SCALE, d, here, STEP, CT)
    az, ratio, c_p, c_s = slopes_of(WEIGHTS, K, 0, CT)
    start_columns(STATES, LOGP, b, p_step, d, here, B, SLOTS, True, D, CT)
    m, s = start_rows(
        X, ORDER, PRESENT, LOGQ, ROWS, SLOTS, begin, end, M, d, here, scale, c_p, D, R, C, W, BL, CT, LOW
    )
    m, s, t = join(m, s, s, tl.abs(scale) * c_p)
    top = tl.where(here & (s != 0.0), m * sign_of(scale), 0.0)
    tl.store(TOP + b * D + d, top, mask=here)
    tl.store(place(SUMS, 0, SLOTS, B, b, 2 * D) + d, m * 0.0, mask=here)
    tl.store(place(SUMS, 0, SLOTS, B, b, 2 * D) + D + d, tl.where(s == 0.0, 1.0, s), mask=here)
    for j in range(0, K):
        tl.debug_barrier()
        a, a1, a2, rho = module_of(WEIGHTS, K, j)
        az, ratio, c_p, c_s = slopes_of(WEIGHTS, K, j, CT)
        u = update_columns(
            SUMS, STATES, LOGP, b, p_step, d, here, B, SLOTS, scale, top, a, a1, rho, az, j, True,
            D, CT, LOW, FAST,
        )  # fmt: skip
        az, ratio, c_p, c_after = slopes_of(WEIGHTS, K, j + 1, CT)
        m, s, t = update_rows(
            X, ORDER, PRESENT, LOGQ, ROWS, SLOTS, begin, end, M, d, here, scale, top, u, a, a2, rho,
            c_s, c_p, ratio, j, 0, D, R, C, W, BL, CT, LOW, FAST,
        )  # fmt: skip
        m, s, t = join(m, s, t, 1.0)
        tl.store(place(SUMS, j + 1, SLOTS, B, b, 2 * D) + d, tl.where(s == 0.0, 0.0, m), mask=here)
        tl.store(place(SUMS, j + 1, SLOTS, B, b, 2 * D) + D + d, tl.where(s == 0.0, 1.0, s), mask=here)
    tl.debug_barrier()
    a, a1, a2, rho = module_of(WEIGHTS, K, K)
    az, ratio, c_p, c_s = slopes_of(WEIGHTS, K, K, CT)
    u = update_columns(
        SUMS, STATES, LOGP, b, p_step, d, here, B, SLOTS, scale, top, a, a1, rho, az, K, True,
        D, CT, LOW, FAST,
    )  # fmt: skip
    m, s, t = update_rows(
        X, ORDER, PRESENT, LOGQ, ROWS, SLOTS, begin, end, M, d, here, scale, top, u, a, a2, rho,
        c_s, c_s, ratio, K, 1 + PLAN, D, R, C, W, BL, CT, LOW, FAST,
    )  # fmt: skip
    if PLAN:
        largest = tl.max(m)
        total = tl.sum(s * tl.exp2(m - largest))
        if HEAD is not None:
            tl.store(HEAD + b, largest)
            tl.store(HEAD + B + b, tl.where(total == 0.0, 1.0, total))
        tl.debug_barrier()
        write_plan(
            X, ORDER, PRESENT, ROWS, OUT, SLOTS, begin, end, M, d, here, scale, top, u, c_s, largest, total, K,
            D, R, W, CT, LOW, FAST,
        )  # fmt: skip
    else:
        m, s, t = join(m, s, t, 1.0)
        m = tl.where(s == 0.0, 0.0, m)
        s = tl.where(s == 0.0, 1.0, s)
        mean = t / s
        tl.store(OUT + b * D + d, top + mean, mask=here)
        if HEAD is not None:
            tl.store(HEAD + b * D + d, mean, mask=here)
            tl.store(place(SUMS, K + 1, SLOTS, B, b, 2 * D) + d, m, mask=here)
            tl.store(place(SUMS, K + 1, SLOTS, B, b, 2 * D) + D + d, s, mask=here)


@triton.jit
def backward_set(
    X, PTR, ORDER, PRESENT, WEIGHTS, SCALE, LOGP, LOGQ, TOP, HEAD, SUMS, STATES, ROWS,
    DOUT, ROW_ADJOINTS, COLUMN_ADJOINTS, DU, DL, DR, SLOPES, DX, DP, DQ, DS, ROW_PARTS, COLUMN_PARTS,
    K, M, N, B, p_step,
    PLAN: tl.constexpr, STEP: tl.constexpr, D: tl.constexpr, R: tl.constexpr, C: tl.constexpr, W: tl.constexpr,
    BL: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Do the way back of a set. Each has its own SLOPES, as a program can only wait for itself."""
    b = tl.program_id(0).to(tl.int64)
    begin, end = bounds(PTR, b, M, N)
    d = columns(C, BL)
    here = d < D
    scale = scale_of(SCALE, d, here, STEP, CT)
    top = tl.load(TOP + b * D + d, mask=here, other=0.0)
    slopes = SLOPES + b * 3 * (K + 1)
    row_parts = ROW_PARTS + b * 6 * (K + 1)
    column_parts = COLUMN_PARTS + b * 4 * (K + 1)
    a, a1, a2, rho = module_of(WEIGHTS, K, K)
    az, ratio, c_p, c = slopes_of(WEIGHTS, K, K, CT)
    keep_slopes(slopes, ratio, c_p, c, K, K)
    u = tl.load(place(STATES, K + 1, K + 2, B, b, 3 * D) + d, mask=here, other=LOW)
    dy = top
    mean = top
    m = top
    largest = a * 0.0
    total = a * 0.0
    moment = a * 0.0
    if PLAN:
        largest = tl.load(HEAD + b)
        total = tl.load(HEAD + B + b)
        moment = plan_moment(
            X, ORDER, PRESENT, ROWS, DOUT, K + 2, begin, end, M, d, here, scale, top, u, c, largest, total, K,
            D, R, W, BL, CT, LOW, FAST,
        )  # fmt: skip
    else:
        s = tl.load(place(SUMS, K + 1, K + 2, B, b, 2 * D) + D + d, mask=here, other=1.0)
        m = tl.load(place(SUMS, K + 1, K + 2, B, b, 2 * D) + d, mask=here, other=-LOW)
        dy = tl.load(DOUT + b * D + d, mask=here, other=0.0).to(CT) / s
        mean = tl.load(HEAD + b * D + d, mask=here, other=0.0)
    du, dcp, dcs, dratio, da, drho, da2 = reverse_rows(
        X, ORDER, PRESENT, LOGQ, ROWS, ROW_ADJOINTS, DR, DOUT, begin, end, M, d, here,
        scale, top, dy * LN2, m, mean, largest, total, moment, u, a, a2, rho, c, c, ratio, K, K,
        1 + PLAN, D, R, C, W, BL, CT, LOW, FAST,
    )  # fmt: skip
    keep_parts(row_parts, dcp, dcs, dratio, da, drho, da2, K, K, 1 + PLAN)
    tl.store(DU + b * D + d, du, mask=here)
    for i in range(0, K + 1):
        tl.debug_barrier()
        j = K - i
        columns_of_set(
            WEIGHTS, SCALE, LOGP, TOP, SUMS, STATES, COLUMN_ADJOINTS, DU, DL, DP, column_parts, b, p_step,
            K, j, B, STEP, D, C, BL, CT, LOW, FAST,
        )  # fmt: skip
        tl.debug_barrier()
        if j > 0:
            az, ratio, c_next, c = slopes_of(WEIGHTS, K, j, CT)
            a, a1, a2, rho = module_of(WEIGHTS, K, j - 1)
            az, ratio_before, c_p, c = slopes_of(WEIGHTS, K, j - 1, CT)
            keep_slopes(slopes, ratio_before, c_p, c, K, j - 1)
            top = tl.load(TOP + b * D + d, mask=here, other=0.0)  # anew, as registers are few
            scale = scale_of(SCALE, d, here, STEP, CT)
            u = tl.load(place(STATES, j, K + 2, B, b, 3 * D) + d, mask=here, other=LOW)
            m = tl.load(place(SUMS, j, K + 2, B, b, 2 * D) + d, mask=here, other=-LOW)
            by_sum = tl.load(place(DL, j, K + 1, B, b, D) + d, mask=here, other=0.0)
            du, dcp, dcs, dratio, da, drho, da2 = reverse_rows(
                X, ORDER, PRESENT, LOGQ, ROWS, ROW_ADJOINTS, DR, DOUT, begin, end, M, d, here,
                scale, top, by_sum, m, by_sum, largest, total, moment, u, a, a2, rho, c, c_next, ratio, K,
                j - 1, 0, D, R, C, W, BL, CT, LOW, FAST,
            )  # fmt: skip
            keep_parts(row_parts, dcp, dcs, dratio, da, drho, da2, K, j - 1, 0)
            tl.store(DU + b * D + d, du, mask=here)
    tl.debug_barrier()
    if not PLAN:
        s = tl.load(place(SUMS, K + 1, K + 2, B, b, 2 * D) + D + d, mask=here, other=1.0)
        dy = tl.load(DOUT + b * D + d, mask=here, other=0.0).to(CT) / s
        mean = tl.load(HEAD + b * D + d, mask=here, other=0.0)
    top = tl.load(TOP + b * D + d, mask=here, other=0.0)
    scale = scale_of(SCALE, d, here, STEP, CT)
    ds, dcp = finish_rows(
        X, ORDER, PRESENT, ROWS, SUMS, STATES, slopes, ROW_ADJOINTS, DL, DR, DOUT, DX, DQ,
        begin, end, M, K, B, b, d, here, scale, top, dy, mean, largest, total, moment,
        PLAN, DS is not None, D, R, C, W, BL, CT, LOW, FAST,
    )  # fmt: skip
    tl.store(row_parts, dcp)
    if DS is not None:
        by_top = tl.load(place(COLUMN_ADJOINTS, 0, 2, B, b, 5 * D) + 4 * D + d, mask=here, other=0.0)
        tl.store(DS + b * D + d, ds + top * (by_top * LOG2E), mask=here)


@triton.jit
def columns_of_set(
    WEIGHTS, SCALE, LOGP, TOP, SUMS, STATES, COLUMN_ADJOINTS, DU, DL, DP, parts, b, p_step, K, j, B,
    STEP: tl.constexpr, D: tl.constexpr, C: tl.constexpr, BL: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr,
    FAST: tl.constexpr,
):  # fmt: skip
    """Do the columns of update j backwards, each in one thread only, while a tile has all in every warp."""
    d = tl.arange(0, C * BL)
    here = d < D
    a, a1, a2, rho = module_of(WEIGHTS, K, j)
    az, ratio, c_p, c_s = slopes_of(WEIGHTS, K, j, CT)
    top = tl.load(TOP + b * D + d, mask=here, other=0.0)
    centred = centred_tops(scale_of(SCALE, d, here, STEP, CT), top, here, LOW, CT)
    reverse_columns(
        SUMS, STATES, LOGP, COLUMN_ADJOINTS, DL, DP, parts, tl.load(DU + b * D + d, mask=here, other=0.0),
        centred, b, p_step, d, here, B, a, a1, rho, az, K, j, D, CT, FAST,
    )  # fmt: skip
