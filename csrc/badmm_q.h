// Quadratic Bregman ADMM: what comes out of the updates of badmm_q_forward.h, and the derivative.
#pragma once

#include "badmm_q_forward.h"

namespace {

template <class T, Place Where, bool Scaled> struct QuadraticBadmm : QuadraticForward<T, Where, Scaled> {
    using Base = QuadraticForward<T, Where, Scaled>;
    using Base::set, Base::in, Base::keep, Base::d, Base::dlse_d, Base::dlse_n, Base::L, Base::LARGE;
    using Base::state, Base::primal;
    T *u, *now, *v;
    T *A, *B; // (N, Dp): derivatives by log S, by the P that Z holds
    T *rows, *columns, *rows_S, *columns_S;
    T *tie_d;     // large sets: what an entry of the column gets if it is the largest of P
    double *sums; // (chunks, 3)

    // Z, which is left, has up to alpha0 times an entry of P in it.
    static Units units(const Source<T> &in, int64_t k) {
        return {in.rho(k), in.alpha0(k) + in.rho(k)};
    }

    QuadraticBadmm(const Source<T> &source, Set<T, Where, Scaled> &b, Arena &arena) : Base(source, b, arena) {
        u = set.per_feature(arena);
        now = set.per_feature(arena);
        v = set.per_sample(arena);
        sums = arena.take<double>(set.chunks * 3);
        if (keep) {
            A = L; // no longer needed by then
            B = LARGE ? this->E : arena.take<T>(set.N * set.Dp);
            tie_d = LARGE ? set.per_feature(arena) : nullptr;
            rows = set.per_sample(arena);
            rows_S = set.per_sample(arena);
            columns = set.per_feature(arena);
            columns_S = set.per_feature(arena);
        }
    }

    void run() {
        this->iterate();
        const QuadraticPrimal<T> &closing = primal(in.K());
        const Marginals<T> &m = closing.marginals;
        this->each_n([&](int64_t n) { st(v + n, ld(m.log_q + n) - ld(m.lse_n + n)); });
        if (!in.plan())
            pool();
        if (keep)
            reverse();
        else if (in.plan())
            store_plan(closing);
        else
            in.store_pooled(set.top, this->mean);
    }

    // softmax over the samples of log S = L + v, in place of L, times `now`; the means.
    void pool() {
        const int64_t Dp = set.Dp;
        set.max_columns(
            u, [](int64_t) { return 0; },
            [Dp, L = L, v = v](int64_t n, int64_t i, int) { return ld(L + n * Dp + i) + v[n]; });
        set.sum_columns(now, this->mean, [&](int64_t begin, int64_t end, int64_t, T *den, T *num) {
            const int64_t Dp = set.Dp;
            const T *const u = this->u, *const v = this->v;
            T *const L = this->L;
            row_blocks(begin, end, [&](auto count, int64_t n) {
                constexpr int R = decltype(count)::value;
                auto given = set.template samples<R>(n);
                each<T>(Dp, [&](int64_t i) {
                    V<T> s = ld(den + i), t = ld(num + i);
                    const V<T> top = ld(u + i);
                    for (int r = 0; r < R; ++r) {
                        const int64_t at = (n + r) * Dp + i;
                        const V<T> e = exp2v<T, TO_ZERO>((ld(L + at) + v[n + r] - top) * LOG2E<T>);
                        st(L + at, e);
                        s += e;
                        t += e * given.get(r, i);
                    }
                    st(den + i, s);
                    st(num + i, t);
                });
            });
        });
        this->each_d([&](int64_t i) { st(this->mean + i, ld(this->mean + i) / ld(now + i)); });
    }

    // A vector of F of the last update.
    UOTPOOL_INLINE V<T> last_F(const QuadraticPrimal<T> &p, int64_t n, int64_t i) const {
        const int64_t at = n * set.Dp + i;
        if constexpr (LARGE)
            return exp2v<T, TO_ZERO>((ld(L + at) - p.max_n[n]) * LOG2E<T>);
        else
            return ld(p.F + at);
    }

    void store_plan(const QuadraticPrimal<T> &p) {
        const CallerMatrix<T> out = in.matrix(in.call().out);
        set.over_chunks([&](int64_t begin, int64_t end, int64_t) {
            for (int64_t n = begin; n < end; ++n) {
                const T factor = p.inverse_n[n] * p.marginals.q[n];
                auto plan = out.template block<1>(n);
                each<T>(set.Dp, [&](int64_t i) { plan.set(0, i, last_F(p, n, i) * factor); });
                plan.finish();
            }
        });
    }

    void reverse() {
        const int64_t K = in.K();
        this->start_reverse();
        if (in.plan())
            reverse_plan(primal(K));
        else
            reverse_pool();
        zero_B();
        double da = 0, drho = 0, daz = 0, dmax = 0;
        reverse_update(K, 0, da, drho, daz);
        finish_step(state(K), K - 1, da, drho, dmax);
        for (int64_t k = K - 1; k >= 0; --k) {
            const QuadraticState<T> &next = state(k + 1);
            const T tie = tie_value(next, dmax);
            if (LARGE)
                this->each_n([&](int64_t n) { st(rows_S + n, ld(rows_S + n) + ld(next.tied_n + n) * tie); });
            else
                add_to_largest_S(next, primal(k), tie);
            double dboth = 0;
            drho = 0;
            this->reverse_duals(state(k).duals, primal(k).marginals, next.duals, k, drho, dboth);
            drho += dboth;
            da = daz;
            reverse_update(k, dmax, da, drho, daz);
            finish_step(state(k), k, da, drho, dmax);
        }
        add_to_largest_prior(this->p0, set.D, dmax * state(0).max, columns_S);
        add_to_largest_prior(this->q0, set.N, dmax * state(0).max, rows_S);
        this->finish_reverse(columns_S, rows_S);
    }

    // rho had a max(P, S) of the update before added.
    void finish_step(const QuadraticState<T> &s, int64_t k, double da, double drho, double &dmax) {
        in.add_derivative(UOTPOOL_ALPHA0, k, da + drho * s.max);
        in.add_derivative(UOTPOOL_RHO, k, drho);
        dmax = drho * in.alpha0(k);
    }

    void zero_B() {
        set.over_chunks([&](int64_t begin, int64_t end, int64_t) {
            memset(B + begin * set.Dp, 0, size_t((end - begin) * set.Dp) * sizeof(T));
        });
    }

    // What each of the largest entries gets of the derivative by them.
    static T tie_value(const QuadraticState<T> &s, double dmax) {
        return s.tied > 0 ? T(dmax * s.max / double(s.tied)) : T(0);
    }

    // Small sets: the derivative by the largest entries goes to those by their logarithms, A.
    void add_to_largest_S(const QuadraticState<T> &s, const QuadraticPrimal<T> &made_by, T value) {
        this->each_largest_S(s, made_by, [&](int64_t n, int64_t i) {
            A[n * set.Dp + i] += value;
            rows_S[n] += value;
        });
    }

    void add_to_largest_P(const QuadraticState<T> &s, T value) {
        this->each_largest_P(s, [&](int64_t n, int64_t i) {
            A[n * set.Dp + i] += value;
            columns[i] += value;
        });
    }

    static void add_to_largest_prior(const T *p, int64_t n, double value, T *dlog) {
        const T max = largest(p, n);
        int64_t count = 0;
        for (int64_t i = 0; i < n; ++i)
            count += p[i] == max;
        for (int64_t i = 0; i < n; ++i)
            if (p[i] == max)
                dlog[i] += T(value / double(count));
    }

    // A = derivative by log S, rows_S its row sums, and dX, from that by the pooled output.
    void reverse_pool() {
        const int64_t Dp = set.Dp;
        const T *dy = in.dy();
        for (int64_t i = 0; i < set.D; ++i)
            u[i] = dy[i] / now[i];
        fill_padding(u, set.D, T(0));
        set.over_chunks([&](int64_t begin, int64_t end, int64_t) {
            for (int64_t n = begin; n < end; ++n) {
                auto given = set.template samples<1>(n);
                auto wanted = set.template derivatives<1>(n);
                V<T> row = {};
                each<T>(Dp, [&](int64_t i) {
                    const int64_t at = n * Dp + i;
                    const V<T> share = ld(L + at) * ld(u + i);
                    const V<T> t = share * (given.get(0, i) - ld(this->mean + i));
                    wanted.set(0, i, share);
                    st(A + at, t);
                    row += t;
                });
                wanted.finish();
                rows_S[n] = lane_sum<T>(row);
            }
        });
        fill_padding(rows_S, set.N, T(0));
    }

    void reverse_plan(const QuadraticPrimal<T> &p) {
        const int64_t Dp = set.Dp;
        const CallerMatrix<T> given = in.matrix(in.call().dout);
        set.over_chunks([&](int64_t begin, int64_t end, int64_t) {
            for (int64_t n = begin; n < end; ++n) {
                const T factor = p.inverse_n[n] * p.marginals.q[n];
                auto wanted = set.template derivatives<1>(n);
                V<T> row = {};
                each<T>(Dp, [&](int64_t i) {
                    const V<T> t = given.entries(n, i) * last_F(p, n, i) * factor; // from L, where A is
                    wanted.set(0, i, V<T>{});
                    st(A + n * Dp + i, t);
                    row += t;
                });
                wanted.finish();
                rows_S[n] = lane_sum<T>(row);
            }
        });
        fill_padding(rows_S, set.N, T(0));
    }

    double total_of(int which) const {
        double s = 0;
        for (int64_t i = 0; i < set.chunks; ++i)
            s += sums[3 * i + which];
        return s;
    }

    // Through update k: from A, rows_S, B, dlog_p, dlog_q and dlse_n to the same of the update before, daz and d, and
    // to dX. dmax is by the largest entry of the state that it led to.
    void reverse_update(int64_t k, double dmax, double &da, double &drho, double &daz) {
        const QuadraticState<T> &s = state(k);
        const QuadraticPrimal<T> &o = primal(k);
        const QuadraticState<T> *const made = k < in.K() ? &state(k + 1) : nullptr;
        const T tie = made ? tie_value(*made, dmax) : T(0);
        const int64_t N = set.N;
        const Marginals<T> &m = o.marginals;
        const double a = m.a, rho = m.rho;
        const T by_rho = T(1 / rho), a_rho = T(a / rho), az_rho = T(s.az / rho);

        // log S = Y + log q - lse;  Y = log P + (az Pb - a P + f + z2) / rho
        this->reverse_q(s.duals, m, rows_S);
        this->each_n([&](int64_t n) { st(v + n, ld(dlse_n + n) * ld(o.inverse_n + n)); });
        this->each_d([&](int64_t i) { st(now + i, ld(m.p + i) * ld(o.inverse_d + i)); });
        set.sum_columns(columns, (T *)nullptr, [&](int64_t begin, int64_t end, int64_t c, T *acc, T *) {
            const int64_t Dp = set.Dp;
            const T *const v = this->v, *const now = this->now, *const by_d = s.by_d;
            double with_P = 0, with_Pb = 0;
            this->blocks(begin, end, [&](auto count, int64_t first, const RowBuffers<T> &buffers) UOTPOOL_INLINED {
                constexpr int R = decltype(count)::value;
                const QuadraticEntries<T> here = this->template entries<R>(k, first, buffers, true);
                T *const A = this->A + first * Dp, *const B = this->B + first * Dp;
                T tied[R];
                for (int r = 0; LARGE && r < R; ++r)
                    tied[r] = made && made->tied_n[first + r] > 0 ? tie : T(0);
                V<T> row[R] = {}, sum_P = {}, sum_Pb = {};
                each<T>(Dp, [&](int64_t i) {
                    V<T> column = ld(acc + i);
                    const V<T> by_P = ld(now + i), by_Pb = ld(by_d + i);
                    for (int r = 0; r < R; ++r) {
                        const int64_t at = r * Dp + i;
                        const V<T> F = ld(here.F + at);
                        V<T> y = ld(A + at);
                        if constexpr (LARGE)
                            y += where_one<T>(F, tied[r] - V<T>{});
                        y += F * v[first + r];
                        const V<T> P = ld(here.E + at) * by_P, yP = y * P;
                        const V<T> g = y - a_rho * yP + P * ld(B + at);
                        st(A + at, g);
                        st(B + at, az_rho * y);
                        column += g;
                        row[r] += y;
                        sum_P += yP;
                        sum_Pb += y * ld(here.Eb + at) * by_Pb;
                    }
                    st(acc + i, column);
                });
                for (int r = 0; r < R; ++r)
                    rows[first + r] = lane_sum<T>(row[r]);
                with_P += lane_sum<T>(sum_P);
                with_Pb += lane_sum<T>(sum_Pb);
            });
            sums[3 * c] = with_P;
            sums[3 * c + 1] = with_Pb;
        });
        fill_padding(rows, N, T(0));
        fill_padding(columns, set.D, T(0));
        double with_P = total_of(0), with_Pb = total_of(1);
        da -= with_P / rho;
        daz = with_Pb / rho;
        drho -= (s.az * with_Pb - a * with_P + this->total_n([&](int64_t n) {
            return ld(rows + n) * (ld(s.duals.z + n) + ld(s.duals.z2 + n));
        })) / (rho * rho);
        this->each_n([&](int64_t n) {
            st(d.z + n, ld(rows + n) * by_rho);
            st(d.z2 + n, ld(d.z2 + n) + ld(rows + n) * by_rho);
        });
        if (LARGE) {
            this->each_d([&](int64_t i) {
                const V<T> count = made ? ld(made->tied_d + i) : V<T>{};
                st(columns + i, ld(columns + i) + count * tie);
                st(tie_d + i, count > 0 ? tie - V<T>{} : V<T>{});
            });
        } else if (made) {
            add_to_largest_P(*made, tie);
        }

        // log P = Y + log p - lse;  Y = log S + (X + z1 - az Pb - f - a S) / rho
        this->reverse_p(m, columns);
        this->each_d([&](int64_t i) { st(u + i, ld(dlse_d + i) * ld(o.inverse_d + i)); });
        fill_padding(u, set.D, T(0));
        set.sum_columns(columns, columns_S, [&](int64_t begin, int64_t end, int64_t c, T *acc, T *acc_S) {
            const int64_t Dp = set.Dp;
            const T *const u = this->u, *const by_d = s.by_d, *const by_n = s.by_n, *const tie_d = this->tie_d;
            const auto scale = set.scale;
            double with_X = 0, with_S = 0, with_Pb_too = 0;
            this->blocks(begin, end, [&](auto count, int64_t first, const RowBuffers<T> &buffers) UOTPOOL_INLINED {
                constexpr int R = decltype(count)::value;
                const QuadraticEntries<T> here = this->template entries<R>(k, first, buffers, false);
                T *const A = this->A + first * Dp, *const B = this->B + first * Dp;
                auto given = set.template samples<R>(first);
                auto wanted = set.template derivatives<R>(first);
                auto products = set.products(c);
                V<T> row[R] = {}, row_S[R] = {}, sum_S = {}, sum_Pb = {};
                each<T>(Dp, [&](int64_t i) {
                    V<T> column = ld(acc + i), column_S = ld(acc_S + i);
                    const V<T> by_E = ld(u + i), by_Pb = ld(by_d + i);
                    const auto by_Z = scale.times(by_rho, i);
                    for (int r = 0; r < R; ++r) {
                        const int64_t at = r * Dp + i;
                        const V<T> E = ld(here.E + at);
                        V<T> y = ld(A + at);
                        if constexpr (LARGE)
                            y += where_one<T>(E, ld(tie_d + i));
                        y += E * by_E;
                        const V<T> yS = y * ld(here.Fb + at) * by_n[first + r];
                        const V<T> g = y - a_rho * yS;
                        st(A + at, g);
                        st(B + at, ld(B + at) - az_rho * y);
                        wanted.set(r, i, wanted.get(r, i) + y * by_Z);
                        column += y;
                        column_S += g;
                        row[r] += y;
                        row_S[r] += g;
                        products.add(y, given.get(r, i));
                        sum_S += yS;
                        sum_Pb += y * ld(here.Eb + at) * by_Pb;
                    }
                    products.finish(by_rho, i);
                    st(acc + i, column);
                    st(acc_S + i, column_S);
                });
                wanted.finish();
                for (int r = 0; r < R; ++r) {
                    rows[first + r] = lane_sum<T>(row[r]);
                    rows_S[first + r] = lane_sum<T>(row_S[r]);
                }
                with_X += lane_sum<T>(products.all);
                with_S += lane_sum<T>(sum_S);
                with_Pb_too += lane_sum<T>(sum_Pb);
            });
            sums[3 * c] = with_X;
            sums[3 * c + 1] = with_S;
            sums[3 * c + 2] = with_Pb_too;
        });
        fill_padding(columns, set.D, T(0));
        fill_padding(columns_S, set.D, T(0));
        const double with_S = total_of(1);
        with_Pb = total_of(2);
        da -= with_S / rho;
        daz -= with_Pb / rho;
        drho -= (total_of(0) - s.az * with_Pb - a * with_S - dot(rows, s.duals.z, N) + this->total_d([&](int64_t i) {
            return ld(columns + i) * (ld(set.centred + i) + ld(s.duals.z1 + i));
        })) / (rho * rho);
        this->each_d([&](int64_t i) { st(d.z1 + i, ld(d.z1 + i) + ld(columns + i) * by_rho); });
        set.add_by_top(columns, 1 / rho);
        this->each_n([&](int64_t n) { st(d.z + n, ld(d.z + n) - ld(rows + n) * by_rho); });
    }
};

} // namespace
