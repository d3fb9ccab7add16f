// Sinkhorn for windows of an image: sinkhorn.h with uniform priors, W windows at a time, one in each lane.
//
// X = Xc + top with s Xc <= 0, and the plan is that of s X (call.scale). Module k does, with a = alpha0[k] and in base
// 2, c2 = s log2(e) / a, E = 2^(c2 Xc), f = 2^v2:
//
//     S_c = sum_n E f        u2 = (1 - tau1) c2 top - tau1 log2 S         w = 2^u2
//     R_n = sum_c E w        q = -log2 R - max                            v2 = tau2 q a / (a of the next module)
//
// A uniform prior adds a constant to u or v, which cancels. No exponent is above 0 but that of w, where S is small: so
// a window is given up when an S or R comes out too small to be trusted. It is done again the tight way, each sum
// relative to its own largest term and with exponentials of its own. That is for its lane alone: the tile is solved
// once more and only the lanes that need it are taken from there. What a window gives depends on nothing but the
// window. A scale for all channels is part of c2. One for each channel (Scaled) is not: it is multiplied in where X is
// read, and its derivative is summed for each channel.
#pragma once

#include "window_tile.h"

namespace {

// Then w is at most 2^30 (2^250), and what a term loses that is cut off at the smallest number is nothing beside R.
template <class T> constexpr T TRUSTED_S = sizeof(T) == 4 ? T(0x1p-30) : T(0x1p-250);
template <class T> constexpr T TRUSTED_R = sizeof(T) == 4 ? T(0x1p-40) : T(0x1p-400);

constexpr int64_t KEPT_BYTES = 1 << 17;

template <class T> struct WindowStep {
    T *log_S, *inverse_S; // (C): tight: of S relative to ref
    T *w;                 // (C); tight: u2
    T *ref;               // (C): tight: largest exponent of the column
    T *v2, *f;            // (N): at the start of the module
    T *log_R, *inverse_R; // (N); tight: of R relative to row_ref
    T *row_ref, *q;       // (N)
    double a, tau1, rest, tau2; // rest: 1 - tau1
    T c2;
    int64_t slot; // where E is
};

template <class T, bool Scaled> struct WindowForward {
    const WindowJob &job;
    const uotpool_window_call &call;
    Tile<T, Scaled> tile;
    const double s; // scale of all channels
    bool regular;   // no weight for which an exponent could be positive
    WindowStep<T> *steps, last; // last: the sums of the output, over samples only
    int64_t slots;              // as many E are kept: of all modules for the way back, if the second cache has room
    T *E, *E_c2;                // (slots, N, C); what each was made with, NaN: nothing yet
    T *S, *mean;                // (C)
    T *dX, *dy, *du, *G;        // (N, C), (C), ...
    T *dv, *D;                  // (N)
    T *by_scale, *sum_by_scale; // scaled: (C): derivative by the scale, in this tile; in all

    WindowForward(const WindowJob &j, Arena &arena)
        : job(j), call(*j.call), tile(j, arena),
          s(j.call->scale && !Scaled ? double(*(const T *)j.call->scale) : 1.0) {
        const int64_t count = job.backward ? call.K : 1;
        steps = arena.take<WindowStep<T>>(count);
        for (int64_t k = 0; k < count; ++k) {
            const WindowStep<T> step = make_step(arena);
            if (steps)
                steps[k] = step;
        }
        last = make_step(arena);
        const int64_t entries = job.most * tile.width;
        slots = job.backward && call.K * entries * int64_t(sizeof(T)) <= KEPT_BYTES ? call.K : 1;
        E = arena.take<T>(slots * entries);
        E_c2 = arena.take<T>(slots);
        S = arena.take<T>(tile.width);
        mean = arena.take<T>(tile.width);
        if (job.backward) {
            dX = arena.take<T>(job.most * tile.width);
            dy = arena.take<T>(tile.width);
            du = arena.take<T>(tile.width);
            G = arena.take<T>(tile.width);
            dv = arena.take<T>(job.most * W<T>);
            D = arena.take<T>(job.most * W<T>);
            by_scale = Scaled ? arena.take<T>(tile.width) : nullptr;
            sum_by_scale = Scaled ? arena.take<T>(tile.width) : nullptr;
            if (sum_by_scale)
                memset(sum_by_scale, 0, size_t(tile.width) * sizeof(T));
        }
        regular = true;
        for (int64_t k = 0; steps && k < call.K; ++k)
            regular = regular && weight(0, k) > 0 && weight(1, k) >= 0 && weight(2, k) >= 0;
    }

    WindowStep<T> make_step(Arena &arena) const {
        WindowStep<T> step = {};
        T **const of_channels[] = {&step.log_S, &step.inverse_S, &step.w, &step.ref};
        for (T **p : of_channels)
            *p = arena.take<T>(tile.width);
        T **const of_samples[] = {&step.v2, &step.f, &step.log_R, &step.inverse_R, &step.row_ref, &step.q};
        for (T **p : of_samples)
            *p = arena.take<T>(job.most * W<T>);
        return step;
    }

    double weight(int which, int64_t k) const { return ((const T *)call.weights)[which * call.K + k]; }
    WindowStep<T> &step(int64_t k) { return steps[job.backward ? k : 0]; }

    template <bool Tight> LaneSet iterate(LaneSet set) {
        LaneSet bad = 0;
        for (int64_t i = 0; i < slots; ++i)
            E_c2[i] = T(__builtin_nan(""));
        rows_of(tile.N, [&](int64_t n) { st(last.q + n, tile.poison); });
        double a_before = 0, tau2_before = 0;
        for (int64_t k = 0; k < call.K; ++k) {
            WindowStep<T> &m = step(k);
            m.a = weight(0, k);
            m.tau1 = weight(1, k) / (m.a + weight(1, k));
            m.rest = m.a / (m.a + weight(1, k));
            m.tau2 = weight(2, k) / (m.a + weight(2, k));
            m.c2 = T(s / m.a * LOG2E<double>);
            m.slot = slots == 1 ? 0 : k > 0 && m.c2 == step(k - 1).c2 ? step(k - 1).slot : k;
            start(m, k == 0 ? last.q : step(k - 1).q, k == 0 ? 1 : tau2_before * a_before / m.a);
            columns<Tight>(m, S);
            const V<T> least_S = channels<Tight>(m);
            const V<T> least_R = rows<Tight>(m);
            a_before = m.a;
            tau2_before = m.tau2;
            if constexpr (!Tight) {
                bad |= (lanes_below<T>(least_S, TRUSTED_S<T>) | lanes_below<T>(least_R, TRUSTED_R<T>)) & set;
                if (bad == set)
                    return bad;
            }
        }
        last.c2 = step(call.K - 1).c2;
        last.slot = step(call.K - 1).slot;
        start(last, step(call.K - 1).q, tau2_before);
        const V<T> least = pool<Tight>();
        if constexpr (!Tight)
            bad |= lanes_below<T>(least, TRUSTED_S<T>) & set;
        return bad;
    }

    // f(n W) for each sample.
    template <class F> static void rows_of(int64_t N, F f) { each<T>(N * W<T>, f); }

    // v2 = factor q where the sample is there.
    void start(WindowStep<T> &m, const T *q, double factor) const {
        rows_of(tile.N, [&](int64_t n) {
            const V<T> there = ld(tile.present + n), v2 = T(factor) * ld(q + n);
            st(m.v2 + n, there > 0 ? v2 : NOTHING<T> - V<T>{});
            st(m.f + n, exp2v<T>(v2) * there);
        });
    }

    T *E_of(const WindowStep<T> &m) const { return E + m.slot * job.most * tile.width; }

    // sums = sum_n E factor, with E made if it is of another c2.
    void sum_rows(const WindowStep<T> &m, const T *factor, T *sums) {
        const int64_t width = tile.width; // copies stay in registers; see Bag
        const T *const X = tile.X;
        const auto scale = tile.scale;
        T *const E = E_of(m);
        const T c2 = m.c2;
        const bool fresh = c2 != E_c2[m.slot];
        E_c2[m.slot] = c2;
        memset(sums, 0, size_t(width) * sizeof(T));
        row_blocks(0, tile.N, [&](auto count, int64_t n) {
            constexpr int R = decltype(count)::value;
            V<T> by[R];
            for (int r = 0; r < R; ++r)
                by[r] = ld(factor + (n + r) * W<T>);
            if (fresh)
                each<T>(width, [&](int64_t d) {
                    V<T> sum = ld(sums + d), e[R];
                    const auto by_X = scale.times(c2, d);
                    for (int r = 0; r < R; ++r)
                        e[r] = by_X * ld(X + (n + r) * width + d);
                    exp2_all<T, R>(e);
                    for (int r = 0; r < R; ++r) {
                        st(E + (n + r) * width + d, e[r]);
                        sum += e[r] * by[r];
                    }
                    st(sums + d, sum);
                });
            else
                each<T>(width, [&](int64_t d) {
                    V<T> sum = ld(sums + d);
                    for (int r = 0; r < R; ++r)
                        sum += ld(E + (n + r) * width + d) * by[r];
                    st(sums + d, sum);
                });
        });
    }

    template <bool Tight> void columns(WindowStep<T> &m, T *sums) {
        if constexpr (!Tight) {
            sum_rows(m, m.f, sums);
            return;
        }
        const int64_t width = tile.width, N = tile.N;
        const T *const X = tile.X, *const v2 = m.v2;
        const auto scale = tile.scale;
        T *const ref = m.ref;
        each<T>(width, [&](int64_t d) {
            const auto c2 = scale.times(m.c2, d);
            V<T> most = fma<T>(c2, ld(X + d), ld(v2));
            for (int64_t n = 1; n < N; ++n)
                most = vmax(fma<T>(c2, ld(X + n * width + d), ld(v2 + n * W<T>)), most);
            st(ref + d, most);
        });
        memset(sums, 0, size_t(width) * sizeof(T));
        row_blocks(0, N, [&](auto count, int64_t n) {
            constexpr int R = decltype(count)::value;
            each<T>(width, [&](int64_t d) {
                V<T> sum = ld(sums + d), e[R];
                const auto c2 = scale.times(m.c2, d);
                for (int r = 0; r < R; ++r)
                    e[r] = fma<T>(c2, ld(X + (n + r) * width + d), ld(v2 + (n + r) * W<T>)) - ld(ref + d);
                exp2_all<T, R>(e);
                for (int r = 0; r < R; ++r)
                    sum += e[r];
                st(sums + d, sum);
            });
        });
    }

    // w from S; the least S.
    template <bool Tight> V<T> channels(WindowStep<T> &m) {
        const int64_t width = tile.width;
        const T *const S = this->S, *const centred = tile.centred, *const ref = m.ref;
        T *const log_S = m.log_S, *const inverse = m.inverse_S, *const w = m.w;
        const T tau1 = T(m.tau1), rest = T(m.rest) * m.c2;
        const bool keep = job.backward;
        V<T> least = ld(S), most = NOTHING<T> - V<T>{};
        // Logarithms, then exponentials: the two in a row would leave the processor waiting.
        each<T>(width, [&](int64_t d) {
            const V<T> sum = ld(S + d), log = log2v<T>(sum);
            least = -vmax(-sum, -least);
            const V<T> u = rest * ld(centred + d) - tau1 * (Tight ? log + ld(ref + d) : log);
            if constexpr (Tight)
                most = vmax(u, most);
            st(w + d, u);
            if (keep) {
                st(log_S + d, log);
                st(inverse + d, 1 / sum);
            }
        });
        if constexpr (Tight)
            each<T>(width, [&](int64_t d) { st(w + d, ld(w + d) - most); });
        else
            row_blocks(0, width / W<T>, [&](auto count, int64_t c) {
                constexpr int R = decltype(count)::value;
                V<T> u[R];
                for (int r = 0; r < R; ++r)
                    u[r] = ld(w + (c + r) * W<T>);
                exp2_all<T, R>(u);
                for (int r = 0; r < R; ++r)
                    st(w + (c + r) * W<T>, u[r]);
            });
        return least;
    }

    // R, and q from it; the least R.
    template <bool Tight> V<T> rows(WindowStep<T> &m) {
        const int64_t width = tile.width;
        const T *const X = tile.X, *const E = E_of(m), *const w = m.w;
        const auto scale = tile.scale;
        V<T> least = T(1) - V<T>{}, most = NOTHING<T> - V<T>{};
        row_blocks(0, tile.N, [&](auto count, int64_t n) {
            constexpr int R = decltype(count)::value;
            V<T> sum[R] = {}, ref[R] = {};
            if constexpr (Tight) {
                for (int r = 0; r < R; ++r)
                    ref[r] = NOTHING<T> - V<T>{};
                each<T>(width, [&](int64_t d) {
                    const auto c2 = scale.times(m.c2, d);
                    for (int r = 0; r < R; ++r)
                        ref[r] = vmax(fma<T>(c2, ld(X + (n + r) * width + d), ld(w + d)), ref[r]);
                });
                each<T>(width, [&](int64_t d) {
                    V<T> e[R];
                    const auto c2 = scale.times(m.c2, d);
                    for (int r = 0; r < R; ++r)
                        e[r] = fma<T>(c2, ld(X + (n + r) * width + d), ld(w + d)) - ref[r];
                    exp2_all<T, R>(e);
                    for (int r = 0; r < R; ++r)
                        sum[r] += e[r];
                });
            } else {
                each<T>(width, [&](int64_t d) {
                    const V<T> by = ld(w + d);
                    for (int r = 0; r < R; ++r)
                        sum[r] += ld(E + (n + r) * width + d) * by;
                });
            }
            for (int r = 0; r < R; ++r) {
                const int64_t at = (n + r) * W<T>;
                const V<T> there = ld(tile.present + at), log = log2v<T>(sum[r]), q = -(log + ref[r]);
                st(m.log_R + at, log);
                st(m.inverse_R + at, 1 / sum[r]);
                st(m.row_ref + at, ref[r]);
                st(m.q + at, q);
                least = there > 0 ? -vmax(-sum[r], -least) : least;
                most = there > 0 ? vmax(q, most) : most;
            }
        });
        rows_of(tile.N, [&](int64_t n) {
            const V<T> q = ld(m.q + n) - most;
            st(m.q + n, ld(tile.present + n) > 0 ? q : V<T>{});
        });
        return least;
    }

    // mean = sum_n Xc P / sum_n P; the least sum.
    template <bool Tight> V<T> pool() {
        const int64_t width = tile.width;
        const T *const X = tile.X, *const E = E_of(last), *const f = last.f, *const v2 = last.v2, *const ref = last.ref;
        const auto scale = tile.scale;
        T *const den = last.inverse_S, *const num = mean;
        if constexpr (Tight)
            columns<true>(last, den);
        V<T> least = T(1) - V<T>{};
        with_count(tile.N, [&](auto count) {
            each<T>(width, [&](int64_t d) {
                V<T> sum = {}, whole = {};
                for (int64_t n = 0; n < count.value(); ++n) {
                    const V<T> x = ld(X + n * width + d);
                    V<T> e;
                    if constexpr (Tight)
                        e = exp2v<T>(fma<T>(scale.times(last.c2, d), x, ld(v2 + n * W<T>)) - ld(ref + d));
                    else
                        e = ld(E + n * width + d) * ld(f + n * W<T>);
                    whole += e;
                    sum += x * e;
                }
                if constexpr (Tight)
                    whole = ld(den + d);
                const V<T> inverse = 1 / whole;
                least = -vmax(-whole, -least);
                st(den + d, inverse);
                st(num + d, sum * inverse);
            });
        });
        return least;
    }
};

} // namespace
