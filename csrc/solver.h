// What the solvers have in common: where a set's numbers come from and where its results go.
#pragma once

#include "set.h"

namespace {

// What a step divides by in its exponents, and what the potentials that it leaves to later ones are multiples of.
struct Units {
    double divides, leaves;
};

template <class T> struct Source {
    const Job *job;
    int64_t b, first, n;

    const uotpool_call &call() const { return *job->call; }
    bool backward() const { return job->backward; }
    bool plan() const { return call().head == UOTPOOL_PLAN; }
    int64_t K() const { return call().K; }
    const int64_t *rows() const { return call().rows ? call().rows + first : nullptr; }
    // Offset of the first row in arrays of M rows; rows() counts from the start of the array instead.
    int64_t start() const { return call().rows ? 0 : first; }
    int64_t row(int64_t i) const { return rows() ? rows()[i] : first + i; }

    // An array of M rows, as the rows of this set.
    CallerMatrix<T> matrix(const void *array) const {
        return {array ? (T *)array + start() * call().D : nullptr, rows(), call().D};
    }
    // How many times its own rounding an exponent of the solver can be off by, in a set of this depth (Set): by X, and
    // by the potentials that the steps before left, logarithms of probabilities times a number of theirs. Such a
    // logarithm can be as large as the priors are uneven, and what is lost of it adds up over steps: 32 is measured.
    template <class Solver> double magnified(double depth) const {
        const double logarithms = 32 + spread(call().log_p0, call().D, [&](int64_t d) {
            return call().p0_shared ? d : b * call().D + d;
        }) + spread(call().log_q0, n, [&](int64_t i) { return row(i); });
        double max = 0, before = 0;
        for (int64_t k = 0; k < K(); ++k) {
            const Units units = Solver::units(*this, k);
            const double here = (depth > before ? depth : before) / units.divides;
            max = here > max ? here : max;
            before = units.leaves * logarithms > before ? units.leaves * logarithms : before;
        }
        return max;
    }
    // The distance of the largest and the smallest of these numbers of an array; 0 without one.
    template <class F> static double spread(const void *array, int64_t count, F place) {
        const T *const numbers = (const T *)array;
        double low = 0, high = 0;
        for (int64_t i = 0; numbers && i < count; ++i) {
            const double x = numbers[place(i)];
            low = i == 0 || x < low ? x : low;
            high = i == 0 || x > high ? x : high;
        }
        return high - low;
    }
    void load_scale(T *scale) const {
        const uotpool_call &c = call();
        const T *const given = (const T *)job->scale;
        if (job->scale_length > 1)
            memcpy(scale, given, size_t(c.D) * sizeof(T));
        else
            each<T>(c.D, [&](int64_t d) { st(scale + d, given[0] - V<T>{}); });
        fill_padding(scale, c.D, T(0));
    }
    double alpha0(int64_t k) const { return coefficient(UOTPOOL_ALPHA0, k); }
    double alpha1(int64_t k) const { return coefficient(UOTPOOL_ALPHA1, k); }
    double alpha2(int64_t k) const { return coefficient(UOTPOOL_ALPHA2, k); }
    double rho(int64_t k) const { return coefficient(UOTPOOL_RHO, k); }
    double coefficient(int which, int64_t k) const { return ((const T *)job->coefficients)[which * K() + k]; }
    void add_derivative(int which, int64_t k, double value) const {
        if (job->dcoefficients)
            job->dcoefficients[(b * job->per_step + which) * K() + k] += value;
    }

    // log p0 and log q0 of the set, normalised, and themselves.
    void log_priors(T *log_p0, T *p0, T *log_q0, T *q0) const {
        const uotpool_call &c = call();
        if (const T *p = (const T *)c.log_p0) {
            memcpy(log_p0, c.p0_shared ? p : p + b * c.D, size_t(c.D) * sizeof(T));
            normalise(log_p0, p0, c.D);
        } else {
            uniform(log_p0, p0, c.D);
        }
        if (const T *q = (const T *)c.log_q0) {
            for (int64_t i = 0; i < n; ++i)
                log_q0[i] = q[row(i)];
            normalise(log_q0, q0, n);
        } else {
            uniform(log_q0, q0, n);
        }
    }

    static void uniform(T *log_p, T *p, int64_t count) {
        const T one = T(1.0 / double(count)), log_one = T(-__builtin_log(double(count)));
        each<T>(count, [&](int64_t i) {
            st(log_p + i, log_one - V<T>{});
            st(p + i, one - V<T>{});
        });
        fill_padding(log_p, count, T(0));
        fill_padding(p, count, T(0));
    }

    // From derivatives by the normalised log priors to those by what was given.
    void store_dpriors(const T *dlog_p0, const T *p0, const T *dlog_q0, const T *q0) const {
        const uotpool_call &c = call();
        if (job->dlog_p0) {
            const T total = T(sum(dlog_p0, c.D));
            T *out = (T *)job->dlog_p0 + b * c.D;
            for (int64_t d = 0; d < c.D; ++d)
                out[d] = dlog_p0[d] - p0[d] * total;
        }
        if (c.dlog_q0) {
            const T total = T(sum(dlog_q0, n));
            for (int64_t i = 0; i < n; ++i)
                ((T *)c.dlog_q0)[row(i)] = dlog_q0[i] - q0[i] * total;
        }
    }

    // The derivative by the scale of feature d is the sum over n of X times that by Z = s X through the plan. One scale
    // for all features sees no constant in X, which leaves the plan as it is.
    template <class Set> void store_dscale(const Set &set) const {
        if (!job->dscale)
            return;
        const T *const top = set.top, *const by_top = set.by_top;
        const int64_t D = set.D, length = job->scale_length;
        double *const out = job->dscale + b * length;
        if (length > 1) {
            for (int64_t d = 0; d < D; ++d)
                out[d] += double(top[d]) * double(by_top[d]);
        } else {
            const T constant = top[0];
            out[0] += total<T>(D, [&](int64_t d) { return (ld(top + d) - constant) * ld(by_top + d); });
        }
        for (int64_t i = 0; i < set.chunks; ++i) {
            const T *const part = set.by_scale + i * set.Dp;
            for (int64_t d = 0; length > 1 && d < D; ++d)
                out[d] += double(part[d]);
            if (length == 1)
                out[0] += sum(part, D);
        }
    }

    const T *dy() const { return (const T *)call().dout + b * call().D; }
    void store_pooled(const T *top, const T *mean) const {
        T *y = (T *)call().out + b * call().D;
        for (int64_t d = 0; d < call().D; ++d)
            y[d] = top[d] + mean[d];
    }
};

} // namespace
