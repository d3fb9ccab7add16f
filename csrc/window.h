// Sinkhorn for windows: the results of the iterations of window_forward.h, and the derivative.
#pragma once

#include "window_forward.h"

namespace {

template <class T, bool Scaled> struct WindowSinkhorn : WindowForward<T, Scaled> {
    using Base = WindowForward<T, Scaled>;
    using Base::job, Base::call, Base::tile, Base::s, Base::last, Base::mean, Base::regular;
    using Base::dX, Base::dy, Base::du, Base::G, Base::dv, Base::D, Base::by_scale, Base::sum_by_scale;
    using Base::step, Base::weight, Base::rows_of, Base::E_of, Base::sum_rows;
    using Base::Base;

    T *out(int64_t b) const { return (T *)call.out + b * call.C * call.out_h * call.out_w; }

    // The windows from `first` on, up to W of them and before `end`.
    void run(int64_t b, int64_t first, int64_t end, double *sums) {
        tile.locate(first, end);
        if (tile.live) {
            tile.load(b, T(s < 0 ? -1 : 1));
            if (first + W<T> < end)
                tile.fetch_next(b);
            const LaneSet bad = regular ? solve<false>(b, tile.live, sums) : tile.live;
            if (bad)
                solve<true>(b, bad, sums);
        }
        if (tile.empty && !job.backward) {
            memset(mean, 0, size_t(tile.width) * sizeof(T));
            tile.output().template store<false>(out(b), tile.out_at, mean, tile.empty);
        }
    }

    // The derivative by the scale of each channel, when all windows are done.
    void finish(double *sums) const {
        if constexpr (Scaled)
            for (int64_t c = 0; job.backward && c < call.C; ++c)
                sums[3 * call.K + c] += double(lane_sum<T>(ld(sum_by_scale + c * W<T>)));
    }

    // Results for the lanes of the set, but for those that it returns: they cannot be trusted.
    template <bool Tight> LaneSet solve(int64_t b, LaneSet set, double *sums) {
        const LaneSet bad = this->template iterate<Tight>(set), good = set & ~bad;
        if (!good)
            return bad;
        if (job.backward) {
            reverse<Tight>(b, good, sums);
            return bad;
        }
        each<T>(tile.width, [&](int64_t d) { st(mean + d, ld(mean + d) + ld(tile.top + d)); });
        tile.output().template store<false>(out(b), tile.out_at, mean, good);
        return bad;
    }

    // Derivatives, as in sinkhorn.h: t = P dL and P dR are summed with the exponents for that by alpha0, and here with
    // X for that by the scale. The sums over n of t are du (rows) and -tau1 du (columns), which gives the part of
    // `top`.
    template <bool Tight> void reverse(int64_t b, LaneSet set, double *sums) {
        const int64_t K = call.K;
        const Image<T> from = tile.output(), to = tile.image();
        from.load((const T *)call.dout + b * from.C * from.size, tile.out_at, dy);
        double a_of_v = step(K - 1).a; // dv is by v / a with this one
        if constexpr (Scaled)
            memset(by_scale, 0, size_t(tile.width) * sizeof(T));
        V<T> with_x = {}, with_e = {};
        reverse_pool<Tight>(T(s / a_of_v), with_x, with_e);
        if constexpr (!Tight)
            with_e = last.c2 * with_x + dot_samples(dv, last.v2);
        double da = -LN2<double> * lanes_sum<T>(with_e, set) / a_of_v;
        double ds = lanes_sum<T>(with_x, set) / a_of_v;
        for (int64_t k = K - 1; k >= 0; --k) {
            WindowStep<T> &m = step(k);
            const double ratio = m.a / a_of_v;
            const T by_R = T(-m.tau2 * ratio);
            V<T> entropy = {};
            rows_of(tile.N, [&](int64_t n) {
                const V<T> dR = by_R * ld(dv + n);
                entropy += dR * (Tight ? ld(m.log_R + n) : -ld(m.q + n)); // dR sums to 0: a constant is left out
                st(D + n, dR * ld(m.inverse_R + n));
            });
            const double dtau2 = ratio * LN2<double> * lanes_sum<T>(dot_samples(dv, m.q), set);

            reverse_rows<Tight>(m);
            V<T> for_tau1 = {}, by_top = {}, most = NOTHING<T> - V<T>{};
            auto minus_L = [&](int64_t d) {
                const V<T> log = ld(m.log_S + d);
                return -(m.c2 * ld(tile.centred + d) + (Tight ? log + ld(m.ref + d) : log));
            };
            if constexpr (Tight)
                each<T>(tile.width, [&](int64_t d) { most = vmax(minus_L(d), most); });
            else
                most = minus_L(0); // any constant will do: du sums to 0
            each<T>(tile.width, [&](int64_t d) {
                const V<T> g = ld(du + d), dL = T(-m.tau1) * g;
                for_tau1 += g * (minus_L(d) - most);
                by_top += g * ld(tile.centred + d);
                if constexpr (Scaled)
                    st(by_scale + d, ld(by_scale + d) + g * ld(tile.top + d) * T(m.rest / m.a));
                if constexpr (Tight)
                    entropy += dL * ld(m.log_S + d);
                st(G + d, dL * ld(m.inverse_S + d));
            });
            by_top *= T(m.rest);
            with_x = with_e = V<T>{};
            reverse_columns<Tight>(m, with_x, with_e);
            if constexpr (!Tight) // the exponents are c2 X + v2, and c2 X + u2, where log S cancels
                with_e = m.c2 * (with_x + by_top) + dot_samples(dv, m.v2);
            da -= LN2<double> * lanes_sum<T>(with_e - entropy, set) / m.a;
            ds += lanes_sum<T>(with_x + by_top, set) / m.a;

            const double dtau1 = LN2<double> * lanes_sum<T>(for_tau1, set);
            const double alpha1 = weight(1, k), alpha2 = weight(2, k);
            const double sum1 = (m.a + alpha1) * (m.a + alpha1), sum2 = (m.a + alpha2) * (m.a + alpha2);
            sums[k] += da - (dtau1 * alpha1 / sum1 + dtau2 * alpha2 / sum2);
            sums[K + k] += dtau1 * m.a / sum1;
            sums[2 * K + k] += dtau2 * m.a / sum2;
            da = 0;
            a_of_v = m.a;
        }
        if constexpr (Scaled) {
            const V<T> good = ones_in<T>(set);
            each<T>(tile.width, [&](int64_t d) {
                const V<T> here = good > 0 ? ld(by_scale + d) : V<T>{}; // not times 0: a lane may hold NaN
                st(sum_by_scale + d, ld(sum_by_scale + d) + here);
            });
        } else {
            sums[3 * K] += ds;
        }
        if (!call.dX)
            return;
        T *const data = (T *)call.dX + b * to.C * to.size;
        for (int64_t n = 0; n < tile.N; ++n)
            if (job.add)
                to.template store<true>(data, tile.at + n * W<T>, dX + n * tile.width, set & tile.there[n]);
            else
                to.template store<false>(data, tile.at + n * W<T>, dX + n * tile.width, set & tile.there[n]);
    }

    V<T> dot_samples(const T *a, const T *b) const {
        V<T> sum = {};
        rows_of(tile.N, [&](int64_t n) { sum += ld(a + n) * ld(b + n); });
        return sum;
    }

    // dX and dv of the output.
    template <bool Tight> void reverse_pool(T c, V<T> &with_x, V<T> &with_e) {
        const int64_t width = tile.width;
        const T *const X = tile.X, *const E = E_of(last), *const mean = this->mean, *const ref = last.ref;
        const auto scale = tile.scale;
        T *const dX = this->dX, *const G = this->G;
        each<T>(width, [&](int64_t d) { st(G + d, ld(dy + d) * ld(last.inverse_S + d)); });
        V<T> sum_e = {};
        Products<T, Scaled> products = {scale, by_scale};
        row_blocks(0, tile.N, [&](auto count, int64_t n) {
            constexpr int R = decltype(count)::value;
            V<T> row[R] = {}, by[R];
            for (int r = 0; r < R; ++r)
                by[r] = ld((Tight ? last.v2 : last.f) + (n + r) * W<T>);
            each<T>(width, [&](int64_t d) {
                const V<T> g = ld(G + d), y = ld(mean + d);
                const auto by_Z = scale.times(c, d), c2 = scale.times(last.c2, d);
                V<T> e[R], share[R];
                for (int r = 0; r < R; ++r) {
                    const int64_t at = (n + r) * width + d;
                    if constexpr (Tight)
                        share[r] = e[r] = fma<T>(c2, ld(X + at), by[r]) - ld(ref + d);
                    else
                        share[r] = ld(E + at) * by[r];
                }
                if constexpr (Tight)
                    exp2_all<T, R>(share);
                for (int r = 0; r < R; ++r) {
                    const int64_t at = (n + r) * width + d;
                    const V<T> x = ld(X + at), p = share[r] * g, t = p * (x - y);
                    st(dX + at, p + by_Z * t);
                    row[r] += t;
                    products.add(t, x);
                    if constexpr (Tight)
                        sum_e += t * clamped<T>(e[r]);
                }
                products.finish(c, d);
            });
            for (int r = 0; r < R; ++r)
                st(dv + (n + r) * W<T>, row[r] * ld(tile.present + (n + r) * W<T>));
        });
        with_x = products.all;
        with_e = sum_e;
    }

    // du = sum_n P dR of the rows.
    template <bool Tight> void reverse_rows(WindowStep<T> &m) {
        const int64_t width = tile.width;
        if constexpr (!Tight) {
            sum_rows(m, D, du);
            each<T>(width, [&](int64_t d) { st(du + d, ld(du + d) * ld(m.w + d)); });
            return;
        }
        const T *const X = tile.X, *const u2 = m.w;
        const auto scale = tile.scale;
        T *const du = this->du;
        memset(du, 0, size_t(width) * sizeof(T));
        row_blocks(0, tile.N, [&](auto count, int64_t n) {
            constexpr int R = decltype(count)::value;
            each<T>(width, [&](int64_t d) {
                V<T> e[R], sum = ld(du + d);
                const auto c2 = scale.times(m.c2, d);
                for (int r = 0; r < R; ++r)
                    e[r] = fma<T>(c2, ld(X + (n + r) * width + d), ld(u2 + d)) - ld(m.row_ref + (n + r) * W<T>);
                exp2_all<T, R>(e);
                for (int r = 0; r < R; ++r)
                    sum += e[r] * ld(D + (n + r) * W<T>);
                st(du + d, sum);
            });
        });
    }

    // Adds to dX for both directions of a module; dv from the columns.
    template <bool Tight> void reverse_columns(WindowStep<T> &m, V<T> &with_x, V<T> &with_e) {
        const int64_t width = tile.width;
        const T *const X = tile.X, *const E = E_of(m), *const G = this->G, *const w = m.w, *const ref = m.ref;
        const auto scale = tile.scale;
        T *const dX = this->dX;
        const T c = T(s / m.a);
        V<T> sum_e = {};
        Products<T, Scaled> products = {scale, by_scale};
        row_blocks(0, tile.N, [&](auto count, int64_t n) {
            constexpr int R = decltype(count)::value;
            V<T> row[R] = {}, by[R], rows[R], row_ref[R];
            for (int r = 0; r < R; ++r) {
                by[r] = ld((Tight ? m.v2 : m.f) + (n + r) * W<T>);
                rows[r] = ld(D + (n + r) * W<T>);
                row_ref[r] = ld(m.row_ref + (n + r) * W<T>);
            }
            each<T>(width, [&](int64_t d) {
                const V<T> g = ld(G + d), u = ld(w + d);
                const auto by_Z = scale.times(c, d);
                if constexpr (Tight) {
                    const auto c2 = scale.times(m.c2, d);
                    for (int r = 0; r < R; ++r) {
                        const int64_t at = (n + r) * width + d;
                        const V<T> x = ld(X + at);
                        const V<T> e[2] = {fma<T>(c2, x, by[r]) - ld(ref + d), fma<T>(c2, x, u) - row_ref[r]};
                        V<T> p[2] = {e[0], e[1]};
                        exp2_all<T, 2>(p);
                        const V<T> of_column = p[0] * g, of_row = p[1] * rows[r], t = of_column + of_row;
                        st(dX + at, ld(dX + at) + by_Z * t);
                        row[r] += of_column;
                        products.add(t, x);
                        sum_e += of_column * clamped<T>(e[0]) + of_row * clamped<T>(e[1]);
                    }
                } else {
                    for (int r = 0; r < R; ++r) {
                        const int64_t at = (n + r) * width + d;
                        const V<T> e = ld(E + at), t = e * (u * rows[r] + g * by[r]);
                        st(dX + at, ld(dX + at) + by_Z * t);
                        row[r] += e * g;
                        products.add(t, ld(X + at));
                    }
                }
                products.finish(c, d);
            });
            for (int r = 0; r < R; ++r) {
                const V<T> sum = Tight ? row[r] : row[r] * by[r];
                st(dv + (n + r) * W<T>, sum * ld(tile.present + (n + r) * W<T>));
            }
        });
        with_x = products.all;
        with_e = sum_e;
    }
};

} // namespace
