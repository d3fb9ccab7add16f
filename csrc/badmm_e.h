// Entropic Bregman ADMM: solvers/badmm.py without an N x D state, with its derivative.
//
// By induction log S = c X + u_d + v_n, so a scalar and two vectors carry it, and the dual Z follows from it: the S
// update solves (a + rho) Y = Z + z2 + rho log P, so that Z + rho (log P - log S) = a log S + f_n with
// f = -(a + rho)(log S - Y) - z2. A primal update with (a, rho), where Z = az log S + f (az of the step before, 0 at
// the start), then is
//
//     log S (1 - az / rho) + (X + z1 - f) / rho     =: cP X + uY + vP      (Y of the P update)
//     lse_d = uY + log sum_n exp(cP X + vP)         log p = norm((log mu + lse) / 2)             uP = uY + log p - lse
//     (az log S + f + z2 + rho log P) / (a + rho)   =: cS X + uS + vY      (Y of the S update)
//     lse_n = vY + log sum_d exp(cS X + uS)         log q = norm(lse + share (log eta - lse))    vS = vY + log q - lse
//
// share = rho / (a + 2 rho), norm subtracts the logsumexp: two exponentials an entry. X = Xc + top, and s X stands for X
// where there is a scale, as in sinkhorn.h.
// For a large az, az v and f all but cancel, so the state holds g = az v + f, the rows' part of Z, instead of f;
// derivatives are by f.
//
// The derivative by log S stays a matrix, G: its row and column sums and its product with X would do in exact
// arithmetic, but where the plan has all but become one-hot they are differences of like numbers, and a step with rho
// much below alpha0 of the one before multiplies their rounding. Entry by entry a softmax takes out exactly what it
// should. With W = softmax_n dlse_d and all that is per row or column left to badmm.h, a primal update backwards is
//
//     by Y of S:  G + softmax_d dlse_n                      by log P: that times rho / (a + rho)   =: H
//     by Y of P:  H + W, which divided by rho goes to dX    by log S: H + (1 - az / rho) W
//
// since az / (a + rho) + (1 - az / rho) rho / (a + rho) = rho / (a + rho). For "exactly" the largest exponential of a
// row or column must be 1, not just near the largest number: sums are tight where the coefficients let
// rounding grow.
#pragma once

#include "badmm.h"

namespace {

template <class T> struct EntropicState {
    double c, az;
    T *u, *v;       // log S = c X + u + v
    Duals<T> duals; // z is g
};

// What a primal update finds, kept for the derivative.
template <class T> struct EntropicPrimal {
    Marginals<T> marginals;
    ColumnLse<T> columns;
    RowLse<T> rows;
    double cP, cS;
    T *uY, *uP, *uS, *vP, *vY, *vS;
};

template <class T, Place Where, bool Scaled> struct EntropicBadmm : Badmm<T, Where, Scaled> {
    using Base = Badmm<T, Where, Scaled>;
    using Base::set, Base::in, Base::keep, Base::d, Base::dlse_d, Base::dlse_n;
    EntropicState<T> *states;
    EntropicPrimal<T> *primals;
    ColumnLse<T> last;
    bool tight;           // every log-sum-exp is relative to its own maximum
    double daz;           // derivative by az of the state
    T *G;                 // (N, Dp): by log S
    T *duS, *duP;         // column sums of the derivatives by Y of S and by log P
    T *dvY, *dvP, *dv;    // row sums: of the derivatives by both Y, and of G

    // In log S all is divided by alpha0 + rho, in log mu and log eta, which take from log p and log q, by alpha1 + rho
    // and alpha2 + rho. What is left is Z, alpha0 log S + f.
    static Units units(const Source<T> &in, int64_t k) {
        const double a = in.alpha0(k), b = in.alpha1(k), c = in.alpha2(k), rho = in.rho(k);
        const double least = a < b ? a : b;
        return {(least < c ? least : c) + rho, a + rho};
    }

    EntropicBadmm(const Source<T> &source, Set<T, Where, Scaled> &b, Arena &arena) : Base(source, b, arena) {
        const int64_t kept_states = keep ? in.K() + 1 : 2, kept_primals = keep ? in.K() + 1 : 1;
        states = arena.take<EntropicState<T>>(kept_states);
        primals = arena.take<EntropicPrimal<T>>(kept_primals);
        for (int64_t k = 0; k < kept_states; ++k) {
            const EntropicState<T> s = {0, 0, set.per_feature(arena), set.per_sample(arena), this->take_duals(arena)};
            if (states)
                states[k] = s;
        }
        for (int64_t k = 0; k < kept_primals; ++k) {
            const EntropicPrimal<T> p = {this->take_marginals(arena), set.column_lse(arena),  set.row_lse(arena), 0, 0,
                                         set.per_feature(arena),      set.per_feature(arena), set.per_feature(arena),
                                         set.per_sample(arena),       set.per_sample(arena),  set.per_sample(arena)};
            if (primals)
                primals[k] = p;
        }
        last = set.column_lse(arena);
        if (keep) {
            G = arena.take<T>(set.N * set.Dp);
            duS = set.per_feature(arena);
            duP = set.per_feature(arena);
            dvY = set.per_sample(arena);
            dvP = set.per_sample(arena);
            dv = set.per_sample(arena);
        }
    }

    // Whether an update takes in what the one before left multiplied by much more than 1: f, with its a + rho, is
    // divided by this rho.
    bool expands() const {
        for (int64_t k = 1; k < in.K(); ++k)
            if (in.alpha0(k - 1) + in.rho(k - 1) > 4 * in.rho(k))
                return true;
        return false;
    }

    EntropicState<T> &state(int64_t k) { return states[keep ? k : k % 2]; }
    EntropicPrimal<T> &primal(int64_t k) { return primals[keep ? k : 0]; }

    void run() {
        const int64_t K = in.K();
        tight = expands(); // not when only sizes are asked for, which may be before there are coefficients
        in.log_priors(this->log_p0, this->p0, this->log_q0, this->q0);
        EntropicState<T> &first = state(0);
        first.c = first.az = 0;
        this->copy_d(first.u, this->log_p0);
        this->copy_n(first.v, this->log_q0);
        this->start(first.duals);
        for (int64_t k = 0; k < K; ++k) {
            EntropicPrimal<T> &p = primal(k);
            update(state(k), p, k);
            this->move_duals(state(k).duals, p.marginals, state(k + 1).duals, k);
            move(state(k), p, state(k + 1));
        }
        EntropicPrimal<T> &closing = primal(K);
        update(state(K), closing, K - 1);
        if (!in.plan())
            set.pool(last, closing.cS, closing.vS, this->mean, tight);
        if (keep)
            reverse();
        else if (in.plan())
            set.store_plan(closing.rows, closing.marginals.q, in.matrix(in.call().out));
        else
            in.store_pooled(set.top, this->mean);
    }

    // log S, and what the rows of Z have: g += rho (vP - vS). Constants in it and between u and v do
    // not count, and are kept small: az times them would be large.
    void move(const EntropicState<T> &s, const EntropicPrimal<T> &o, EntropicState<T> &next) {
        const T rho = T(o.marginals.rho), max = largest(o.uS, set.D);
        next.c = o.cS;
        next.az = o.marginals.a;
        this->each_d([&](int64_t i) { st(next.u + i, ld(o.uS + i) - max); });
        T *const g = next.duals.z;
        this->each_n([&](int64_t i) {
            st(next.v + i, ld(o.vS + i) + max);
            st(g + i, ld(s.duals.z + i) + rho * (ld(o.vP + i) - ld(o.vS + i)));
        });
        const T constant = largest(g, set.N);
        this->each_n([&](int64_t i) { st(g + i, ld(g + i) - constant); });
        fill_padding(next.u, set.D, T(0));
        fill_padding(next.v, set.N, T(0));
        fill_padding(g, set.N, T(0));
    }

    void update(const EntropicState<T> &s, EntropicPrimal<T> &o, int64_t k) {
        Marginals<T> &m = o.marginals;
        const double a = m.a = in.alpha0(k), rho = m.rho = in.rho(k);
        m.share = rho / (a + 2 * rho);
        m.both = a + rho;
        const T stay = T(1 - s.az / rho), move = T(1 / rho);
        o.cP = s.c * (1 - s.az / rho) + 1 / rho;
        this->each_d([&](int64_t i) {
            st(o.uY + i, ld(s.u + i) * stay + (ld(set.centred + i) + ld(s.duals.z1 + i)) * move);
        });
        this->each_n([&](int64_t i) { st(o.vP + i, ld(s.v + i) - ld(s.duals.z + i) * move); });
        set.solve(o.columns, o.cP, o.vP, tight);
        this->each_d([&](int64_t i) { st(m.lse_d + i, ld(o.uY + i) + ld(o.columns.L + i)); });
        this->find_p(s.duals, m);

        const T by_sum = T(1 / (a + rho)), old = T(s.az / (a + rho)), fresh = T(rho / (a + rho));
        o.cS = (s.az * s.c + rho * o.cP) / (a + rho);
        this->each_d([&](int64_t i) {
            const V<T> uP = ld(o.uY + i) + ld(m.log_p + i) - ld(m.lse_d + i);
            st(o.uP + i, uP);
            st(o.uS + i, ld(s.u + i) * old + uP * fresh);
        });
        this->each_n([&](int64_t i) {
            const V<T> dual = (ld(s.duals.z + i) + ld(s.duals.z2 + i)) * by_sum;
            st(o.vY + i, dual + ld(o.vP + i) * fresh);
        });
        set.solve(o.rows, o.cS, o.uS, tight);
        this->each_n([&](int64_t i) { st(m.lse_n + i, ld(o.vY + i) + ld(o.rows.R + i)); });
        this->find_q(s.duals, m);
        this->each_n([&](int64_t i) { st(o.vS + i, ld(o.vY + i) + ld(m.log_q + i) - ld(m.lse_n + i)); });
    }

    void reverse() {
        const int64_t K = in.K();
        double da = 0, drho = 0;
        this->start_reverse();
        if (in.plan())
            reverse_plan(primal(K));
        else
            reverse_pool();
        reverse_update(state(K), primal(K), da, drho);
        in.add_derivative(UOTPOOL_ALPHA0, K - 1, da);
        in.add_derivative(UOTPOOL_RHO, K - 1, drho);
        for (int64_t k = K - 1; k >= 0; --k) {
            double dboth = 0;
            drho = 0;
            this->reverse_duals(state(k).duals, primal(k).marginals, state(k + 1).duals, k, drho, dboth);
            da = daz + dboth; // az of the next state is this step's alpha0
            drho += dboth;
            reverse_update(state(k), primal(k), da, drho);
            in.add_derivative(UOTPOOL_ALPHA0, k, da);
            in.add_derivative(UOTPOOL_RHO, k, drho);
        }
        // Of the first update az is 0: G is the derivative by Y of P, and its column sums are d.log_mu (reverse_p).
        this->finish_reverse(d.log_mu, dv);
    }

    // The pooled output is the mean of X under softmax_n(log S): sets dX to what X itself has of it, G and dv, the row
    // sums of G.
    void reverse_pool() {
        const T *const dy = in.dy();
        T *const weight = this->weight;
        for (int64_t i = 0; i < set.D; ++i)
            weight[i] = dy[i] * last.inverse[i];
        fill_padding(weight, set.D, T(0));
        set.over_chunks([&](int64_t begin, int64_t end, int64_t) {
            const int64_t Dp = set.Dp;
            const T *const mean = this->mean;
            T *const G = this->G;
            const auto sums = last;
            const auto scale = set.scale;
            row_blocks(begin, end, [&](auto rows, int64_t n) {
                constexpr int R = decltype(rows)::value;
                auto given = set.template samples<R>(n);
                auto by_X = set.template derivatives<R>(n);
                V<T> row[R] = {};
                each<T>(Dp, [&](int64_t i) {
                    const V<T> g = ld(weight + i), ref = ld(sums.ref2 + i), y = ld(mean + i);
                    V<T> e[R];
                    set.template column_exps<TO_ZERO>(sums, scale.times(sums.c2, i), given, n, i, ref, e);
                    for (int r = 0; r < R; ++r) {
                        const int64_t at = (n + r) * Dp + i;
                        const V<T> share = e[r] * g, t = share * (given.get(r, i) - y);
                        by_X.set(r, i, share);
                        st(G + at, t);
                        row[r] += t;
                    }
                });
                by_X.finish();
                for (int r = 0; r < R; ++r)
                    dv[n + r] = lane_sum<T>(row[r]);
            });
        });
        fill_padding(dv, set.N, T(0));
    }

    // The same for the plan, S itself.
    void reverse_plan(const EntropicPrimal<T> &closing) {
        set.gather(in.matrix(in.call().dout), G);
        set.over_chunks([&](int64_t begin, int64_t end, int64_t) {
            const int64_t Dp = set.Dp;
            const T *const q = closing.marginals.q;
            T *const G = this->G;
            const auto sums = closing.rows;
            const auto scale = set.scale;
            for (int64_t n = begin; n < end; ++n) {
                auto given = set.template samples<1>(n);
                auto by_X = set.template derivatives<1>(n);
                const T factor = sums.inverse[n] * q[n];
                V<T> row = {};
                each<T>(Dp, [&](int64_t i) {
                    const int64_t at = n * Dp + i;
                    const V<T> exponent = fma<T>(scale.times(sums.c2, i), given.get(0, i), ld(sums.u2 + i));
                    const V<T> g = exp2v<T, TO_ZERO>(exponent - sums.ref2[n]) * factor * ld(G + at);
                    by_X.set(0, i, V<T>{});
                    st(G + at, g);
                    row += g;
                });
                by_X.finish();
                dv[n] = lane_sum<T>(row);
            }
        });
        fill_padding(dv, set.N, T(0));
    }

    // G += softmax_d dlse_n, from the derivative by log S to that by the Y it is made of: sets duS and dvY to its sums
    // and returns its product with Z.
    double reverse_rows(const RowLse<T> &q) {
        set.sum_columns(duS, (T *)nullptr, [&](int64_t begin, int64_t end, int64_t chunk, T *acc, T *) {
            const int64_t Dp = set.Dp;
            T *const G = this->G;
            const auto sums = q;
            const auto scale = set.scale;
            double moment = 0;
            row_blocks(begin, end, [&](auto rows, int64_t n) {
                constexpr int R = decltype(rows)::value;
                auto given = set.template samples<R>(n);
                V<T> row[R] = {}, with_x = {};
                T weight[R];
                for (int r = 0; r < R; ++r)
                    weight[r] = dlse_n[n + r] * sums.inverse[n + r];
                each<T>(Dp, [&](int64_t i) {
                    const V<T> u2 = ld(sums.u2 + i);
                    V<T> column = ld(acc + i), e[R];
                    const auto s = scale.times(T(1), i);
                    set.template row_exps<TO_ZERO>(sums, scale.times(sums.c2, i), given, n, i, u2, e);
                    for (int r = 0; r < R; ++r) {
                        const int64_t at = (n + r) * Dp + i;
                        const V<T> g = ld(G + at) + e[r] * weight[r];
                        st(G + at, g);
                        column += g;
                        row[r] += g;
                        with_x += g * (given.get(r, i) * s);
                    }
                    st(acc + i, column);
                });
                for (int r = 0; r < R; ++r)
                    dvY[n + r] = lane_sum<T>(row[r]);
                moment += lane_sum<T>(with_x);
            });
            set.scalar[chunk] = moment;
        });
        fill_padding(dvY, set.N, T(0));
        return set.sum_scalars();
    }

    // With H = fresh G and W = softmax_n dlse_d: adds s (H + W) / rho to dX, sets G to H + stay W, dv to its row sums and
    // dvP to those of H + W, whose product with Z is returned.
    double reverse_columns(const ColumnLse<T> &q, double fresh_share, double stay_share, double rho) {
        T *const weight = this->weight;
        this->each_d([&](int64_t i) { st(weight + i, ld(dlse_d + i) * ld(q.inverse + i)); });
        fill_padding(weight, set.D, T(0));
        const T fresh = T(fresh_share), stay = T(stay_share), move = T(1 / rho);
        set.over_chunks([&](int64_t begin, int64_t end, int64_t chunk) {
            const int64_t Dp = set.Dp;
            T *const G = this->G;
            const auto sums = q;
            const auto scale = set.scale;
            double moment = 0;
            row_blocks(begin, end, [&](auto rows, int64_t n) {
                constexpr int R = decltype(rows)::value;
                auto given = set.template samples<R>(n);
                auto by_X = set.template derivatives<R>(n);
                auto products = set.products(chunk);
                V<T> row_Y[R] = {}, row_S[R] = {};
                each<T>(Dp, [&](int64_t i) {
                    const V<T> g = ld(weight + i), ref = ld(sums.ref2 + i);
                    const auto by_Z = scale.times(move, i);
                    V<T> e[R];
                    set.template column_exps<TO_ZERO>(sums, scale.times(sums.c2, i), given, n, i, ref, e);
                    for (int r = 0; r < R; ++r) {
                        const int64_t at = (n + r) * Dp + i;
                        const V<T> H = fresh * ld(G + at), W = e[r] * g, both = H + W, by_S = H + stay * W;
                        by_X.set(r, i, by_X.get(r, i) + both * by_Z);
                        st(G + at, by_S);
                        row_Y[r] += both;
                        row_S[r] += by_S;
                        products.add(both, given.get(r, i));
                    }
                    products.finish(move, i);
                });
                by_X.finish();
                for (int r = 0; r < R; ++r) {
                    dvP[n + r] = lane_sum<T>(row_Y[r]);
                    dv[n + r] = lane_sum<T>(row_S[r]);
                }
                moment += lane_sum<T>(products.all);
            });
            set.scalar[chunk] = moment;
        });
        fill_padding(dvP, set.N, T(0));
        fill_padding(dv, set.N, T(0));
        return set.sum_scalars();
    }

    // From G with its row sums dv, dlog_p, dlog_q and dlse_n: G and dv by the state before, adds to dX, sets daz, d.z
    // and d.log_mu, adds to d.z1, d.z2 and d.log_eta.
    void reverse_update(const EntropicState<T> &s, const EntropicPrimal<T> &o, double &da, double &drho) {
        const int64_t N = set.N, D = set.D;
        const Marginals<T> &m = o.marginals;
        const double a = m.a, rho = m.rho;

        const double dshare = this->reverse_q(s.duals, m, dv);
        const double square = (a + 2 * rho) * (a + 2 * rho);
        da -= dshare * rho / square;
        drho += dshare * a / square;
        const double dcS = reverse_rows(o.rows);

        // cS, uS, vY = (az (c, u, v) + (0, 0, f + z2) + rho (cP, uP, vP)) / (a + rho)
        const double by_sum = 1 / (a + rho), fresh = by_sum * rho;
        daz = by_sum * (dcS * s.c + dot(duS, s.u, D) + dot(dvY, s.v, N));
        drho += by_sum * (dcS * o.cP + dot(duS, o.uP, D) + dot(dvY, o.vP, N));
        const double scale = by_sum * (dcS * o.cS + dot(duS, o.uS, D) + dot(dvY, o.vY, N));
        da -= scale;
        drho -= scale;
        this->each_d([&](int64_t i) { st(duP + i, ld(duS + i) * T(fresh)); });
        this->each_n([&](int64_t i) {
            const V<T> g = ld(dvY + i) * T(by_sum);
            st(d.z + i, g);
            st(d.z2 + i, ld(d.z2 + i) + g);
        });

        // cP, uY, vP = (c, u, v)(1 - az / rho) + (1, top + z1, -f) / rho
        this->reverse_p(m, duP);
        const T *const duY = d.log_mu; // what log p leaves of the column sums; lse takes the rest
        set.add_by_top(duY, 1 / rho);
        const double stay = 1 - s.az / rho;
        const double dcP = reverse_columns(o.columns, fresh, stay, rho);
        const double dstay = dcP * s.c + dot(duY, s.u, D) + dot(dvP, s.v, N);
        const T az = T(s.az);
        const double moved = dcP * (1 - s.az * s.c) - dot(dvP, s.duals.z, N) + this->total_d([&](int64_t i) {
            return ld(duY + i) * (ld(set.centred + i) + ld(s.duals.z1 + i) - az * ld(s.u + i));
        });
        daz -= dstay / rho;
        drho -= moved / (rho * rho);
        this->each_d([&](int64_t i) { st(d.z1 + i, ld(d.z1 + i) + ld(duY + i) / T(rho)); });
        this->each_n([&](int64_t i) { st(d.z + i, ld(d.z + i) - ld(dvP + i) / T(rho)); });
    }
};

} // namespace
