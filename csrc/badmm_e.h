// Entropic Bregman ADMM: solvers/badmm.py without an N x D state, with its derivative.
//
// By induction log S = c X + u_d + v_n, so a scalar and two vectors carry it, and the dual Z follows from it: the S
// update solves (a + rho) Y = Z + z2 + rho log P, so that Z + rho (log P - log S) = a log S + f_n with
// f = -(a + rho)(log S - Y) - z2. A primal update with (a, rho), where Z = az log S + f (az of the module before, 0 at
// the start), then is
//
//     log S (1 - az / rho) + (X + z1 - f) / rho     =: cP X + uY + vP      (Y of the P update)
//     lse_d = uY + log sum_n exp(cP X + vP)         log p = norm((log mu + lse) / 2)               uP = uY + log p - lse
//     (az log S + f + z2 + rho log P) / (a + rho)   =: cS X + uS + vY      (Y of the S update)
//     lse_n = vY + log sum_d exp(cS X + uS)         log q = norm(lse + share (log eta - lse))      vS = vY + log q - lse
//
// share = rho / (a + 2 rho), norm subtracts the logsumexp: two exponentials an entry. X = Xc + top, as in sinkhorn.h.
#pragma once

#include "badmm.h"

namespace {

template <class T> struct EntropicState {
    double c, az;
    T *u, *v; // log S = c X + u + v
    Duals<T> duals;
};

// What a primal update finds, kept for the derivative.
template <class T> struct EntropicPrimal {
    Marginals<T> marginals;
    ColumnLse<T> columns;
    RowLse<T> rows;
    double cP, cS;
    T *uY, *uP, *uS, *vP, *vY, *vS;
};

template <class T, Place Where> struct EntropicBadmm : Badmm<T, Where> {
    using Base = Badmm<T, Where>;
    using Base::bag, Base::in, Base::keep, Base::d, Base::scratch_d, Base::dlog_p, Base::dlse_d, Base::dlse_n;
    EntropicState<T> *states;
    EntropicPrimal<T> *primals;
    ColumnLse<T> last;
    double dc, daz; // derivatives by the state
    T *du, *dv;
    T *duS, *duP, *duY, *dvS, *dvY, *dvP;

    EntropicBadmm(const Source<T> &source, Bag<T, Where> &b, Arena &arena) : Base(source, b, arena) {
        const int64_t kept_states = keep ? in.K() + 1 : 2, kept_primals = keep ? in.K() + 1 : 1;
        states = arena.take<EntropicState<T>>(kept_states);
        primals = arena.take<EntropicPrimal<T>>(kept_primals);
        for (int64_t k = 0; k < kept_states; ++k) {
            const EntropicState<T> s = {0, 0, bag.per_feature(arena), bag.per_sample(arena), this->take_duals(arena)};
            if (states)
                states[k] = s;
        }
        for (int64_t k = 0; k < kept_primals; ++k) {
            const EntropicPrimal<T> p = {this->take_marginals(arena), bag.column_lse(arena),  bag.row_lse(arena), 0, 0,
                                         bag.per_feature(arena),      bag.per_feature(arena), bag.per_feature(arena),
                                         bag.per_sample(arena),       bag.per_sample(arena),  bag.per_sample(arena)};
            if (primals)
                primals[k] = p;
        }
        last = bag.column_lse(arena);
        if (keep) {
            du = bag.per_feature(arena);
            duS = bag.per_feature(arena);
            duP = bag.per_feature(arena);
            duY = bag.per_feature(arena);
            dv = bag.per_sample(arena);
            dvS = bag.per_sample(arena);
            dvP = bag.per_sample(arena);
            dvY = bag.per_sample(arena);
        }
    }

    EntropicState<T> &state(int64_t k) { return states[keep ? k : k % 2]; }
    EntropicPrimal<T> &primal(int64_t k) { return primals[keep ? k : 0]; }

    void run() {
        const int64_t K = in.K();
        this->load();
        EntropicState<T> &first = state(0);
        first.c = first.az = 0;
        this->copy_d(first.u, this->log_p0);
        this->copy_n(first.v, this->log_q0);
        this->start(first.duals);
        for (int64_t k = 0; k < K; ++k) {
            EntropicPrimal<T> &p = primal(k);
            update(state(k), p, k);
            EntropicState<T> &next = state(k + 1);
            next.c = p.cS;
            next.az = p.marginals.a;
            this->copy_d(next.u, p.uS);
            this->copy_n(next.v, p.vS);
            this->move_duals(state(k).duals, p.marginals, next.duals, k);
        }
        EntropicPrimal<T> &closing = primal(K);
        update(state(K), closing, K - 1);
        if (!in.plan())
            bag.pool(last, closing.cS, closing.vS, this->mean);
        if (keep)
            reverse();
        else if (in.plan())
            bag.store_plan(closing.rows, closing.marginals.q, in.matrix(in.call().out));
        else
            in.store_pooled(bag.top, this->mean);
    }

    void update(const EntropicState<T> &s, EntropicPrimal<T> &o, int64_t k) {
        Marginals<T> &m = o.marginals;
        const double a = m.a = in.weight(0, k), rho = m.rho = in.weight(3, k);
        m.share = rho / (a + 2 * rho);
        m.both = a + rho;
        const T stay = T(1 - s.az / rho), move = T(1 / rho);
        o.cP = s.c * (1 - s.az / rho) + 1 / rho;
        this->each_d([&](int64_t i) {
            st(o.uY + i, ld(s.u + i) * stay + (ld(bag.centred + i) + ld(s.duals.z1 + i)) * move);
        });
        this->each_n([&](int64_t i) { st(o.vP + i, ld(s.v + i) * stay - ld(s.duals.f + i) * move); });
        bag.solve(o.columns, o.cP, o.vP);
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
            const V<T> dual = (ld(s.duals.f + i) + ld(s.duals.z2 + i)) * by_sum;
            st(o.vY + i, ld(s.v + i) * old + dual + ld(o.vP + i) * fresh);
        });
        bag.solve(o.rows, o.cS, o.uS);
        this->each_n([&](int64_t i) { st(m.lse_n + i, ld(o.vY + i) + ld(o.rows.R + i)); });
        this->find_q(s.duals, m);
        this->each_n([&](int64_t i) { st(o.vS + i, ld(o.vY + i) + ld(m.log_q + i) - ld(m.lse_n + i)); });
    }

    void reverse() {
        const int64_t K = in.K();
        double dcS = 0, da = 0, drho = 0;
        this->start_reverse();
        this->zero_d(duS);
        this->zero_n(dvS);
        if (in.plan()) {
            bag.load_derivatives(in.matrix(in.call().dout));
            bag.template reverse_plan<OF_X>(primal(K).rows, primal(K).marginals.q, duS, dvS, dcS);
        } else {
            bag.template reverse_pool<OF_X>(last, in.dy(), this->mean, dvS, dcS, this->weight);
        }
        reverse_update(state(K), primal(K), dcS, da, drho);
        in.add_dweight(0, K - 1, da);
        in.add_dweight(3, K - 1, drho);
        for (int64_t k = K - 1; k >= 0; --k) {
            double dboth = 0;
            drho = 0;
            this->reverse_duals(state(k).duals, primal(k).marginals, state(k + 1).duals, k, drho, dboth);
            da = daz + dboth; // az of the next state is this module's alpha0
            drho += dboth;
            this->copy_d(duS, du);
            this->copy_n(dvS, dv);
            reverse_update(state(k), primal(k), dc, da, drho);
            in.add_dweight(0, k, da);
            in.add_dweight(3, k, drho);
        }
        this->finish_reverse(du, dv);
    }

    // From dcS, duS, dvS, dlog_p, dlog_q and dlse_n: sets dc, daz, du, dv, d.f and d.log_mu, adds to d.z1, d.z2 and
    // d.log_eta.
    void reverse_update(const EntropicState<T> &s, const EntropicPrimal<T> &o, double dcS, double &da, double &drho) {
        const int64_t N = bag.N, D = bag.D;
        const Marginals<T> &m = o.marginals;
        const double a = m.a, rho = m.rho;

        const double dshare = this->reverse_q(s.duals, m, dvS);
        const double square = (a + 2 * rho) * (a + 2 * rho);
        da -= dshare * rho / square;
        drho += dshare * a / square;
        this->each_n([&](int64_t i) { st(dvY + i, ld(dvS + i) + ld(dlse_n + i)); });
        bag.template reverse<OF_X>(o.rows, dlse_n, scratch_d, dcS);
        this->each_d([&](int64_t i) { st(duS + i, ld(duS + i) + ld(scratch_d + i)); });

        // cS, uS, vY = (az (c, u, v) + (0, 0, f + z2) + rho (cP, uP, vP)) / (a + rho)
        const double by_sum = 1 / (a + rho);
        daz = by_sum * (dcS * s.c + dot(duS, s.u, D) + dot(dvY, s.v, N));
        drho += by_sum * (dcS * o.cP + dot(duS, o.uP, D) + dot(dvY, o.vP, N));
        const double scale = by_sum * (dcS * o.cS + dot(duS, o.uS, D) + dot(dvY, o.vY, N));
        da -= scale;
        drho -= scale;
        const T old = T(by_sum * s.az), fresh = T(by_sum * rho);
        dc = by_sum * s.az * dcS;
        double dcP = by_sum * rho * dcS;
        this->each_d([&](int64_t i) {
            st(du + i, ld(duS + i) * old);
            st(duP + i, ld(duS + i) * fresh);
        });
        this->each_n([&](int64_t i) {
            const V<T> g = ld(dvY + i);
            st(dv + i, g * old);
            st(d.f + i, g * T(by_sum));
            st(d.z2 + i, ld(d.z2 + i) + g * T(by_sum));
            st(dvP + i, g * fresh);
        });

        this->reverse_p(m, duP);
        this->each_d([&](int64_t i) { st(duY + i, ld(duP + i) + ld(dlse_d + i)); });
        bag.template reverse<OF_X>(o.columns, dlse_d, dvP, dcP, this->weight);

        // cP, uY, vP = (c, u, v)(1 - az / rho) + (1, top + z1, -f) / rho
        const double stay = 1 - s.az / rho;
        const double dstay = dcP * s.c + dot(duY, s.u, D) + dot(dvP, s.v, N);
        const double moved = dcP - dot(dvP, s.duals.f, N) + this->total_d([&](int64_t i) {
            return ld(duY + i) * (ld(bag.centred + i) + ld(s.duals.z1 + i));
        });
        daz -= dstay / rho;
        drho += (dstay * s.az - moved) / (rho * rho);
        dc += stay * dcP;
        this->each_d([&](int64_t i) {
            st(du + i, ld(du + i) + T(stay) * ld(duY + i));
            st(d.z1 + i, ld(d.z1 + i) + ld(duY + i) / T(rho));
        });
        this->each_n([&](int64_t i) {
            st(dv + i, ld(dv + i) + T(stay) * ld(dvP + i));
            st(d.f + i, ld(d.f + i) - ld(dvP + i) / T(rho));
        });
    }
};

} // namespace
