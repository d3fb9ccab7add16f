// Quadratic Bregman ADMM, entry by entry, for some rows: an update of badmm_q.h is row by row but for what stands for
// the columns, so that of a large set can be computed again for a few rows at a time, in the cache.
//
// These functions are not inlined: the same machine code runs at the first time and again, so a number that was the
// largest of its row or column, 1 in E or F, is that again, to the bit.
#pragma once

#include "solver.h"

namespace {

#define UOTPOOL_ONCE __attribute__((noinline)) static

// Rows of Dp entries that follow each other; updates of them.
template <class T, int R> struct QuadraticRows {
    // L += (s X + z1 + top - az Pb - f - a S) / rho + shift, with by_x = s / rho, u = (top + z1) / rho,
    // before = az p / sum / rho; and the largest of each column, where `max` has those of other rows.
    UOTPOOL_ONCE void P_update(int64_t Dp, T *L, const T *x, const T *by_x, const T *Eb, const T *Fb, const T *u,
                               const T *before, const T *shift, const T *f, const T *by_n, T move, T a_rho, T *max) {
        T v[R], part[R];
        for (int r = 0; r < R; ++r) {
            v[r] = shift[r] - f[r] * move;
            part[r] = by_n[r] * a_rho;
        }
        each<T>(Dp, [&](int64_t i) {
            const V<T> column = ld(u + i), by_Eb = ld(before + i), move_x = ld(by_x + i);
            V<T> top = ld(max + i);
            for (int r = 0; r < R; ++r) {
                const int64_t at = r * Dp + i;
                const V<T> y = ld(L + at) + ld(x + at) * move_x + (column + v[r]) - ld(Eb + at) * by_Eb -
                               ld(Fb + at) * part[r];
                st(L + at, y);
                top = vmax(y, top);
            }
            st(max + i, top);
        });
    }

    // E = exp(L - top) for each feature, and `sums` plus its sums.
    UOTPOOL_ONCE void column_exps(int64_t Dp, const T *L, const T *top, T *E, T *sums) {
        each<T>(Dp, [&](int64_t i) {
            const V<T> max = ld(top + i);
            V<T> e[R], column = ld(sums + i);
            for (int r = 0; r < R; ++r)
                e[r] = (ld(L + r * Dp + i) - max) * LOG2E<T>;
            exp2_all<T, R, TO_ZERO>(e);
            for (int r = 0; r < R; ++r) {
                st(E + r * Dp + i, e[r]);
                column += e[r];
            }
            st(sums + i, column);
        });
    }

    // L += (az Pb - a P + f + z2) / rho + u, with now = a p / sum / rho; and the largest of each row.
    UOTPOOL_ONCE void S_update(int64_t Dp, T *L, const T *Eb, const T *E, const T *u, const T *before, const T *now,
                               const T *f, const T *z2, T move, T *max) {
        T v[R];
        V<T> top[R];
        for (int r = 0; r < R; ++r) {
            v[r] = (f[r] + z2[r]) * move;
            top[r] = NOTHING<T> - V<T>{};
        }
        each<T>(Dp, [&](int64_t i) {
            const V<T> column = ld(u + i), by_Eb = ld(before + i), by_E = ld(now + i);
            for (int r = 0; r < R; ++r) {
                const int64_t at = r * Dp + i;
                const V<T> y = ld(L + at) + (column + v[r]) + ld(Eb + at) * by_Eb - ld(E + at) * by_E;
                st(L + at, y);
                top[r] = vmax(y, top[r]);
            }
        });
        for (int r = 0; r < R; ++r)
            max[r] = lane_max<T>(top[r]);
    }

    // F = exp(L - max) for each sample, and its sums.
    UOTPOOL_ONCE void row_exps(int64_t Dp, const T *L, const T *max, T *F, T *sums) {
        V<T> sum[R] = {};
        each<T>(Dp, [&](int64_t i) {
            V<T> e[R];
            for (int r = 0; r < R; ++r)
                e[r] = (ld(L + r * Dp + i) - max[r]) * LOG2E<T>;
            exp2_all<T, R, TO_ZERO>(e);
            for (int r = 0; r < R; ++r) {
                st(F + r * Dp + i, e[r]);
                sum[r] += e[r];
            }
        });
        for (int r = 0; r < R; ++r)
            sums[r] = lane_sum<T>(sum[r]);
    }
};

// x in the lanes in which e is 1, 0 in others.
template <class T> UOTPOOL_INLINE V<T> where_one(V<T> e, V<T> x) { return e == T(1) - V<T>{} ? x : V<T>{}; }

// Buffers for the rows that a thread is at, each for 4 rows but for the last one.
template <class T> struct RowBuffers {
    static constexpr int rows = 6 * 4 + 1; // in all
    T *x, *L, *E, *F, *Eb, *Fb;
    T *unread; // maxima and sums of columns, which are not wanted again
};

// Of these there is one for each thread. A task takes a free one and puts it back: at most as many run as there are.
struct Slots {
    int *busy;
    int64_t count;

    int64_t take() const {
        for (int64_t i = 0;; i = (i + 1) % count)
            if (!__atomic_exchange_n(busy + i, 1, __ATOMIC_ACQUIRE))
                return i;
    }
    void give(int64_t i) const { __atomic_store_n(busy + i, 0, __ATOMIC_RELEASE); }
};

} // namespace
