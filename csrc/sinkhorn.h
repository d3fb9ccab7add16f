// Sinkhorn: solvers/sinkhorn.py in potentials, with its derivative.
//
// With X = Xc + top (Xc is what Set holds) step k does, from v = 0 and with a = alpha0[k],
// tau_i = alpha_i / (a + alpha_i),
//
//     L_d = log sum_n exp((Xc + v) / a)              u = tau1 (a (log p0 - L) - top)
//     R_n = log sum_d exp((Xc + top + u) / a)        v = tau2 a (log q0 - R)
//
// With a scale s all of this is with s Xc <= 0 and s top in place of Xc and top; only the pooled output is of X.
//
// Constants in u and v cancel, so `centred` serves for `top`. With E = exp(Xc / a), f = exp(v / a) and
// w = exp((top + u) / a) both sums are products of one matrix, sum_n E f and sum_d E w; and the pooled output, which
// has the a of the last step, is sum_n X E f / sum_n E f. That is the shared way: an exponential an entry for each
// different alpha0. It is for the pooled output only, is given up for a set when a sum comes out too small to be
// trusted (small a), and not tried for one in place, where E would cost as much memory as X: then each sum has its own
// exponentials.
#pragma once

#include "solver.h"

namespace {

template <class T> struct SinkhornStep {
    ColumnLse<T> columns; // shared: c, c2, inverse and L
    RowLse<T> rows;       // shared: R and inverse = 1 / sum_d E w
    T *v, *u;             // v / a at the start; (top + u) / a
    T *f, *w;             // shared: exp(v - maximum), exp(u - maximum)
    double a = 0, tau1 = 0, tau2 = 0;
};

template <class T, Place Where, bool Scaled> struct Sinkhorn {
    const Source<T> &in;
    Set<T, Where, Scaled> &set;
    const bool keep;
    bool shared;
    SinkhornStep<T> *steps;
    ColumnLse<T> last;
    T *log_p0, *p0, *log_q0, *q0, *v, *mean, *log_marginal, *marginal;
    T *E, *f; // shared: exp(c2 X log 2), exp(v - maximum) of the output
    T E_c2;   // what E was made with; NaN: nothing yet
    T *dlog_p0, *dlog_q0, *du, *dv, *dL, *dR, *weight, *scratch_d, *scratch_n;

    static Units units(const Source<T> &in, int64_t k) { return {in.alpha0(k), in.alpha0(k)}; }

    Sinkhorn(const Source<T> &source, Set<T, Where, Scaled> &b, Arena &arena)
        : in(source), set(b), keep(source.backward()) {
        shared = Where == IN_SCRATCH && !in.plan();
        const int64_t count = keep ? in.K() : 1;
        steps = arena.take<SinkhornStep<T>>(count);
        for (int64_t k = 0; k < count; ++k) {
            const SinkhornStep<T> s = {set.column_lse(arena), set.row_lse(arena),     set.per_sample(arena),
                                       set.per_feature(arena), set.per_sample(arena), set.per_feature(arena)};
            if (steps)
                steps[k] = s;
        }
        last = set.column_lse(arena);
        E = shared ? arena.take<T>(set.N * set.Dp) : nullptr;
        log_p0 = set.per_feature(arena);
        p0 = set.per_feature(arena);
        mean = set.per_feature(arena);
        log_q0 = set.per_sample(arena);
        q0 = set.per_sample(arena);
        v = set.per_sample(arena);
        f = set.per_sample(arena);
        log_marginal = set.per_sample(arena);
        marginal = set.per_sample(arena);
        if (keep) {
            dlog_p0 = set.per_feature(arena);
            du = set.per_feature(arena);
            dL = set.per_feature(arena);
            weight = set.per_feature(arena);
            dlog_q0 = set.per_sample(arena);
            dv = set.per_sample(arena);
            dR = set.per_sample(arena);
            scratch_d = set.per_feature(arena);
            scratch_n = set.per_sample(arena);
        }
    }

    void run() {
        in.log_priors(log_p0, p0, log_q0, q0);
        if (!iterate()) {
            shared = false;
            iterate();
        }
        const SinkhornStep<T> &s = step(in.K() - 1);
        if (in.plan()) { // P = exp(X / a + u + v) of mass 1; its rows are softmax_d times exp(R + v)
            each<T>(set.N, [&](int64_t n) { st(log_marginal + n, ld(s.rows.R + n) + ld(v + n)); });
            normalise(log_marginal, marginal, set.N);
        } else if (!shared) {
            set.pool(last, 1 / s.a, v, mean);
        }
        if (keep)
            reverse();
        else if (in.plan())
            set.store_plan(s.rows, marginal, in.matrix(in.call().out));
        else
            in.store_pooled(set.top, mean);
    }

    SinkhornStep<T> &step(int64_t k) { return steps[keep ? k : 0]; }

    // v / a after K steps, and the output the shared way. False: that cannot be trusted here.
    bool iterate() {
        memset(v, 0, size_t(set.Np) * sizeof(T));
        E_c2 = T(__builtin_nan(""));
        for (int64_t k = 0; k < in.K(); ++k) {
            SinkhornStep<T> &s = step(k);
            s.a = in.alpha0(k);
            s.tau1 = in.alpha1(k) / (s.a + in.alpha1(k));
            s.tau2 = in.alpha2(k) / (s.a + in.alpha2(k));
            const T a = T(s.a), c = T(1 / s.a), tau1 = T(s.tau1), tau2 = T(s.tau2);
            each<T>(set.N, [&](int64_t n) { st(s.v + n, ld(v + n) * c); });
            if (shared) {
                if (!shared_columns(s))
                    return false;
            } else {
                set.solve(s.columns, 1 / s.a, s.v);
            }
            each<T>(set.D, [&](int64_t d) {
                const V<T> top = ld(set.centred + d);
                const V<T> u = tau1 * (a * (ld(log_p0 + d) - ld(s.columns.L + d)) - top);
                st(s.u + d, (u + top) * c);
            });
            if (shared) {
                if (!shared_rows(s))
                    return false;
            } else {
                set.solve(s.rows, 1 / s.a, s.u);
            }
            each<T>(set.N, [&](int64_t n) { st(v + n, tau2 * a * (ld(log_q0 + n) - ld(s.rows.R + n))); });
            const T max = largest(v, set.N);
            each<T>(set.N, [&](int64_t n) { st(v + n, ld(v + n) - max); });
            fill_padding(v, set.N, T(0));
        }
        const T c = T(1 / step(in.K() - 1).a);
        each<T>(set.N, [&](int64_t n) { st(v + n, ld(v + n) * c); });
        return !shared || shared_pool();
    }

    // factor = exp(v - max v), and the maximum.
    T exponentials(const T *v, int64_t count, T *factor) const {
        const T max = largest(v, count);
        each<T>(count, [&](int64_t i) { st(factor + i, exp2v<T>((ld(v + i) - max) * LOG2E<T>)); });
        fill_padding(factor, count, T(0));
        return max;
    }

    // E for c2, if it is another one, and `sums` += sum_n E factor.
    void column_sums(T c2, const T *factor, T *sums) {
        // Copies stay in registers; see Set.
        const int64_t Dp = set.Dp;
        const T *const X = set.X;
        const auto scale = set.scale;
        T *const E = this->E;
        const bool fresh = c2 != E_c2;
        E_c2 = c2;
        if (fresh)
            row_blocks(0, set.N, [&](auto rows, int64_t n) {
                constexpr int R = decltype(rows)::value;
                each<T>(Dp, [&](int64_t d) {
                    V<T> column = ld(sums + d), e[R];
                    const auto by_X = scale.times(c2, d);
                    for (int r = 0; r < R; ++r)
                        e[r] = by_X * ld(X + (n + r) * Dp + d);
                    exp2_all<T, R>(e);
                    for (int r = 0; r < R; ++r) {
                        st(E + (n + r) * Dp + d, e[r]);
                        column += e[r] * factor[n + r];
                    }
                    st(sums + d, column);
                });
            });
        else
            row_blocks(0, set.N, [&](auto rows, int64_t n) {
                each<T>(Dp, [&](int64_t d) {
                    V<T> column = ld(sums + d);
                    for (int r = 0; r < rows.value; ++r)
                        column += ld(E + (n + r) * Dp + d) * factor[n + r];
                    st(sums + d, column);
                });
            });
    }

    bool shared_columns(SinkhornStep<T> &s) {
        ColumnLse<T> &q = s.columns;
        q.c = T(1 / s.a);
        q.c2 = q.c * LOG2E<T>;
        const T max = exponentials(s.v, set.N, s.f);
        memset(q.L, 0, size_t(set.Dp) * sizeof(T));
        column_sums(q.c2, s.f, q.L);
        if (smallest(q.L, set.D) < MIN_RELIABLE_SUM<T>)
            return false;
        each<T>(set.D, [&](int64_t d) {
            const V<T> sum = ld(q.L + d);
            if (keep)
                st(q.inverse + d, 1 / sum);
            st(q.L + d, LN2<T> * log2v<T>(sum) + max);
        });
        return true;
    }

    bool shared_rows(SinkhornStep<T> &s) {
        RowLse<T> &q = s.rows;
        const T max = exponentials(s.u, set.D, s.w);
        const int64_t Dp = set.Dp;
        const T *const E = this->E, *const factor = s.w;
        T *const sums = q.R;
        row_blocks(0, set.N, [&](auto rows, int64_t n) {
            constexpr int R = decltype(rows)::value;
            V<T> row[R] = {};
            each<T>(Dp, [&](int64_t d) {
                const V<T> w = ld(factor + d);
                for (int r = 0; r < R; ++r)
                    row[r] += ld(E + (n + r) * Dp + d) * w;
            });
            for (int r = 0; r < R; ++r)
                sums[n + r] = lane_sum<T>(row[r]);
        });
        if (smallest(q.R, set.N) < MIN_RELIABLE_SUM<T>)
            return false;
        fill_padding(q.R, set.N, T(1));
        each<T>(set.N, [&](int64_t n) {
            const V<T> sum = ld(q.R + n);
            if (keep)
                st(q.inverse + n, 1 / sum);
            st(q.R + n, LN2<T> * log2v<T>(sum) + max);
        });
        return true;
    }

    bool shared_pool() {
        exponentials(v, set.N, f);
        const int64_t Dp = set.Dp;
        const T *const X = set.X, *const E = this->E, *const factor = f;
        T *const den = last.inverse, *const num = mean;
        memset(den, 0, size_t(Dp) * sizeof(T));
        memset(num, 0, size_t(Dp) * sizeof(T));
        row_blocks(0, set.N, [&](auto rows, int64_t n) {
            each<T>(Dp, [&](int64_t d) {
                V<T> s = ld(den + d), t = ld(num + d);
                for (int r = 0; r < rows.value; ++r) {
                    const V<T> e = ld(E + (n + r) * Dp + d) * factor[n + r];
                    s += e;
                    t += e * ld(X + (n + r) * Dp + d);
                }
                st(den + d, s);
                st(num + d, t);
            });
        });
        if (smallest(den, set.D) < MIN_RELIABLE_SUM<T>)
            return false;
        each<T>(Dp, [&](int64_t d) {
            const V<T> inverse = 1 / ld(den + d);
            st(den + d, inverse);
            st(num + d, ld(num + d) * inverse);
        });
        return true;
    }

    // Derivatives by a = alpha0[k]. u and v are in the units of X, so that of an exponent (X + u) / a, at given u, is
    // minus itself / a, and that of a L is L minus the mean exponent: an entropy, H. Put together like this, and with
    // the exponents relative to about the largest, no large terms are left to cancel:
    //     by v, with dR = -tau2 a dv:   sum dv tau2 (log q0 - H_n) = sum dv tau2 log q0 + sum dR H_n / a
    // where sum dR H = -sum dR log(inverse) - sum t exponent, t = P dR. Likewise by u.
    void reverse() {
        const int64_t N = set.N, D = set.D, last_k = in.K() - 1;
        double moment = 0, da;
        memset(dlog_p0, 0, size_t(set.Dp) * sizeof(T));
        memset(dlog_q0, 0, size_t(set.Np) * sizeof(T));
        memset(dv, 0, size_t(set.Np) * sizeof(T));
        memset(dR, 0, size_t(set.Np) * sizeof(T));
        memset(du, 0, size_t(set.Dp) * sizeof(T));
        set.start_derivatives();
        if (in.plan()) {
            // log P = exponent + log inverse + log marginal, the marginal being norm(exp(R + v / a))
            const RowLse<T> &q = step(last_k).rows;
            set.load_derivatives(in.matrix(in.call().dout));
            set.reverse_plan(q, marginal, du, dv, moment);
            da = LN2<double> * moment + entropy_part(dv, q.inverse, N);
            const T all = T(sum(dv, N));
            each<T>(N, [&](int64_t n) {
                st(dR + n, -all * ld(marginal + n));
                st(dv + n, ld(dv + n) - all * ld(marginal + n));
            });
            da += dot(dv, log_marginal, N);
        } else {
            if (shared)
                reverse_shared_pool(moment);
            else
                set.reverse_pool(last, in.dy(), mean, dv, moment, weight);
            da = LN2<double> * moment;
        }
        da = -da / step(last_k).a;
        double a_of_v = step(last_k).a; // dv is by v / a with this one
        for (int64_t k = last_k; k >= 0; --k) {
            SinkhornStep<T> &s = step(k);
            const T a = T(s.a), tau1 = T(s.tau1), tau2 = T(s.tau2);
            // v = tau2 a (log q0 - R), R = log sum_d exp(X / a + u); constants do not count, as dv sums to 0
            each<T>(N, [&](int64_t n) {
                st(dv + n, ld(dv + n) / T(a_of_v));
                st(scratch_n + n, ld(log_q0 + n) - ld(s.rows.R + n));
            });
            const T max_v = largest(scratch_n, N);
            const double dtau2 = s.a * total<T>(N, [&](int64_t n) {
                return ld(dv + n) * (ld(scratch_n + n) - max_v);
            });
            da += s.tau2 * dot(dv, log_q0, N);
            each<T>(N, [&](int64_t n) {
                const V<T> g = ld(dv + n) * (tau2 * a);
                st(dlog_q0 + n, ld(dlog_q0 + n) + g);
                st(dR + n, ld(dR + n) - g);
            });
            memset(dv, 0, size_t(set.Np) * sizeof(T));
            da -= entropy_part(dR, s.rows.inverse, N) / s.a;
            moment = 0;
            reverse_rows(s, moment);

            // u = tau1 (a (log p0 - L) - top), L = log sum_n exp(X / a + v); du is by (u + top) / a and sums to 0
            each<T>(D, [&](int64_t d) {
                st(scratch_d + d, a * (ld(log_p0 + d) - ld(s.columns.L + d)) - ld(set.centred + d));
            });
            const T max_u = largest(scratch_d, D);
            const double dtau1 = total<T>(D, [&](int64_t d) {
                return ld(du + d) * (ld(scratch_d + d) - max_u);
            }) / s.a;
            da += s.tau1 / s.a * dot(du, log_p0, D);
            // By top: du / a, and -tau1 times that through u.
            set.add_by_top(du, 1 / (s.a + in.alpha1(k)));
            each<T>(D, [&](int64_t d) {
                const V<T> g = ld(du + d) * tau1;
                st(dlog_p0 + d, ld(dlog_p0 + d) + g);
                st(dL + d, -g);
            });
            da -= entropy_part(dL, s.columns.inverse, D) / s.a;
            reverse_columns(s, moment);
            da -= LN2<double> * moment / s.a;

            const double alpha1 = in.alpha1(k), alpha2 = in.alpha2(k);
            const double sum1 = (s.a + alpha1) * (s.a + alpha1), sum2 = (s.a + alpha2) * (s.a + alpha2);
            in.add_derivative(UOTPOOL_ALPHA0, k, da - (dtau1 * alpha1 / sum1 + dtau2 * alpha2 / sum2));
            in.add_derivative(UOTPOOL_ALPHA1, k, dtau1 * s.a / sum1);
            in.add_derivative(UOTPOOL_ALPHA2, k, dtau2 * s.a / sum2);
            memset(du, 0, size_t(set.Dp) * sizeof(T));
            memset(dR, 0, size_t(set.Np) * sizeof(T));
            da = 0;
            a_of_v = s.a;
        }
        in.store_dpriors(dlog_p0, p0, dlog_q0, q0);
        if constexpr (Scaled)
            in.store_dscale(set);
        set.store_derivatives(in.matrix(in.call().dX));
    }

    // Sum of g log(inverse).
    static double entropy_part(const T *g, const T *inverse, int64_t count) {
        return LN2<double> * total<T>(count, [&](int64_t i) {
            const V<T> term = ld(g + i) * log2v<T>(ld(inverse + i));
            return count - i >= W<T> ? term : keep_first<T>(term, count - i, T(0));
        });
    }

    // set.reverse_pool the shared way. E is still that of the last step.
    void reverse_shared_pool(double &moment_sum) {
        const int64_t Dp = set.Dp;
        const T *const dy = in.dy();
        for (int64_t d = 0; d < set.D; ++d)
            weight[d] = dy[d] * last.inverse[d];
        fill_padding(weight, set.D, T(0));
        const T *const X = set.X, *const E = this->E, *const factor = f;
        const T *const by_column = weight, *const mean = this->mean;
        const T c = T(1 / step(in.K() - 1).a);
        const auto scale = set.scale;
        T *const dX = set.dX;
        double moment = 0;
        row_blocks(0, set.N, [&](auto rows, int64_t n) {
            constexpr int R = decltype(rows)::value;
            auto products = set.products(0);
            V<T> row[R] = {};
            each<T>(Dp, [&](int64_t d) {
                const V<T> g = ld(by_column + d), y = ld(mean + d);
                const auto by_Z = scale.times(c, d);
                for (int r = 0; r < R; ++r) {
                    const int64_t at = (n + r) * Dp + d;
                    const V<T> x = ld(X + at), share = ld(E + at) * (g * factor[n + r]);
                    const V<T> t = share * (x - y);
                    st(dX + at, share + by_Z * t);
                    row[r] += t;
                    products.add(t, x);
                }
                products.finish(c, d);
            });
            for (int r = 0; r < R; ++r)
                dv[n + r] = lane_sum<T>(row[r]);
            moment += lane_sum<T>(products.all);
        });
        moment_sum += (double)c * LOG2E<double> * moment + LOG2E<double> * dot(dv, v, set.N);
    }

    // From dR: add to du; and, but for the shared way, to dX and the moment.
    void reverse_rows(SinkhornStep<T> &s, double &moment) {
        if (!shared) {
            set.reverse(s.rows, dR, weight, moment);
            each<T>(set.D, [&](int64_t d) { st(du + d, ld(du + d) + ld(weight + d)); });
            return;
        }
        each<T>(set.N, [&](int64_t n) { st(dR + n, ld(dR + n) * ld(s.rows.inverse + n)); });
        column_sums(s.columns.c2, dR, du);
        each<T>(set.Dp, [&](int64_t d) { st(du + d, ld(du + d) * ld(s.w + d)); });
    }

    // From dL: add to dv, dX and the moment; the shared way for both directions.
    void reverse_columns(SinkhornStep<T> &s, double &moment_sum) {
        if (!shared) {
            set.reverse(s.columns, dL, dv, moment_sum, weight);
            return;
        }
        each<T>(set.D, [&](int64_t d) { st(weight + d, ld(dL + d) * ld(s.columns.inverse + d)); });
        fill_padding(weight, set.D, T(0));
        const T c = s.columns.c;
        const int64_t Dp = set.Dp;
        const T *const X = set.X, *const E = this->E, *const by_row = dR, *const factor = s.f;
        const T *const by_column = weight, *const by_w = s.w;
        const auto scale = set.scale;
        T *const dX = set.dX;
        double moment = 0;
        row_blocks(0, set.N, [&](auto rows, int64_t n) {
            constexpr int R = decltype(rows)::value;
            auto products = set.products(0);
            V<T> row[R] = {};
            each<T>(Dp, [&](int64_t d) {
                const V<T> g = ld(by_column + d), w = ld(by_w + d);
                const auto by_Z = scale.times(c, d);
                for (int r = 0; r < R; ++r) {
                    const int64_t at = (n + r) * Dp + d;
                    const V<T> e = ld(E + at);
                    const V<T> t = e * (w * by_row[n + r] + g * factor[n + r]);
                    st(dX + at, ld(dX + at) + by_Z * t);
                    row[r] += e * g;
                    products.add(t, ld(X + at));
                }
                products.finish(c, d);
            });
            for (int r = 0; r < R; ++r)
                dv[n + r] = factor[n + r] * lane_sum<T>(row[r]);
            moment += lane_sum<T>(products.all);
        });
        // The exponents are c2 X + v over samples, and c2 X + u - max u over features.
        const T max = largest(s.u, set.D);
        moment_sum += LOG2E<double> * (double(c) * moment + dot(dv, s.v, set.N) + total<T>(set.D, [&](int64_t d) {
            return ld(du + d) * (ld(s.u + d) - max);
        }));
    }
};

} // namespace
