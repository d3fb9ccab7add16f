// Quadratic Bregman ADMM: solvers/badmm.py with the dual Z eliminated, and its derivative.
//
// The S update is log S = Y + log q - lse with Y = log P + (Z + z2 - a P) / rho, so Z + rho (log P - log S) is
// a P + f_n with f = rho (lse - log q) - z2. A primal update with (a, rho), where Z = az Pb + f (Pb the P of the update
// before; az = 0 at the start) and rho already has its a max(Pb, S) added, then is
//
//     Y = log S + (X + z1 - az Pb - f - a S) / rho       log p = norm((log mu + lse_d) / 2)      log P = Y + log p - lse
//     Y = log P + (az Pb - a P + f + z2) / rho           log q = norm((log eta + lse_n) / 2)     log S = Y + log q - lse
//
// lse being the logsumexp of Y over samples and over features. The exponentials of those sums, E and F, are all there
// is to P = E p / sum_n E and S = F q / sum_d F: two an entry, and none in the derivative, which keeps E and F of
// every update. A column or row that underflows in P or S is still there in E or F. Entries far below the largest of
// their row or column are zero, as their derivatives are multiplied by X again and again.
#pragma once

#include "badmm.h"

namespace {

template <class T> struct QuadraticState {
    double az, most;  // most: max(P, S), of the update before
    const T *E, *F;   // its matrices
    T *by_d, *by_n;   // P = E by_d, S = F by_n
    T *shift;         // log S = L + shift_n
    Duals<T> duals;
};

template <class T> struct QuadraticPrimal {
    Marginals<T> marginals;
    T *E, *F;
    T *inverse_d, *inverse_n; // 1 / sum_n E, 1 / sum_d F
};

template <class T, Place Where> struct QuadraticBadmm : Badmm<T, Where> {
    using Base = Badmm<T, Where>;
    using Base::bag, Base::in, Base::keep, Base::d, Base::dlse_d, Base::dlse_n;
    QuadraticState<T> *states;
    QuadraticPrimal<T> *primals;
    T *L;                           // (N, Dp): Y of the last update
    T *u, *before, *now, *v, *part; // of the entries' formulas
    T *A, *B;                       // (N, Dp): derivatives by log S, by the P that Z holds
    T *rows, *columns, *rows_S, *columns_S;
    double *sums; // (chunks, 3)

    QuadraticBadmm(const Source<T> &source, Bag<T, Where> &b, Arena &arena) : Base(source, b, arena) {
        const int64_t size = bag.N * bag.Dp;
        const int64_t kept = keep ? in.K() + 1 : 2; // E of the update before is read while that of this one is made
        states = arena.take<QuadraticState<T>>(kept);
        primals = arena.take<QuadraticPrimal<T>>(kept);
        T *first = arena.take<T>(size); // S at the start, as F
        for (int64_t k = 0; k < kept; ++k) {
            const QuadraticState<T> s = {0, 0, nullptr, nullptr, bag.per_feature(arena), bag.per_sample(arena),
                                         bag.per_sample(arena), this->take_duals(arena)};
            const QuadraticPrimal<T> p = {this->take_marginals(arena), arena.take<T>(size), arena.take<T>(size),
                                          bag.per_feature(arena), bag.per_sample(arena)};
            if (states) {
                states[k] = s;
                primals[k] = p;
            }
        }
        if (states)
            states[0].E = states[0].F = first;
        L = arena.take<T>(size);
        u = bag.per_feature(arena);
        before = bag.per_feature(arena);
        now = bag.per_feature(arena);
        v = bag.per_sample(arena);
        part = bag.per_sample(arena);
        sums = arena.take<double>(bag.chunks * 3);
        if (keep) {
            A = L; // no longer needed by then
            B = arena.take<T>(size);
            rows = bag.per_sample(arena);
            rows_S = bag.per_sample(arena);
            columns = bag.per_feature(arena);
            columns_S = bag.per_feature(arena);
        }
    }

    QuadraticState<T> &state(int64_t k) { return states[keep ? k : k % 2]; }
    QuadraticPrimal<T> &primal(int64_t k) { return primals[keep ? k : k % 2]; }

    void run() {
        const int64_t K = in.K();
        this->load();
        start();
        for (int64_t k = 0; k < K; ++k) {
            QuadraticPrimal<T> &p = primal(k);
            update(state(k), p, k);
            QuadraticState<T> &next = state(k + 1);
            this->move_duals(state(k).duals, p.marginals, next.duals, k);
            move(p, next);
        }
        QuadraticPrimal<T> &closing = primal(K);
        update(state(K), closing, K - 1);
        const Marginals<T> &m = closing.marginals;
        this->each_n([&](int64_t n) { st(v + n, ld(m.log_q + n) - ld(m.lse_n + n)); });
        if (!in.plan())
            pool();
        if (keep)
            reverse();
        else if (in.plan())
            store_plan(closing);
        else
            in.store_pooled(bag.top, this->mean);
    }

    void start() {
        QuadraticState<T> &s = state(0);
        s.az = 0;
        s.most = double(largest(this->p0, bag.D)) * double(largest(this->q0, bag.N));
        this->zero_d(s.by_d);
        this->copy_n(s.by_n, this->q0);
        this->copy_n(s.shift, this->log_q0);
        Base::start(s.duals);
        T *F = (T *)s.F;
        bag.over_chunks([&](int64_t begin, int64_t end, int64_t) {
            for (int64_t n = begin; n < end; ++n) {
                this->copy_d(F + n * bag.Dp, this->p0);
                this->copy_d(L + n * bag.Dp, this->log_p0);
                for (int64_t i = bag.D; i < bag.Dp; ++i)
                    L[n * bag.Dp + i] = NOTHING<T>; // so the padding has no part in sums over features
            }
        });
    }

    void move(const QuadraticPrimal<T> &p, QuadraticState<T> &next) {
        const Marginals<T> &m = p.marginals;
        next.az = m.a;
        next.E = p.E;
        next.F = p.F;
        this->each_d([&](int64_t i) { st(next.by_d + i, ld(m.p + i) * ld(p.inverse_d + i)); });
        this->each_n([&](int64_t n) {
            st(next.by_n + n, ld(m.q + n) * ld(p.inverse_n + n));
            st(next.shift + n, ld(m.log_q + n) - ld(m.lse_n + n));
        });
        // The largest entry of a column of E, or of a row of F, is 1.
        const T of_P = largest(next.by_d, bag.D), of_S = largest(next.by_n, bag.N);
        next.most = of_P > of_S ? of_P : of_S;
    }

    void update(const QuadraticState<T> &s, QuadraticPrimal<T> &o, int64_t k) {
        Marginals<T> &m = o.marginals;
        const Duals<T> &z = s.duals;
        const int64_t Dp = bag.Dp;
        const double a = m.a = in.weight(0, k), rho = m.rho = in.weight(3, k) + a * s.most;
        m.share = 0.5;
        m.both = rho;
        const T move = T(1 / rho);
        const T *X = bag.X;

        this->each_d([&](int64_t i) {
            st(u + i, (ld(bag.centred + i) + ld(z.z1 + i)) * move);
            st(before + i, ld(s.by_d + i) * T(s.az / rho));
        });
        this->each_n([&](int64_t n) {
            st(v + n, ld(s.shift + n) - ld(z.f + n) * move);
            st(part + n, ld(s.by_n + n) * T(a / rho));
        });
        bag.max_columns(m.lse_d, [=, L = L, u = u, v = v, before = before, part = part, Eb = s.E, Fb = s.F](
                                     int64_t n, int64_t i) {
            const int64_t at = n * Dp + i;
            const V<T> y =
                ld(L + at) + ld(X + at) * move + (ld(u + i) + v[n]) - ld(Eb + at) * ld(before + i) - ld(Fb + at) * part[n];
            st(L + at, y);
            return y;
        });
        bag.sum_columns(o.inverse_d, (T *)nullptr, [&](int64_t begin, int64_t end, int64_t, T *acc, T *) {
            const int64_t Dp = bag.Dp;
            const T *const L = this->L, *const most = m.lse_d;
            T *const E = o.E;
            row_blocks(begin, end, [&](auto count, int64_t n) {
                each<T>(Dp, [&](int64_t i) {
                    constexpr int R = decltype(count)::value;
                    V<T> column = ld(acc + i), e[R];
                    const V<T> top = ld(most + i);
                    for (int r = 0; r < R; ++r)
                        e[r] = (ld(L + (n + r) * Dp + i) - top) * LOG2E<T>;
                    exp2_all<T, R, TO_ZERO>(e);
                    for (int r = 0; r < R; ++r) {
                        st(E + (n + r) * Dp + i, e[r]);
                        column += e[r];
                    }
                    st(acc + i, column);
                });
            });
        });
        this->each_d([&](int64_t i) {
            const V<T> sum = ld(o.inverse_d + i);
            st(o.inverse_d + i, 1 / sum);
            st(m.lse_d + i, ld(m.lse_d + i) + LN2<T> * log2v<T>(sum));
        });
        this->find_p(z, m);

        this->each_d([&](int64_t i) {
            st(u + i, ld(m.log_p + i) - ld(m.lse_d + i)); // both 0 in the padding
            st(now + i, ld(m.p + i) * ld(o.inverse_d + i) * T(a / rho));
        });
        this->each_n([&](int64_t n) { st(v + n, (ld(z.f + n) + ld(z.z2 + n)) * move); });
        bag.over_chunks([&](int64_t begin, int64_t end, int64_t) {
            const int64_t Dp = bag.Dp;
            const T *const E = o.E, *const Eb = s.E, *const u = this->u, *const v = this->v;
            const T *const before = this->before, *const now = this->now;
            T *const F = o.F, *const L = this->L;
            for (int64_t n = begin; n < end; ++n) {
                V<T> top = NOTHING<T> - V<T>{};
                each<T>(Dp, [&](int64_t i) {
                    const int64_t at = n * Dp + i;
                    const V<T> y =
                        ld(L + at) + (ld(u + i) + v[n]) + ld(Eb + at) * ld(before + i) - ld(E + at) * ld(now + i);
                    st(L + at, y);
                    top = vmax(y, top);
                });
                const T most = lane_max<T>(top);
                V<T> sum = {};
                each<T>(Dp, [&](int64_t i) {
                    const V<T> e = exp2v<T, TO_ZERO>((ld(L + n * Dp + i) - most) * LOG2E<T>);
                    st(F + n * Dp + i, e);
                    sum += e;
                });
                m.lse_n[n] = most;
                o.inverse_n[n] = lane_sum<T>(sum);
            }
        });
        fill_padding(o.inverse_n, bag.N, T(1));
        this->each_n([&](int64_t n) {
            const V<T> sum = ld(o.inverse_n + n);
            st(o.inverse_n + n, 1 / sum);
            st(m.lse_n + n, ld(m.lse_n + n) + LN2<T> * log2v<T>(sum));
        });
        this->find_q(z, m);
    }

    // softmax over the samples of log S = L + v, in place of L, times `now`; the means.
    void pool() {
        const int64_t Dp = bag.Dp;
        bag.max_columns(u, [Dp, L = L, v = v](int64_t n, int64_t i) { return ld(L + n * Dp + i) + v[n]; });
        bag.sum_columns(now, this->mean, [&](int64_t begin, int64_t end, int64_t, T *den, T *num) {
            const int64_t Dp = bag.Dp;
            const T *const X = bag.X, *const u = this->u, *const v = this->v;
            T *const L = this->L;
            row_blocks(begin, end, [&](auto count, int64_t n) {
                each<T>(Dp, [&](int64_t i) {
                    V<T> s = ld(den + i), t = ld(num + i);
                    const V<T> top = ld(u + i);
                    for (int r = 0; r < count.value; ++r) {
                        const int64_t at = (n + r) * Dp + i;
                        const V<T> e = exp2v<T, TO_ZERO>((ld(L + at) + v[n + r] - top) * LOG2E<T>);
                        st(L + at, e);
                        s += e;
                        t += e * ld(X + at);
                    }
                    st(den + i, s);
                    st(num + i, t);
                });
            });
        });
        this->each_d([&](int64_t i) { st(this->mean + i, ld(this->mean + i) / ld(now + i)); });
    }

    void store_plan(const QuadraticPrimal<T> &p) {
        bag.over_chunks([&](int64_t begin, int64_t end, int64_t) {
            for (int64_t n = begin; n < end; ++n) {
                const T factor = p.inverse_n[n] * p.marginals.q[n];
                each<T>(bag.Dp, [&](int64_t i) { st(L + n * bag.Dp + i, ld(p.F + n * bag.Dp + i) * factor); });
            }
        });
        bag.scatter(L, in.matrix(in.call().out));
    }

    void reverse() {
        const int64_t K = in.K();
        this->start_reverse();
        if (in.plan())
            reverse_plan(primal(K));
        else
            reverse_pool();
        memset(B, 0, size_t(bag.N * bag.Dp) * sizeof(T));
        double da = 0, drho = 0, daz = 0, dmost = 0;
        reverse_update(state(K), primal(K), nullptr, 0, da, drho, daz);
        finish_module(state(K), K - 1, da, drho, dmost);
        for (int64_t k = K - 1; k >= 0; --k) {
            const QuadraticState<T> &next = state(k + 1);
            add_to_largest_S(next, dmost);
            double dboth = 0;
            drho = 0;
            this->reverse_duals(state(k).duals, primal(k).marginals, next.duals, k, drho, dboth);
            drho += dboth;
            da = daz;
            reverse_update(state(k), primal(k), &next, dmost, da, drho, daz);
            finish_module(state(k), k, da, drho, dmost);
        }
        add_to_largest_prior(this->p0, bag.D, dmost * state(0).most, columns_S);
        add_to_largest_prior(this->q0, bag.N, dmost * state(0).most, rows_S);
        this->finish_reverse(columns_S, rows_S);
    }

    // rho had a max(P, S) of the update before added.
    void finish_module(const QuadraticState<T> &s, int64_t k, double da, double drho, double &dmost) {
        in.add_dweight(0, k, da + drho * s.most);
        in.add_dweight(3, k, drho);
        dmost = drho * in.weight(0, k);
    }

    int64_t ties(const QuadraticState<T> &s) const { return ties_P(s, 0) + ties_S(s, 0); }

    // The entries of P that are as large as `most`; each gets `value` added to the derivative by its logarithm, A.
    int64_t ties_P(const QuadraticState<T> &s, double value) const {
        int64_t count = 0;
        for (int64_t i = 0; i < bag.D; ++i)
            if (double(s.by_d[i]) == s.most)
                for (int64_t n = 0; n < bag.N; ++n)
                    if (s.E[n * bag.Dp + i] == 1) {
                        ++count;
                        if (value != 0) {
                            A[n * bag.Dp + i] += T(value);
                            columns[i] += T(value);
                        }
                    }
        return count;
    }

    int64_t ties_S(const QuadraticState<T> &s, double value) const {
        int64_t count = 0;
        for (int64_t n = 0; n < bag.N; ++n)
            if (double(s.by_n[n]) == s.most)
                for (int64_t i = 0; i < bag.D; ++i)
                    if (s.F[n * bag.Dp + i] == 1) {
                        ++count;
                        if (value != 0) {
                            A[n * bag.Dp + i] += T(value);
                            rows_S[n] += T(value);
                        }
                    }
        return count;
    }

    void add_to_largest_S(const QuadraticState<T> &s, double dmost) {
        const int64_t count = ties(s);
        if (count > 0)
            ties_S(s, dmost * s.most / double(count));
    }

    void add_to_largest_P(const QuadraticState<T> &s, double dmost) {
        const int64_t count = ties(s);
        if (count > 0)
            ties_P(s, dmost * s.most / double(count));
    }

    static void add_to_largest_prior(const T *p, int64_t n, double value, T *dlog) {
        const T most = largest(p, n);
        int64_t count = 0;
        for (int64_t i = 0; i < n; ++i)
            count += p[i] == most;
        for (int64_t i = 0; i < n; ++i)
            if (p[i] == most)
                dlog[i] += T(value / double(count));
    }

    // A = derivative by log S, rows_S its row sums, and dX, from that by the pooled output.
    void reverse_pool() {
        const int64_t Dp = bag.Dp;
        const T *dy = in.dy();
        for (int64_t i = 0; i < bag.D; ++i)
            u[i] = dy[i] / now[i];
        fill_padding(u, bag.D, T(0));
        bag.over_chunks([&](int64_t begin, int64_t end, int64_t) {
            for (int64_t n = begin; n < end; ++n) {
                V<T> row = {};
                each<T>(Dp, [&](int64_t i) {
                    const int64_t at = n * Dp + i;
                    const V<T> share = ld(L + at) * ld(u + i);
                    const V<T> t = share * (ld(bag.X + at) - ld(this->mean + i));
                    st(bag.dX + at, share);
                    st(A + at, t);
                    row += t;
                });
                rows_S[n] = lane_sum<T>(row);
            }
        });
        fill_padding(rows_S, bag.N, T(0));
    }

    void reverse_plan(const QuadraticPrimal<T> &p) {
        const int64_t Dp = bag.Dp;
        bag.gather(in.matrix(in.call().dout), A);
        memset(bag.dX, 0, size_t(bag.N * Dp) * sizeof(T));
        bag.over_chunks([&](int64_t begin, int64_t end, int64_t) {
            for (int64_t n = begin; n < end; ++n) {
                const T factor = p.inverse_n[n] * p.marginals.q[n];
                V<T> row = {};
                each<T>(Dp, [&](int64_t i) {
                    const int64_t at = n * Dp + i;
                    const V<T> t = ld(A + at) * ld(p.F + at) * factor;
                    st(A + at, t);
                    row += t;
                });
                rows_S[n] = lane_sum<T>(row);
            }
        });
        fill_padding(rows_S, bag.N, T(0));
    }

    double total_of(int which) const {
        double s = 0;
        for (int64_t i = 0; i < bag.chunks; ++i)
            s += sums[3 * i + which];
        return s;
    }

    // From A, rows_S, B, dlog_p, dlog_q and dlse_n to the same of the update before, daz and d, and to dX. `made` is
    // the state that this update led to, for the derivative by its largest entry.
    void reverse_update(const QuadraticState<T> &s, const QuadraticPrimal<T> &o, const QuadraticState<T> *made,
                        double dmost, double &da, double &drho, double &daz) {
        const int64_t N = bag.N;
        const Marginals<T> &m = o.marginals;
        const double a = m.a, rho = m.rho;
        const T by_rho = T(1 / rho), a_rho = T(a / rho), az_rho = T(s.az / rho);

        // log S = Y + log q - lse;  Y = log P + (az Pb - a P + f + z2) / rho
        this->reverse_q(s.duals, m, rows_S);
        this->each_n([&](int64_t n) { st(v + n, ld(dlse_n + n) * ld(o.inverse_n + n)); });
        this->each_d([&](int64_t i) { st(now + i, ld(m.p + i) * ld(o.inverse_d + i)); });
        bag.sum_columns(columns, (T *)nullptr, [&](int64_t begin, int64_t end, int64_t c, T *acc, T *) {
            const int64_t Dp = bag.Dp;
            const T *const E = o.E, *const F = o.F, *const Eb = s.E, *const v = this->v, *const now = this->now;
            const T *const by_d = s.by_d;
            T *const A = this->A, *const B = this->B;
            double with_P = 0, with_Pb = 0;
            row_blocks(begin, end, [&](auto count, int64_t first) {
                constexpr int R = decltype(count)::value;
                V<T> row[R] = {}, sum_P = {}, sum_Pb = {};
                each<T>(Dp, [&](int64_t i) {
                    V<T> column = ld(acc + i);
                    const V<T> by_P = ld(now + i), by_Pb = ld(by_d + i);
                    for (int r = 0; r < R; ++r) {
                        const int64_t at = (first + r) * Dp + i;
                        const V<T> y = ld(A + at) + ld(F + at) * v[first + r];
                        const V<T> P = ld(E + at) * by_P, yP = y * P;
                        const V<T> g = y - a_rho * yP + P * ld(B + at);
                        st(A + at, g);
                        st(B + at, az_rho * y);
                        column += g;
                        row[r] += y;
                        sum_P += yP;
                        sum_Pb += y * ld(Eb + at) * by_Pb;
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
        fill_padding(columns, bag.D, T(0));
        double with_P = total_of(0), with_Pb = total_of(1);
        da -= with_P / rho;
        daz = with_Pb / rho;
        drho -= (s.az * with_Pb - a * with_P + this->total_n([&](int64_t n) {
            return ld(rows + n) * (ld(s.duals.f + n) + ld(s.duals.z2 + n));
        })) / (rho * rho);
        this->each_n([&](int64_t n) {
            st(d.f + n, ld(rows + n) * by_rho);
            st(d.z2 + n, ld(d.z2 + n) + ld(rows + n) * by_rho);
        });
        if (made)
            add_to_largest_P(*made, dmost);

        // log P = Y + log p - lse;  Y = log S + (X + z1 - az Pb - f - a S) / rho
        this->reverse_p(m, columns);
        this->each_d([&](int64_t i) { st(u + i, ld(dlse_d + i) * ld(o.inverse_d + i)); });
        fill_padding(u, bag.D, T(0));
        bag.sum_columns(columns, columns_S, [&](int64_t begin, int64_t end, int64_t c, T *acc, T *acc_S) {
            const int64_t Dp = bag.Dp;
            const T *const E = o.E, *const Eb = s.E, *const Fb = s.F, *const u = this->u, *const X = bag.X;
            const T *const by_d = s.by_d, *const by_n = s.by_n;
            T *const A = this->A, *const B = this->B, *const dX = bag.dX;
            double with_X = 0, with_S = 0, with_Pb_too = 0;
            row_blocks(begin, end, [&](auto count, int64_t first) {
                constexpr int R = decltype(count)::value;
                V<T> row[R] = {}, row_S[R] = {}, sum_X = {}, sum_S = {}, sum_Pb = {};
                each<T>(Dp, [&](int64_t i) {
                    V<T> column = ld(acc + i), column_S = ld(acc_S + i);
                    const V<T> by_E = ld(u + i), by_Pb = ld(by_d + i);
                    for (int r = 0; r < R; ++r) {
                        const int64_t at = (first + r) * Dp + i;
                        const V<T> y = ld(A + at) + ld(E + at) * by_E;
                        const V<T> yS = y * ld(Fb + at) * by_n[first + r];
                        const V<T> g = y - a_rho * yS;
                        st(A + at, g);
                        st(B + at, ld(B + at) - az_rho * y);
                        st(dX + at, ld(dX + at) + y * by_rho);
                        column += y;
                        column_S += g;
                        row[r] += y;
                        row_S[r] += g;
                        sum_X += y * ld(X + at);
                        sum_S += yS;
                        sum_Pb += y * ld(Eb + at) * by_Pb;
                    }
                    st(acc + i, column);
                    st(acc_S + i, column_S);
                });
                for (int r = 0; r < R; ++r) {
                    rows[first + r] = lane_sum<T>(row[r]);
                    rows_S[first + r] = lane_sum<T>(row_S[r]);
                }
                with_X += lane_sum<T>(sum_X);
                with_S += lane_sum<T>(sum_S);
                with_Pb_too += lane_sum<T>(sum_Pb);
            });
            sums[3 * c] = with_X;
            sums[3 * c + 1] = with_S;
            sums[3 * c + 2] = with_Pb_too;
        });
        fill_padding(columns, bag.D, T(0));
        fill_padding(columns_S, bag.D, T(0));
        const double with_S = total_of(1);
        with_Pb = total_of(2);
        da -= with_S / rho;
        daz -= with_Pb / rho;
        drho -= (total_of(0) - s.az * with_Pb - a * with_S - dot(rows, s.duals.f, N) + this->total_d([&](int64_t i) {
            return ld(columns + i) * (ld(bag.centred + i) + ld(s.duals.z1 + i));
        })) / (rho * rho);
        this->each_d([&](int64_t i) { st(d.z1 + i, ld(d.z1 + i) + ld(columns + i) * by_rho); });
        this->each_n([&](int64_t n) { st(d.f + n, ld(d.f + n) - ld(rows + n) * by_rho); });
    }
};

} // namespace
