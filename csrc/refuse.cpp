#include "api.h"

int refuse(const uotpool_call &c, int backward, Sizes &sizes) {
    if (c.dtype != UOTPOOL_FLOAT32 && c.dtype != UOTPOOL_FLOAT64)
        return UOTPOOL_BAD_ARGUMENT;
    if (c.solver < 0 || c.solver >= uotpool_kernels_baseline.solver_count)
        return UOTPOOL_BAD_ARGUMENT;
    if (c.head != UOTPOOL_POOLED && c.head != UOTPOOL_PLAN)
        return UOTPOOL_BAD_ARGUMENT;
    // Scratch is at most 2 K + 7 matrices (badmm_q.h) and some dozens of vectors for each step, and 4 matrices more
    // for a set that is solved in double (widen.cpp): with these bounds neither its size nor any other product
    // overflows.
    const int64_t max = int64_t(1) << 40;
    if (c.K < 1 || c.K > (1 << 20) || c.B < 0 || c.B > max || c.M < 0 || c.M > max || c.N < 0 || c.N > max)
        return UOTPOOL_BAD_ARGUMENT;
    if (c.D < 1 || c.D > (int64_t(1) << 31) || c.threads < 1 || c.threads > 4096)
        return UOTPOOL_BAD_ARGUMENT;
    int64_t bytes;
    if (__builtin_mul_overflow(c.M + 64, (c.D + 64) * 32, &bytes) || __builtin_mul_overflow(bytes, c.K + 64, &bytes) ||
        __builtin_mul_overflow(c.B, c.D * 8, &bytes) || __builtin_mul_overflow(c.B, c.K * 32, &bytes))
        return UOTPOOL_BAD_ARGUMENT;
    sizes.item = c.dtype == UOTPOOL_FLOAT32 ? 4 : 8;
    sizes.per_step = uotpool_kernels_baseline.solvers[c.solver].coefficients;

    for (int64_t which = 0; which < UOTPOOL_COEFFICIENTS; ++which) {
        const bool is_scale = which == UOTPOOL_SCALE;
        const int64_t transform = c.transform[which], length = c.length[which];
        if (transform == UOTPOOL_NONE) {
            if (length != 0 || c.coefficient[which] || c.dcoefficient[which] || which < sizes.per_step)
                return UOTPOOL_BAD_ARGUMENT;
            continue;
        }
        if (transform < UOTPOOL_FIXED || transform > UOTPOOL_LINEAR || (which >= sizes.per_step && !is_scale))
            return UOTPOOL_BAD_ARGUMENT;
        if (is_scale ? transform == UOTPOOL_SOFTPLUS || transform == UOTPOOL_EXP : transform == UOTPOOL_LINEAR)
            return UOTPOOL_BAD_ARGUMENT;
        if (length != 1 && length != (is_scale ? c.D : c.K))
            return UOTPOOL_BAD_ARGUMENT;
        if (!c.coefficient[which])
            return UOTPOOL_NULL_POINTER;
        if (transform == UOTPOOL_FIXED && c.dcoefficient[which])
            return UOTPOOL_BAD_ARGUMENT;
        if (!aligned(c.coefficient[which], transform == UOTPOOL_FIXED ? 8 : sizes.item) ||
            !aligned(c.dcoefficient[which], sizes.item))
            return UOTPOOL_MISALIGNED;
    }
    if ((!c.X && c.M > 0) || (c.rows && !c.ptr))
        return UOTPOOL_NULL_POINTER;
    const bool some = c.head == UOTPOOL_POOLED ? c.B > 0 : c.M > 0;
    if (some && (backward ? !c.dout : !c.out))
        return UOTPOOL_NULL_POINTER;
    if ((c.dlog_p0 && !c.log_p0) || (c.dlog_q0 && !c.log_q0))
        return UOTPOOL_NULL_POINTER;
    const void *floats[] = {c.X, c.log_p0, c.log_q0, c.dout, c.out, c.dX, c.dlog_p0, c.dlog_q0};
    for (const void *p : floats)
        if (!aligned(p, sizes.item))
            return UOTPOOL_MISALIGNED;
    if (!aligned(c.ptr, 8) || !aligned(c.rows, 8))
        return UOTPOOL_MISALIGNED;

    if (!c.ptr) {
        int64_t rows;
        if (__builtin_mul_overflow(c.B, c.N, &rows) || rows != c.M)
            return UOTPOOL_BAD_ARGUMENT;
        return UOTPOOL_OK;
    }
    if (c.ptr[0] != 0 || (c.rows ? c.ptr[c.B] > c.M : c.ptr[c.B] != c.M))
        return UOTPOOL_BAD_ARGUMENT;
    for (int64_t b = 0; b < c.B; ++b)
        if (c.ptr[b + 1] < c.ptr[b])
            return UOTPOOL_BAD_ARGUMENT;
    if (c.rows)
        for (int64_t i = 0; i < c.ptr[c.B]; ++i)
            if (c.rows[i] < 0 || c.rows[i] >= c.M)
                return UOTPOOL_BAD_ARGUMENT;
    return UOTPOOL_OK;
}
