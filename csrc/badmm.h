// What the two Bregman ADMMs share: priors, duals, and the marginals mu and eta (solvers/badmm.py).
#pragma once

#include "solver.h"

namespace {

// Duals and auxiliary marginals that a primal update starts from. The dual Z is a multiple of a matrix of the update
// before, plus f_n. Each solver has its own way to hold f, in z; derivatives are by f in both.
template <class T> struct Duals {
    T *z1, *log_mu;      // per feature
    T *z, *z2, *log_eta; // per sample
};

// Marginals that it finds: of P over features and of S over samples, with the log sums they are made of.
template <class T> struct Marginals {
    T *lse_d, *log_p, *p; // per feature
    T *lse_n, *log_q, *q; // per sample
    double a = 0, rho = 0, share = 0; // log q = norm(lse + share (log eta - lse)); log p has 1/2
    double both = 0;                  // f = both (lse - log q) - z2
};

template <class T, Place Where, bool Scaled> struct Badmm {
    const Source<T> &in;
    Set<T, Where, Scaled> &set;
    const bool keep;
    T *log_p0, *p0, *log_q0, *q0, *mean, *scratch_d, *scratch_n;
    Duals<T> d; // derivatives by the duals
    T *dlog_p, *dlse_d, *dlog_p0, *dlog_q, *dlse_n, *dlog_q0, *weight;

    Badmm(const Source<T> &source, Set<T, Where, Scaled> &b, Arena &arena)
        : in(source), set(b), keep(source.backward()) {
        log_p0 = set.per_feature(arena);
        p0 = set.per_feature(arena);
        mean = set.per_feature(arena);
        scratch_d = set.per_feature(arena);
        log_q0 = set.per_sample(arena);
        q0 = set.per_sample(arena);
        scratch_n = set.per_sample(arena);
        if (keep) {
            d = take_duals(arena);
            dlog_p = set.per_feature(arena);
            dlse_d = set.per_feature(arena);
            dlog_p0 = set.per_feature(arena);
            weight = set.per_feature(arena);
            dlog_q = set.per_sample(arena);
            dlse_n = set.per_sample(arena);
            dlog_q0 = set.per_sample(arena);
        }
    }

    Duals<T> take_duals(Arena &arena) const {
        return {set.per_feature(arena), set.per_feature(arena), set.per_sample(arena), set.per_sample(arena),
                set.per_sample(arena)};
    }

    Marginals<T> take_marginals(Arena &arena) const {
        return {set.per_feature(arena), set.per_feature(arena), set.per_feature(arena),
                set.per_sample(arena),  set.per_sample(arena),  set.per_sample(arena)};
    }

    void zero_d(T *a) const { memset(a, 0, size_t(set.Dp) * sizeof(T)); }
    void zero_n(T *a) const { memset(a, 0, size_t(set.Np) * sizeof(T)); }
    void copy_d(T *to, const T *from) const { memcpy(to, from, size_t(set.Dp) * sizeof(T)); }
    void copy_n(T *to, const T *from) const { memcpy(to, from, size_t(set.Np) * sizeof(T)); }
    template <class F> UOTPOOL_INLINE void each_d(F f) const { each<T>(set.D, f); }
    template <class F> UOTPOOL_INLINE void each_n(F f) const { each<T>(set.N, f); }
    template <class F> UOTPOOL_INLINE double total_d(F f) const { return total<T>(set.D, f); }
    template <class F> UOTPOOL_INLINE double total_n(F f) const { return total<T>(set.N, f); }

    void start(Duals<T> &s) const {
        copy_d(s.log_mu, log_p0);
        copy_n(s.log_eta, log_q0);
        zero_d(s.z1);
        zero_n(s.z);
        zero_n(s.z2);
    }

    // log p = norm((log mu + lse) / 2), and p.
    void find_p(const Duals<T> &s, Marginals<T> &o) const {
        fill_padding(o.lse_d, set.D, T(0)); // a padded column has a sum, but not one of the problem
        each_d([&](int64_t i) { st(o.log_p + i, T(0.5) * (ld(s.log_mu + i) + ld(o.lse_d + i))); });
        normalise(o.log_p, o.p, set.D);
    }

    void find_q(const Duals<T> &s, Marginals<T> &o) const {
        fill_padding(o.lse_n, set.N, T(0));
        each_n([&](int64_t i) {
            const V<T> lse = ld(o.lse_n + i);
            st(o.log_q + i, lse + T(o.share) * (ld(s.log_eta + i) - lse));
        });
        normalise(o.log_q, o.q, set.N);
    }

    // All but z.
    void move_duals(const Duals<T> &s, const Marginals<T> &o, Duals<T> &next, int64_t k) const {
        const double alpha1 = in.alpha1(k), alpha2 = in.alpha2(k);
        const T rho = T(o.rho);
        const double sum1 = alpha1 + o.rho, sum2 = alpha2 + o.rho;
        const T keep1 = T(alpha1 / sum1), new1 = T(o.rho / sum1), by1 = T(1 / sum1);
        each_d([&](int64_t i) {
            st(next.log_mu + i, ld(log_p0 + i) * keep1 + ld(o.log_p + i) * new1 - ld(s.z1 + i) * by1);
        });
        normalise(next.log_mu, scratch_d, set.D);
        each_d([&](int64_t i) { st(next.z1 + i, ld(s.z1 + i) + rho * (ld(next.log_mu + i) - ld(o.log_p + i))); });
        const T keep2 = T(alpha2 / sum2), new2 = T(o.rho / sum2), by2 = T(1 / sum2);
        each_n([&](int64_t i) {
            const V<T> log_q = ld(o.log_q + i), z2 = ld(s.z2 + i);
            const V<T> moved = z2 + rho * (ld(s.log_eta + i) - log_q);
            st(next.z2 + i, moved);
            st(next.log_eta + i, ld(log_q0 + i) * keep2 + log_q * new2 - moved * by2);
        });
        normalise(next.log_eta, scratch_n, set.N);
    }

    void start_reverse() {
        set.start_derivatives();
        zero_d(dlog_p0);
        zero_n(dlog_q0);
        zero_d(dlog_p);
        zero_n(dlog_q);
        zero_n(dlse_n);
        zero_d(d.z1);
        zero_d(d.log_mu);
        zero_n(d.z);
        zero_n(d.z2);
        zero_n(d.log_eta);
    }

    // Through move_duals: from d, by the duals `next`, to dlog_p, dlog_q and dlse_n (set) and d by the duals `s` as far
    // as move_duals saw them. Adds to drho, and to the derivative by `both`.
    void reverse_duals(const Duals<T> &s, const Marginals<T> &o, const Duals<T> &next, int64_t k, double &drho,
                       double &dboth) {
        const double alpha1 = in.alpha1(k), alpha2 = in.alpha2(k);
        const T rho = T(o.rho), both = T(o.both);

        // log eta' = norm((alpha2 log q0 + rho log q - z2') / (alpha2 + rho)). Derivatives sum to 0 before norm, so
        // the constant that it takes out does not count in those by the coefficients.
        const T sum_eta = T(sum(d.log_eta, set.N)), by2 = T(1 / (alpha2 + o.rho));
        each_n([&](int64_t i) {
            const V<T> eta = exp2v<T>(ld(next.log_eta + i) * LOG2E<T>);
            st(scratch_n + i, (ld(d.log_eta + i) - eta * sum_eta) * by2);
        });
        fill_padding(scratch_n, set.N, T(0));
        in.add_derivative(UOTPOOL_ALPHA2, k, total_n([&](int64_t i) {
            return ld(scratch_n + i) * (ld(log_q0 + i) - ld(next.log_eta + i));
        }));
        drho += total_n([&](int64_t i) { return ld(scratch_n + i) * (ld(o.log_q + i) - ld(next.log_eta + i)); });
        dboth += total_n([&](int64_t i) { return ld(d.z + i) * (ld(o.lse_n + i) - ld(o.log_q + i)); });
        each_n([&](int64_t i) {
            // z2' = z2 + rho (log eta - log q),  f' = both (lse - log q) - z2
            const V<T> g = ld(scratch_n + i), df = ld(d.z + i), dz2 = ld(d.z2 + i) - g;
            st(dlog_q0 + i, ld(dlog_q0 + i) + T(alpha2) * g);
            st(dlog_q + i, rho * (g - dz2) - both * df);
            st(dlse_n + i, both * df);
            st(d.log_eta + i, rho * dz2);
            st(d.z2 + i, dz2 - df);
            st(scratch_n + i, dz2);
        });
        drho += total_n([&](int64_t i) { return ld(scratch_n + i) * (ld(s.log_eta + i) - ld(o.log_q + i)); });

        // z1' = z1 + rho (log mu' - log p),  log mu' = norm((alpha1 log p0 + rho log p - z1) / (alpha1 + rho))
        drho += total_d([&](int64_t i) { return ld(d.z1 + i) * (ld(next.log_mu + i) - ld(o.log_p + i)); });
        each_d([&](int64_t i) { st(d.log_mu + i, ld(d.log_mu + i) + rho * ld(d.z1 + i)); });
        const T sum_mu = T(sum(d.log_mu, set.D)), by1 = T(1 / (alpha1 + o.rho));
        each_d([&](int64_t i) {
            const V<T> mu = exp2v<T>(ld(next.log_mu + i) * LOG2E<T>);
            st(scratch_d + i, (ld(d.log_mu + i) - mu * sum_mu) * by1);
        });
        fill_padding(scratch_d, set.D, T(0));
        in.add_derivative(UOTPOOL_ALPHA1, k, total_d([&](int64_t i) {
            return ld(scratch_d + i) * (ld(log_p0 + i) - ld(next.log_mu + i));
        }));
        drho += total_d([&](int64_t i) { return ld(scratch_d + i) * (ld(o.log_p + i) - ld(next.log_mu + i)); });
        each_d([&](int64_t i) {
            const V<T> g = ld(scratch_d + i);
            st(dlog_p0 + i, ld(dlog_p0 + i) + T(alpha1) * g);
            st(dlog_p + i, rho * (g - ld(d.z1 + i)));
            st(d.z1 + i, ld(d.z1 + i) - g);
        });
    }

    // Through find_q, the plan's rows being log S = Y + log q - lse: from dlog_q, dlse_n and the row sums of the
    // derivative by log S, to dlse_n; adds to d.log_eta. Returns the derivative by `share`.
    double reverse_q(const Duals<T> &s, const Marginals<T> &o, const T *rows) {
        each_n([&](int64_t i) { st(dlog_q + i, ld(dlog_q + i) + ld(rows + i)); });
        const T sum_q = T(sum(dlog_q, set.N)), share = T(o.share);
        each_n([&](int64_t i) {
            const V<T> g = ld(dlog_q + i) - ld(o.q + i) * sum_q;
            st(scratch_n + i, g);
            st(d.log_eta + i, ld(d.log_eta + i) + share * g);
            st(dlse_n + i, ld(dlse_n + i) - ld(rows + i) + (1 - share) * g);
        });
        return total_n([&](int64_t i) { return ld(scratch_n + i) * (ld(s.log_eta + i) - ld(o.lse_n + i)); });
    }

    // Through find_p, with log P = Y + log p - lse: from dlog_p and the column sums of the derivative by log P to
    // dlse_d; sets d.log_mu.
    void reverse_p(const Marginals<T> &o, const T *columns) {
        each_d([&](int64_t i) { st(dlog_p + i, ld(dlog_p + i) + ld(columns + i)); });
        const T sum_p = T(sum(dlog_p, set.D));
        each_d([&](int64_t i) {
            const V<T> half = T(0.5) * (ld(dlog_p + i) - ld(o.p + i) * sum_p);
            st(d.log_mu + i, half);
            st(dlse_d + i, half - ld(columns + i));
        });
    }

    // Both priors are where log mu, log eta and log S start.
    void finish_reverse(const T *by_features, const T *by_samples) {
        each_d([&](int64_t i) { st(dlog_p0 + i, ld(dlog_p0 + i) + ld(by_features + i) + ld(d.log_mu + i)); });
        each_n([&](int64_t i) { st(dlog_q0 + i, ld(dlog_q0 + i) + ld(by_samples + i) + ld(d.log_eta + i)); });
        in.store_dpriors(dlog_p0, p0, dlog_q0, q0);
        if constexpr (Scaled)
            in.store_dscale(set);
        set.store_derivatives(in.matrix(in.call().dX));
    }
};

} // namespace
