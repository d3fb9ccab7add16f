// One set: the log-sum-exps of both directions with their derivatives, which is what the entropic solvers are made of.
#pragma once

#include "storage.h"

namespace {

// Below this a sum of exponentials relative to a bound, not to its largest term, may have lost what counts.
template <class T> constexpr T MIN_RELIABLE_SUM = sizeof(T) == 4 ? T(0x1p-60) : T(0x1p-500);
// Stands for -infinity in the padding, where 0 * infinity must not arise.
template <class T> constexpr T NOTHING = sizeof(T) == 4 ? T(-3e38) : T(-1e300);

// log sum over n of exp(c X + v), for each feature; kept for the derivative. E = 2^(c2 X + v2 - ref2), always computed
// by fma: so was the maximum, and no rounding can make an exponent positive.
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

// The scale s of each feature, where there is one: the plan is that of Z = s X, but X itself is pooled, so X is what a
// set holds, and s is multiplied into the coefficients that X has in exponents and their derivatives.
template <class T, bool Scaled> struct Scale {
    using Bits = typename Lanes<T>::I;
    static constexpr typename Lanes<T>::Bits SIGN = typename Lanes<T>::Bits(1) << (8 * sizeof(T) - 1);
    T *of; // (Dp), 0 in the padding

    // c s, for one number c or one for each of these features.
    template <class Number> UOTPOOL_INLINE auto times(Number c, int64_t d) const {
        if constexpr (Scaled)
            return c * ld(of + d);
        else
            return c;
    }
    // The sign bits of the scale, which turn x so that it grows where Z does.
    UOTPOOL_INLINE auto signs(int64_t d) const {
        if constexpr (Scaled)
            return (Bits)ld(of + d) & SIGN;
        else
            return 0;
    }
    template <class Signs> UOTPOOL_INLINE static V<T> upwards(V<T> x, Signs signs) {
        if constexpr (Scaled)
            return (V<T>)((Bits)x ^ signs);
        else
            return x;
    }
};

// Sums over a block of rows of a derivative t times what it is multiplied by in an exponent: of t Z over all entries,
// and, for the derivative by the scale, of t X for each feature.
template <class T, bool Scaled> struct Products {
    Scale<T, Scaled> scale;
    T *by_scale; // (Dp)
    V<T> all = {}, column = {};

    UOTPOOL_INLINE void add(V<T> t, V<T> x) {
        if constexpr (Scaled)
            column += t * x;
        else
            all += t * x;
    }
    // Has to follow the rows of a vector of features. c t is the derivative by Z.
    UOTPOOL_INLINE void finish(T c, int64_t d) {
        if constexpr (Scaled) {
            all += scale.times(column, d);
            st(by_scale + d, ld(by_scale + d) + c * column);
            column = V<T>{};
        }
    }
};

template <class T, Place Where, bool Scaled> struct Set : Storage<T, Where> {
    using Base = Storage<T, Where>;
    using Base::N, Base::D, Base::Dp, Base::top, Base::scalar, Base::per_feature, Base::per_sample, Base::over_chunks;
    using Base::sum_columns, Base::sum_scalars, Base::max_columns, Base::sample, Base::chunks;
    Scale<T, Scaled> scale;
    T *centred;   // (Dp): the maxima of the columns of Z minus the largest of them
    double depth; // of the entry of Z farthest below the maximum of its column, or the maximum farthest below the
                  // largest one; NaN where an entry is not finite
    T *by_scale;  // (chunks, Dp): sums over the rows of (X - top) times the derivative by Z through the plan
    T *by_top;    // (Dp): sums over the rows of the latter, which is the derivative by s top

    Set(Arena &arena, CallerMatrix<T> given, CallerMatrix<T> wanted, int64_t n, int64_t chunk_rows, bool backward)
        : Base(arena, given, wanted, n, chunk_rows, backward), scale{Scaled ? per_feature(arena) : nullptr},
          centred(per_feature(arena)) {
        by_scale = Scaled && backward ? arena.take<T>(chunks * Dp) : nullptr;
        by_top = Scaled && backward ? per_feature(arena) : nullptr;
    }

    ColumnLse<T> column_lse(Arena &arena) const {
        return {0, 0, false, per_sample(arena), per_feature(arena), per_feature(arena), per_feature(arena)};
    }
    RowLse<T> row_lse(Arena &arena) const {
        return {0, 0, per_feature(arena), per_sample(arena), per_sample(arena), per_sample(arena)};
    }

    void load() {
        // The maxima of the columns on the way in; the minima, where the scale is negative: there Z is largest.
        const auto signs = [scale = scale](int64_t d) { return scale.signs(d); };
        max_columns(top, signs, [set = *this](int64_t n, int64_t d, auto turned) {
            const V<T> x = set.source.entries(n, d);
            if constexpr (Where == IN_SCRATCH)
                st(set.X + n * set.Dp + d, x);
            return set.scale.upwards(x, turned);
        });
        if constexpr (Scaled)
            each<T>(Dp, [&](int64_t d) { st(top + d, scale.upwards(ld(top + d), signs(d))); });
        over_chunks([&](int64_t begin, int64_t end, int64_t i) {
            const int64_t Dp = this->Dp;
            const T *const top = this->top;
            const auto scale = this->scale;
            T *const X = this->X;
            V<T> zero[4] = {}, below[4] = {}; // NaN where an entry is not finite; how far below the maximum it is
            row_blocks(begin, end, [&](auto count, int64_t n) {
                constexpr int R = decltype(count)::value;
                auto given = this->template samples<R>(n);
                each<T>(Dp, [&](int64_t d) {
                    const V<T> m = ld(top + d);
                    const auto s = scale.times(T(1), d);
                    for (int r = 0; r < R; ++r) {
                        V<T> x;
                        if constexpr (Where == IN_SCRATCH) {
                            x = ld(X + (n + r) * Dp + d) - m;
                            st(X + (n + r) * Dp + d, x);
                        } else {
                            x = given.get(r, d);
                        }
                        const V<T> z = x * s;
                        zero[r] += z * 0;
                        below[r] = vmax(-z, below[r]);
                    }
                });
            });
            const V<T> deepest = vmax(vmax(below[0], below[1]), vmax(below[2], below[3]));
            scalar[i] = lane_sum<T>(zero[0] + zero[1] + zero[2] + zero[3]) + lane_max<T>(deepest);
        });
        const bool finite = sum_scalars() >= 0;
        if (!finite) {
            // The maxima pass over NaN, and -infinity would just be left out: the result shall show it.
            if constexpr (Where == IN_SCRATCH)
                for (int64_t i = 0; i < N * Dp; ++i)
                    this->X[i] = T(__builtin_nan(""));
            else // in what X is taken relative to
                for (int64_t d = 0; d < Dp; ++d)
                    top[d] = T(__builtin_nan(""));
        }
        depth = centre();
        for (int64_t i = 0; i < this->chunks; ++i)
            depth = scalar[i] > depth ? scalar[i] : depth;
        if (!finite)
            depth = __builtin_nan("");
    }

    // Sets `centred`; the distance of the largest and the smallest of the maxima.
    double centre() {
        if constexpr (!Scaled) {
            const T max = largest(top, D);
            each<T>(Dp, [&](int64_t d) { st(centred + d, ld(top + d) - max); });
            fill_padding(centred, D, T(0));
            return double(max) - double(smallest(top, D));
        }
        each<T>(Dp, [&](int64_t d) { st(centred + d, scale.times(ld(top + d), d)); });
        const double max = largest(centred, D), least = smallest(centred, D);
        // In double: of numbers that are large and alike, the rounding of a product would be all that is left.
        for (int64_t d = 0; d < D; ++d)
            centred[d] = T(double(scale.of[d]) * double(top[d]) - max);
        fill_padding(centred, D, T(0));
        return max - least;
    }

    Products<T, Scaled> products(int64_t chunk) const { return {scale, Scaled ? by_scale + chunk * Dp : nullptr}; }

    void start_derivatives() {
        if constexpr (Scaled) {
            memset(by_scale, 0, size_t(chunks * Dp) * sizeof(T));
            memset(by_top, 0, size_t(Dp) * sizeof(T));
        }
    }

    // A step's derivative by s top is c times these.
    void add_by_top(const T *columns, double c) {
        if constexpr (Scaled)
            each<T>(D, [&](int64_t d) { st(by_top + d, ld(by_top + d) + T(c) * ld(columns + d)); });
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
            max_columns(
                q.ref2, [scale = scale, c2 = q.c2](int64_t d) { return scale.times(c2, d); },
                [set = *this, v2 = q.v2](int64_t n, int64_t d, auto c2) {
                    return fma<T>(c2, set.sample(n, d), v2[n]);
                });
        else
            memset(q.ref2, 0, size_t(Dp) * sizeof(T));
        return m;
    }

    // E of R rows; c2 is that of q, times the scale.
    template <Underflow U = TO_LOWEST, int R, class Number>
    UOTPOOL_INLINE static void column_exps(const ColumnLse<T> &q, Number c2, Samples<T, R, Where> &given, int64_t n,
                                           int64_t d, V<T> ref, V<T> (&e)[R]) {
        for (int r = 0; r < R; ++r)
            e[r] = fma<T>(c2, given.get(r, d), q.v2[n + r]) - ref;
        exp2_all<T, R, U>(e);
    }
    template <Underflow U = TO_LOWEST, int R, class Number>
    UOTPOOL_INLINE static void row_exps(const RowLse<T> &q, Number c2, Samples<T, R, Where> &given, int64_t n, int64_t d,
                                        V<T> u2, V<T> (&e)[R]) {
        for (int r = 0; r < R; ++r)
            e[r] = fma<T>(c2, given.get(r, d), u2) - q.ref2[n + r];
        exp2_all<T, R, U>(e);
    }

    // L = log sum_n exp(c X + v).
    void solve(ColumnLse<T> &q, double c, const T *v, bool tight = false) {
        const T m = prepare(q, c, v, tight);
        sum_columns(q.L, (T *)nullptr, [&](int64_t begin, int64_t end, int64_t, T *acc, T *) {
            const int64_t Dp = this->Dp;
            const auto sums = q;
            const auto scale = this->scale;
            row_blocks(begin, end, [&](auto rows, int64_t n) {
                constexpr int R = decltype(rows)::value;
                auto given = this->template samples<R>(n);
                each<T>(Dp, [&](int64_t d) {
                    V<T> s = ld(acc + d), e[R];
                    const V<T> ref = ld(sums.ref2 + d);
                    column_exps(sums, scale.times(sums.c2, d), given, n, d, ref, e);
                    for (int r = 0; r < R; ++r)
                        s += e[r];
                    st(acc + d, s);
                });
            });
        });
        if (!q.tight && smallest(q.L, D) < MIN_RELIABLE_SUM<T>)
            return solve(q, c, v, true);
        each<T>(Dp, [&](int64_t d) {
            const V<T> s = ld(q.L + d);
            st(q.inverse + d, 1 / s);
            st(q.L + d, LN2<T> * (log2v<T>(s) + ld(q.ref2 + d)) + m);
        });
    }

    // Given dL, with t = P dL for P = softmax_n: add c t to dX, the row sums of t to dv, and the sum of t times
    // the exponent log2 E to `moment`.
    void reverse(const ColumnLse<T> &q, const T *dL, T *dv, double &moment_sum, T *weight) {
        reverse_columns<false>(q, dL, nullptr, dv, moment_sum, weight);
    }

    // Given dy of the pooled output, which is `mean` with t = P dy (X - mean): set dX, and add the same.
    void reverse_pool(const ColumnLse<T> &q, const T *dy, const T *mean, T *dv, double &moment_sum, T *weight) {
        reverse_columns<true>(q, dy, mean, dv, moment_sum, weight);
    }

    template <bool Pooled>
    void reverse_columns(const ColumnLse<T> &q, const T *dL, const T *mean, T *dv, double &moment_sum, T *weight) {
        for (int64_t d = 0; d < D; ++d) // dy is the caller's, and not aligned
            weight[d] = dL[d] * q.inverse[d];
        fill_padding(weight, D, T(0));
        over_chunks([&](int64_t begin, int64_t end, int64_t i) {
            const int64_t Dp = this->Dp;
            const auto sums = q;
            const auto scale = this->scale;
            double moment = 0;
            row_blocks(begin, end, [&](auto rows, int64_t n) {
                constexpr int R = decltype(rows)::value;
                auto given = this->template samples<R>(n);
                auto wanted = this->template derivatives<R>(n);
                auto products = this->products(i);
                V<T> row[R] = {}, with_e = {};
                each<T>(Dp, [&](int64_t d) {
                    const V<T> g = ld(weight + d), ref = ld(sums.ref2 + d);
                    const auto c = scale.times(sums.c, d), c2 = scale.times(sums.c2, d);
                    V<T> e[R], y = {};
                    if constexpr (Pooled)
                        y = ld(mean + d);
                    column_exps(sums, c2, given, n, d, ref, e);
                    for (int r = 0; r < R; ++r) {
                        const V<T> x = given.get(r, d), share = e[r] * g;
                        const V<T> t = Pooled ? share * (x - y) : share;
                        wanted.set(r, d, (Pooled ? share : wanted.get(r, d)) + c * t);
                        row[r] += t;
                        with_e += t * clamped<T>(fma<T>(c2, x, sums.v2[n + r]) - ref);
                        products.add(t, x);
                    }
                    products.finish(sums.c, d);
                });
                wanted.finish();
                for (int r = 0; r < R; ++r)
                    dv[n + r] += lane_sum<T>(row[r]);
                moment += lane_sum<T>(with_e);
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
            const auto sums = q;
            const auto scale = this->scale;
            row_blocks(begin, end, [&](auto rows, int64_t n) {
                constexpr int R = decltype(rows)::value;
                auto given = this->template samples<R>(n);
                V<T> row[R] = {}; // left at 0, so that each row is summed tightly, where that is asked for
                if (sums.c2 >= 0 && !tight)
                    each<T>(Dp, [&](int64_t d) {
                        V<T> e[R];
                        const auto c2 = scale.times(sums.c2, d);
                        for (int r = 0; r < R; ++r)
                            e[r] = fma<T>(c2, given.get(r, d), ld(sums.u2 + d));
                        exp2_all<T, R>(e);
                        for (int r = 0; r < R; ++r)
                            row[r] += e[r];
                    });
                for (int r = 0; r < R; ++r) {
                    sums.ref2[n + r] = 0;
                    sums.R[n + r] = lane_sum<T>(row[r]);
                    if (sums.R[n + r] < MIN_RELIABLE_SUM<T>)
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
        auto given = this->template samples<1>(n);
        V<T> m = NOTHING<T> - V<T>{};
        each<T>(Dp, [&](int64_t d) { m = vmax(fma<T>(scale.times(q.c2, d), given.get(0, d), ld(q.u2 + d)), m); });
        const T ref = q.ref2[n] = lane_max<T>(m);
        V<T> sum = {};
        each<T>(Dp, [&](int64_t d) {
            sum += exp2v<T>(fma<T>(scale.times(q.c2, d), given.get(0, d), ld(q.u2 + d)) - ref);
        });
        return lane_sum<T>(sum);
    }

    // The same for P = softmax_d, given dR; sets du.
    void reverse(const RowLse<T> &q, const T *dR, T *du, double &moment_sum) {
        sum_columns(du, (T *)nullptr, [&](int64_t begin, int64_t end, int64_t i, T *acc, T *) {
            const int64_t Dp = this->Dp;
            const auto sums = q;
            const auto scale = this->scale;
            double moment = 0;
            row_blocks(begin, end, [&](auto rows, int64_t n) {
                constexpr int R = decltype(rows)::value;
                auto given = this->template samples<R>(n);
                auto wanted = this->template derivatives<R>(n);
                auto products = this->products(i);
                V<T> with_e = {};
                T weight[R];
                for (int r = 0; r < R; ++r)
                    weight[r] = dR[n + r] * sums.inverse[n + r];
                each<T>(Dp, [&](int64_t d) {
                    const V<T> u2 = ld(sums.u2 + d);
                    const auto c = scale.times(sums.c, d), c2 = scale.times(sums.c2, d);
                    V<T> column = ld(acc + d), e[R];
                    row_exps(sums, c2, given, n, d, u2, e);
                    for (int r = 0; r < R; ++r) {
                        const V<T> t = e[r] * weight[r];
                        wanted.set(r, d, wanted.get(r, d) + c * t);
                        column += t;
                        const V<T> x = given.get(r, d);
                        with_e += t * clamped<T>(fma<T>(c2, x, u2) - sums.ref2[n + r]);
                        products.add(t, x);
                    }
                    products.finish(sums.c, d);
                    st(acc + d, column);
                });
                wanted.finish();
                moment += lane_sum<T>(with_e);
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
            const auto sums = q;
            const auto scale = this->scale;
            row_blocks(begin, end, [&](auto rows, int64_t n) {
                constexpr int R = decltype(rows)::value;
                auto given = this->template samples<R>(n);
                each<T>(Dp, [&](int64_t d) {
                    V<T> s = ld(den + d), t = ld(num + d), e[R];
                    const V<T> ref = ld(sums.ref2 + d);
                    column_exps(sums, scale.times(sums.c2, d), given, n, d, ref, e);
                    for (int r = 0; r < R; ++r) {
                        s += e[r];
                        t += e[r] * given.get(r, d);
                    }
                    st(den + d, s);
                    st(num + d, t);
                });
            });
        });
        if (!q.tight && smallest(q.inverse, D) < MIN_RELIABLE_SUM<T>)
            return pool(q, c, v, mean, true);
        each<T>(Dp, [&](int64_t d) {
            const V<T> inverse = 1 / ld(q.inverse + d);
            st(q.inverse + d, inverse);
            st(mean + d, ld(mean + d) * inverse);
        });
    }

    // The plan of these conditionals over the features and this marginal over the samples.
    void store_plan(const RowLse<T> &q, const T *marginal, const CallerMatrix<T> &out) {
        over_chunks([&](int64_t begin, int64_t end, int64_t) {
            const int64_t Dp = this->Dp;
            const auto sums = q;
            const auto scale = this->scale;
            for (int64_t n = begin; n < end; ++n) {
                const T factor = sums.inverse[n] * marginal[n];
                auto given = this->template samples<1>(n);
                auto plan = out.template block<1>(n);
                each<T>(Dp, [&](int64_t d) {
                    const V<T> exponent = fma<T>(scale.times(sums.c2, d), given.get(0, d), ld(sums.u2 + d));
                    plan.set(0, d, exp2v<T, TO_ZERO>(exponent - sums.ref2[n]) * factor);
                });
                plan.finish();
            }
        });
    }

    // Given dP in dX, with t = P dP set dX to c t, `columns` and `row_sums` to its sums, and add to the moment.
    void reverse_plan(const RowLse<T> &q, const T *marginal, T *columns, T *row_sums, double &moment_sum) {
        sum_columns(columns, (T *)nullptr, [&](int64_t begin, int64_t end, int64_t i, T *acc, T *) {
            const int64_t Dp = this->Dp;
            const auto sums = q;
            const auto scale = this->scale;
            double moment = 0;
            for (int64_t n = begin; n < end; ++n) {
                const T factor = sums.inverse[n] * marginal[n];
                auto given = this->template samples<1>(n);
                auto wanted = this->template derivatives<1>(n);
                auto products = this->products(i);
                V<T> row = {}, with_e = {};
                each<T>(Dp, [&](int64_t d) {
                    const V<T> x = given.get(0, d);
                    const V<T> exponent = fma<T>(scale.times(sums.c2, d), x, ld(sums.u2 + d)) - sums.ref2[n];
                    const V<T> m = exp2v<T, TO_ZERO>(exponent) * factor * wanted.get(0, d);
                    wanted.set(0, d, scale.times(sums.c, d) * m);
                    st(acc + d, ld(acc + d) + m);
                    row += m;
                    with_e += m * clamped<T>(exponent);
                    products.add(m, x);
                    products.finish(sums.c, d);
                });
                wanted.finish();
                row_sums[n] = lane_sum<T>(row);
                moment += lane_sum<T>(with_e);
            }
            scalar[i] = moment;
        });
        fill_padding(row_sums, N, T(0));
        moment_sum += sum_scalars();
    }
};

} // namespace
