// One bag in scratch: its samples centred and padded, loops over its rows, and the log-sum-exps of both
// directions with their derivatives, which is what the entropic solvers are made of.
#pragma once

#include "job.h"
#include "simd.h"

namespace {

// Hands out aligned pieces of one block. With no block it only counts, so sizes are stated in one place.
struct Arena {
    char *base;
    size_t used;
    template <class T> T *take(int64_t n) {
        T *p = base ? (T *)(base + used) : nullptr;
        used += (size_t(n) * sizeof(T) + 63) / 64 * 64;
        return p;
    }
};

template <int N> struct Int {
    static constexpr int value = N;
};

// f(Int<R>, n) for blocks of R rows. Four at a time share the loads of what is per feature.
template <class F> UOTPOOL_INLINE void row_blocks(int64_t begin, int64_t end, F f) {
    int64_t n = begin;
    for (; n + 4 <= end; n += 4)
        f(Int<4>{}, n);
    for (; n < end; ++n)
        f(Int<1>{}, n);
}

// Below this a sum of exponentials relative to a bound, not to its largest term, may have lost what counts.
template <class T> constexpr T TRUSTED = sizeof(T) == 4 ? T(0x1p-60) : T(0x1p-500);
// Stands for -infinity in the padding, where 0 * infinity must not arise.
template <class T> constexpr T NOTHING = sizeof(T) == 4 ? T(-3e38) : T(-1e300);

// What a derivative is summed with: X, for that by c; or the exponents, where they matter more than X (sinkhorn.h).
enum { OF_X, OF_EXPONENT };

// log sum over n of exp(c X + v), for each feature; kept for the derivative. E = 2^(c2 X + v2 - ref2), always computed in
// this order: the maximum was found by it, so no rounding can make an exponent positive.
template <class T> struct ColumnLse {
    T c, c2;
    bool tight; // ref2 is the maximum of the column; else it is 0, a bound
    T *v2, *ref2, *inverse, *L;
};

// log sum over d of exp(c X + u), for each sample. E = 2^(c2 X + u2 - ref2).
template <class T> struct RowLse {
    T c, c2;
    T *u2, *ref2, *inverse, *R;
};

template <class T> struct Bag {
    int64_t N, D, Np, Dp, chunk, chunks;
    T *X;        // (N, Dp): minus the maximum of the column, 0 in the padding
    T *top;      // (Dp): these maxima
    T *centred;  // (Dp): the maxima minus the largest of them
    T *dX;       // (N, Dp): derivative by X
    T *partial;  // (chunks, 2, Dp): sums over the rows of a chunk
    double *scalar; // (chunks)
    const Team *team;

    Bag(Arena &arena, int64_t n, int64_t d, int64_t chunk_rows, bool backward)
        : N(n), D(d), Np(padded<T>(n)), Dp(padded<T>(d)), chunk(chunk_rows), chunks((n + chunk_rows - 1) / chunk_rows) {
        X = arena.take<T>(N * Dp);
        top = arena.take<T>(Dp);
        centred = arena.take<T>(Dp);
        dX = backward ? arena.take<T>(N * Dp) : nullptr;
        partial = chunks > 1 ? arena.take<T>(chunks * 2 * Dp) : nullptr;
        scalar = arena.take<double>(chunks);
        team = nullptr;
    }

    T *per_feature(Arena &arena) const { return arena.take<T>(Dp); }
    T *per_sample(Arena &arena) const { return arena.take<T>(Np); }

    ColumnLse<T> column_lse(Arena &arena) const {
        return {0, 0, false, per_sample(arena), per_feature(arena), per_feature(arena), per_feature(arena)};
    }
    RowLse<T> row_lse(Arena &arena) const {
        return {0, 0, per_feature(arena), per_sample(arena), per_sample(arena), per_sample(arena)};
    }

    // The loops below work on copies of this struct and of the sums they are about (`in`, `q`). A store through a
    // vector pointer may change any memory, as far as the compiler knows, but not what sits in registers.

    // f(begin, end, index) for each chunk of rows.
    template <class F> void over_chunks(F f) {
        if (chunks == 1) {
            f(int64_t(0), N, int64_t(0));
            return;
        }
        struct Context {
            F *f;
            int64_t chunk, N;
        } context = {&f, chunk, N};
        team->run(
            team, chunks,
            [](void *p, int64_t i) {
                Context *c = (Context *)p;
                const int64_t end = (i + 1) * c->chunk;
                (*c->f)(i * c->chunk, end < c->N ? end : c->N, i);
            },
            &context);
    }

    // The same with sums per feature: f(begin, end, index, a, b) adds to a and b, which start at 0. The chunks
    // are summed in order, so the bits do not depend on who worked on which.
    template <class F> void sum_columns(T *a, T *b, F f) {
        over_chunks([&](int64_t begin, int64_t end, int64_t i) {
            T *pa = chunks == 1 ? a : partial + (2 * i) * Dp;
            T *pb = chunks == 1 ? b : partial + (2 * i + 1) * Dp;
            memset(pa, 0, size_t(Dp) * sizeof(T));
            if (b)
                memset(pb, 0, size_t(Dp) * sizeof(T));
            f(begin, end, i, pa, pb);
        });
        if (chunks == 1)
            return;
        for (int64_t d = 0; d < Dp; d += W<T>) {
            V<T> sa = {}, sb = {};
            for (int64_t i = 0; i < chunks; ++i) {
                sa += ld(partial + 2 * i * Dp + d);
                if (b)
                    sb += ld(partial + (2 * i + 1) * Dp + d);
            }
            st(a + d, sa);
            if (b)
                st(b + d, sb);
        }
    }

    double sum_scalars() const {
        double s = 0;
        for (int64_t i = 0; i < chunks; ++i)
            s += scalar[i];
        return s;
    }

    // Largest of at(n, d) over the rows, for each feature; asked for once each. It should capture by value.
    template <class G> void max_columns(T *m, const G &at) {
        over_chunks([&](int64_t begin, int64_t end, int64_t i) {
            const int64_t Dp = this->Dp;
            const G g = at;
            T *const pm = chunks == 1 ? m : partial + i * Dp;
            each<T>(Dp, [&](int64_t d) { st(pm + d, g(begin, d)); });
            row_blocks(begin + 1, end, [&](auto rows, int64_t n) {
                each<T>(Dp, [&](int64_t d) {
                    V<T> x = ld(pm + d);
                    for (int r = 0; r < rows.value; ++r)
                        x = vmax(g(n + r, d), x);
                    st(pm + d, x);
                });
            });
        });
        if (chunks == 1)
            return;
        each<T>(Dp, [&](int64_t d) {
            V<T> x = ld(partial + d);
            for (int64_t i = 1; i < chunks; ++i)
                x = vmax(ld(partial + i * Dp + d), x);
            st(m + d, x);
        });
    }

    // Rows of D entries into padded ones, zeros in the padding; rows NULL means they follow each other.
    void gather(const T *source, const int64_t *rows, T *target) {
        over_chunks([&](int64_t begin, int64_t end, int64_t) {
            for (int64_t n = begin; n < end; ++n)
                each<T>(Dp, [&](int64_t d) { st(target + n * Dp + d, entries(source, rows ? rows[n] : n, d)); });
        });
    }

    // A vector of a row of D entries, of which the last may be shorter.
    UOTPOOL_INLINE V<T> entries(const T *source, int64_t row, int64_t d) const {
        const T *from = source + row * D + d;
        if (D - d >= W<T>)
            return ld_unaligned(from);
        V<T> x = {};
        for (int64_t i = 0; i < D - d; ++i)
            x[i] = from[i];
        return x;
    }

    void scatter(const T *source, const int64_t *rows, T *target) {
        const int64_t whole = D / W<T> * W<T>;
        over_chunks([&](int64_t begin, int64_t end, int64_t) {
            for (int64_t n = begin; n < end; ++n) {
                const T *from = source + n * Dp;
                T *to = target + (rows ? rows[n] : n) * D;
                for (int64_t d = 0; d < whole; d += W<T>)
                    st_unaligned(to + d, ld(from + d));
                for (int64_t d = whole; d < D; ++d)
                    to[d] = from[d];
            }
        });
    }

    void load(const T *source, const int64_t *rows) {
        // The maxima of the columns on the way in.
        max_columns(top, [=, bag = *this](int64_t n, int64_t d) {
            const V<T> x = bag.entries(source, rows ? rows[n] : n, d);
            st(bag.X + n * bag.Dp + d, x);
            return x;
        });
        over_chunks([&](int64_t begin, int64_t end, int64_t i) {
            const int64_t Dp = this->Dp;
            const T *const top = this->top;
            T *const X = this->X;
            V<T> zero = {}; // NaN where an entry is not finite
            row_blocks(begin, end, [&](auto count, int64_t n) {
                each<T>(Dp, [&](int64_t d) {
                    const V<T> m = ld(top + d);
                    for (int r = 0; r < count.value; ++r) {
                        const V<T> x = ld(X + (n + r) * Dp + d) - m;
                        st(X + (n + r) * Dp + d, x);
                        zero += x * 0;
                    }
                });
            });
            scalar[i] = lane_sum<T>(zero);
        });
        if (sum_scalars() != 0)
            // The maxima pass over NaN, and -infinity would just be left out: the result shall show it.
            for (int64_t i = 0; i < N * Dp; ++i)
                X[i] = T(__builtin_nan(""));
        const T most = largest(top, D);
        each<T>(Dp, [&](int64_t d) { st(centred + d, ld(top + d) - most); });
        fill_padding(centred, D, T(0));
    }

    // v2 = (v - max v) log2(e), and the maximum.
    T scale_samples(const T *v, T *v2) const {
        const T m = largest(v, N);
        each<T>(N, [&](int64_t n) { st(v2 + n, (ld(v + n) - m) * LOG2E<T>); });
        return m;
    }

    // Scaled coefficients, and the reference of the exponents: a bound for all, or each column's maximum.
    T prepare(ColumnLse<T> &q, double c, const T *v, bool tight) {
        q.c = T(c);
        q.c2 = T(c) * LOG2E<T>;
        const T m = scale_samples(v, q.v2);
        q.tight = tight || q.c2 < 0; // X and v2 are at most 0; so is every exponent for c >= 0
        if (q.tight)
            max_columns(q.ref2, [X = X, Dp = Dp, c2 = q.c2, v2 = q.v2](int64_t n, int64_t d) {
                return c2 * ld(X + n * Dp + d) + v2[n];
            });
        else
            memset(q.ref2, 0, size_t(Dp) * sizeof(T));
        return m;
    }

    // L = log sum_n exp(c X + v).
    void solve(ColumnLse<T> &q, double c, const T *v, bool tight = false) {
        const T m = prepare(q, c, v, tight);
        sum_columns(q.L, (T *)nullptr, [&](int64_t begin, int64_t end, int64_t, T *acc, T *) {
            const int64_t Dp = this->Dp;
            const T *const X = this->X;
            const auto sums = q;
            row_blocks(begin, end, [&](auto rows, int64_t n) {
                each<T>(Dp, [&](int64_t d) {
                    constexpr int R = decltype(rows)::value;
                    V<T> s = ld(acc + d), e[R];
                    const V<T> ref = ld(sums.ref2 + d);
                    for (int r = 0; r < R; ++r)
                        e[r] = sums.c2 * ld(X + (n + r) * Dp + d) + sums.v2[n + r] - ref;
                    exp2_all<T, R>(e);
                    for (int r = 0; r < R; ++r)
                        s += e[r];
                    st(acc + d, s);
                });
            });
        });
        if (!q.tight && smallest(q.L, D) < TRUSTED<T>)
            return solve(q, c, v, true);
        each<T>(Dp, [&](int64_t d) {
            const V<T> s = ld(q.L + d);
            st(q.inverse + d, 1 / s);
            st(q.L + d, LN2<T> * (log2v<T>(s) + ld(q.ref2 + d)) + m);
        });
    }

    // Given dL, with t = P dL for P = softmax_n: add c t to dX, the row sums of t to dv, and the sum of t X (that of t
    // times the exponent log2 E, for OF_EXPONENT) to `moment`.
    template <int Moment>
    void reverse(const ColumnLse<T> &q, const T *dL, T *dv, double &moment_sum, T *weight) {
        each<T>(Dp, [&](int64_t d) { st(weight + d, ld(dL + d) * ld(q.inverse + d)); });
        fill_padding(weight, D, T(0));
        over_chunks([&](int64_t begin, int64_t end, int64_t i) {
            const int64_t Dp = this->Dp;
            const T *const X = this->X;
            T *const dX = this->dX;
            const auto sums = q;
            double moment = 0;
            row_blocks(begin, end, [&](auto rows, int64_t n) {
                constexpr int R = decltype(rows)::value;
                V<T> row[R] = {}, with_x = {};
                each<T>(Dp, [&](int64_t d) {
                    const V<T> g = ld(weight + d), ref = ld(sums.ref2 + d);
                    V<T> e[R];
                    for (int r = 0; r < R; ++r)
                        e[r] = sums.c2 * ld(X + (n + r) * Dp + d) + sums.v2[n + r] - ref;
                    exp2_all<T, R>(e);
                    for (int r = 0; r < R; ++r) {
                        const int64_t at = (n + r) * Dp + d;
                        const V<T> t = e[r] * g;
                        st(dX + at, ld(dX + at) + sums.c * t);
                        row[r] += t;
                        const V<T> x = ld(X + at);
                        with_x += t * (Moment == OF_X ? x : clamped<T>(sums.c2 * x + sums.v2[n + r] - ref));
                    }
                });
                for (int r = 0; r < R; ++r)
                    dv[n + r] += lane_sum<T>(row[r]);
                moment += lane_sum<T>(with_x);
            });
            scalar[i] = moment;
        });
        moment_sum += sum_scalars();
    }

    // R = log sum_d exp(c X + u).
    void solve(RowLse<T> &q, double c, const T *u, bool tight = false) {
        q.c = T(c);
        q.c2 = T(c) * LOG2E<T>;
        const T m = largest(u, D);
        each<T>(Dp, [&](int64_t d) { st(q.u2 + d, (ld(u + d) - m) * LOG2E<T>); });
        fill_padding(q.u2, D, NOTHING<T>);
        over_chunks([&](int64_t begin, int64_t end, int64_t) {
            const int64_t Dp = this->Dp;
            const T *const X = this->X;
            const auto sums = q;
            row_blocks(begin, end, [&](auto rows, int64_t n) {
                constexpr int R = decltype(rows)::value;
                V<T> row[R] = {}; // left at 0, so that each row is summed tightly, where that is asked for
                if (sums.c2 >= 0 && !tight)
                    each<T>(Dp, [&](int64_t d) {
                        V<T> e[R];
                        for (int r = 0; r < R; ++r)
                            e[r] = sums.c2 * ld(X + (n + r) * Dp + d) + ld(sums.u2 + d);
                        exp2_all<T, R>(e);
                        for (int r = 0; r < R; ++r)
                            row[r] += e[r];
                    });
                for (int r = 0; r < R; ++r) {
                    sums.ref2[n + r] = 0;
                    sums.R[n + r] = lane_sum<T>(row[r]);
                    if (sums.R[n + r] < TRUSTED<T>)
                        sums.R[n + r] = tight_row(q, n + r);
                }
            });
        });
        fill_padding(q.R, N, T(1));
        fill_padding(q.ref2, N, T(0));
        each<T>(N, [&](int64_t n) {
            const V<T> s = ld(q.R + n);
            st(q.inverse + n, 1 / s);
            st(q.R + n, LN2<T> * (log2v<T>(s) + ld(q.ref2 + n)) + m);
        });
    }

    // Sum of one row relative to its own largest exponent.
    T tight_row(RowLse<T> &q, int64_t n) {
        V<T> m = NOTHING<T> - V<T>{};
        each<T>(Dp, [&](int64_t d) { m = vmax(q.c2 * ld(X + n * Dp + d) + ld(q.u2 + d), m); });
        const T ref = q.ref2[n] = lane_max<T>(m);
        V<T> sum = {};
        each<T>(Dp, [&](int64_t d) { sum += exp2v<T>(q.c2 * ld(X + n * Dp + d) + ld(q.u2 + d) - ref); });
        return lane_sum<T>(sum);
    }

    // The same for P = softmax_d, given dR; sets du.
    template <int Moment> void reverse(const RowLse<T> &q, const T *dR, T *du, double &moment_sum) {
        sum_columns(du, (T *)nullptr, [&](int64_t begin, int64_t end, int64_t i, T *acc, T *) {
            const int64_t Dp = this->Dp;
            const T *const X = this->X;
            T *const dX = this->dX;
            const auto sums = q;
            double moment = 0;
            row_blocks(begin, end, [&](auto rows, int64_t n) {
                constexpr int R = decltype(rows)::value;
                V<T> with_x = {};
                T weight[R];
                for (int r = 0; r < R; ++r)
                    weight[r] = dR[n + r] * sums.inverse[n + r];
                each<T>(Dp, [&](int64_t d) {
                    const V<T> u2 = ld(sums.u2 + d);
                    V<T> column = ld(acc + d), e[R];
                    for (int r = 0; r < R; ++r)
                        e[r] = sums.c2 * ld(X + (n + r) * Dp + d) + u2 - sums.ref2[n + r];
                    exp2_all<T, R>(e);
                    for (int r = 0; r < R; ++r) {
                        const int64_t at = (n + r) * Dp + d;
                        const V<T> t = e[r] * weight[r];
                        st(dX + at, ld(dX + at) + sums.c * t);
                        column += t;
                        const V<T> x = ld(X + at);
                        with_x += t * (Moment == OF_X ? x : clamped<T>(sums.c2 * x + u2 - sums.ref2[n + r]));
                    }
                    st(acc + d, column);
                });
                moment += lane_sum<T>(with_x);
            });
            scalar[i] = moment;
        });
        fill_padding(du, D, T(0));
        moment_sum += sum_scalars();
    }

    // mean = sum_n X softmax_n(c X + v); with `top` added it is the pooled output.
    void pool(ColumnLse<T> &q, double c, const T *v, T *mean, bool tight = false) {
        prepare(q, c, v, tight);
        sum_columns(q.inverse, mean, [&](int64_t begin, int64_t end, int64_t, T *den, T *num) {
            const int64_t Dp = this->Dp;
            const T *const X = this->X;
            const auto sums = q;
            row_blocks(begin, end, [&](auto rows, int64_t n) {
                each<T>(Dp, [&](int64_t d) {
                    constexpr int R = decltype(rows)::value;
                    V<T> s = ld(den + d), t = ld(num + d), e[R];
                    const V<T> ref = ld(sums.ref2 + d);
                    for (int r = 0; r < R; ++r)
                        e[r] = sums.c2 * ld(X + (n + r) * Dp + d) + sums.v2[n + r] - ref;
                    exp2_all<T, R>(e);
                    for (int r = 0; r < R; ++r) {
                        s += e[r];
                        t += e[r] * ld(X + (n + r) * Dp + d);
                    }
                    st(den + d, s);
                    st(num + d, t);
                });
            });
        });
        if (!q.tight && smallest(q.inverse, D) < TRUSTED<T>)
            return pool(q, c, v, mean, true);
        each<T>(Dp, [&](int64_t d) {
            const V<T> inverse = 1 / ld(q.inverse + d);
            st(q.inverse + d, inverse);
            st(mean + d, ld(mean + d) * inverse);
        });
    }

    // Given dy, set dX, and add to dv and the moment as `reverse` does.
    template <int Moment>
    void reverse_pool(const ColumnLse<T> &q, const T *dy, const T *mean, T *dv, double &moment_sum, T *weight) {
        for (int64_t d = 0; d < D; ++d)
            weight[d] = dy[d] * q.inverse[d];
        fill_padding(weight, D, T(0));
        over_chunks([&](int64_t begin, int64_t end, int64_t i) {
            const int64_t Dp = this->Dp;
            const T *const X = this->X;
            T *const dX = this->dX;
            const auto sums = q;
            double moment = 0;
            row_blocks(begin, end, [&](auto rows, int64_t n) {
                constexpr int R = decltype(rows)::value;
                V<T> row[R] = {}, with_x = {};
                each<T>(Dp, [&](int64_t d) {
                    const V<T> g = ld(weight + d), ref = ld(sums.ref2 + d), y = ld(mean + d);
                    V<T> e[R];
                    for (int r = 0; r < R; ++r)
                        e[r] = sums.c2 * ld(X + (n + r) * Dp + d) + sums.v2[n + r] - ref;
                    exp2_all<T, R>(e);
                    for (int r = 0; r < R; ++r) {
                        const V<T> x = ld(X + (n + r) * Dp + d);
                        const V<T> share = e[r] * g;
                        const V<T> t = share * (x - y);
                        st(dX + (n + r) * Dp + d, share + sums.c * t);
                        row[r] += t;
                        with_x += t * (Moment == OF_X ? x : clamped<T>(sums.c2 * x + sums.v2[n + r] - ref));
                    }
                });
                for (int r = 0; r < R; ++r)
                    dv[n + r] += lane_sum<T>(row[r]);
                moment += lane_sum<T>(with_x);
            });
            scalar[i] = moment;
        });
        moment_sum += sum_scalars();
    }

    // The plan of these conditionals over the features and this marginal over the samples, in place of X.
    void plan(const RowLse<T> &q, const T *marginal) {
        over_chunks([&](int64_t begin, int64_t end, int64_t) {
            const int64_t Dp = this->Dp;
            T *const X = this->X;
            const auto sums = q;
            for (int64_t n = begin; n < end; ++n) {
                const T factor = sums.inverse[n] * marginal[n];
                each<T>(Dp, [&](int64_t d) {
                    T *x = X + n * Dp + d;
                    st(x, exp2v<T, TO_ZERO>(sums.c2 * ld(x) + ld(sums.u2 + d) - sums.ref2[n]) * factor);
                });
            }
        });
    }

    // Given dP in dX, with t = P dP set dX to c t, `columns` and `row_sums` to its sums, and add to the moment.
    template <int Moment>
    void reverse_plan(const RowLse<T> &q, const T *marginal, T *columns, T *row_sums, double &moment_sum) {
        sum_columns(columns, (T *)nullptr, [&](int64_t begin, int64_t end, int64_t i, T *acc, T *) {
            const int64_t Dp = this->Dp;
            const T *const X = this->X;
            T *const dX = this->dX;
            const auto sums = q;
            double moment = 0;
            for (int64_t n = begin; n < end; ++n) {
                const T factor = sums.inverse[n] * marginal[n];
                V<T> row = {}, with_x = {};
                each<T>(Dp, [&](int64_t d) {
                    const V<T> x = ld(X + n * Dp + d);
                    T *dx = dX + n * Dp + d;
                    const V<T> exponent = sums.c2 * x + ld(sums.u2 + d) - sums.ref2[n];
                    const V<T> m = exp2v<T, TO_ZERO>(exponent) * factor * ld(dx);
                    st(dx, sums.c * m);
                    st(acc + d, ld(acc + d) + m);
                    row += m;
                    with_x += m * (Moment == OF_X ? x : clamped<T>(exponent));
                });
                row_sums[n] = lane_sum<T>(row);
                moment += lane_sum<T>(with_x);
            }
            scalar[i] = moment;
        });
        fill_padding(row_sums, N, T(0));
        moment_sum += sum_scalars();
    }
};

} // namespace
