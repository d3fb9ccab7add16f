// Quadratic Bregman ADMM: solvers/badmm.py with the dual Z eliminated, and its derivative.
//
// The S update is log S = Y + log q - lse with Y = log P + (Z + z2 - a P) / rho, so Z + rho (log P - log S) is
// a P + f_n with f = rho (lse - log q) - z2. A primal update with (a, rho), where Z = az Pb + f (Pb the P of the update
// before; az = 0 at the start) and rho already has its a max(Pb, S) added, then is
//
//     Y = log S + (X + z1 - az Pb - f - a S) / rho       log p = norm((log mu + lse_d) / 2)     log P = Y + log p - lse
//     Y = log P + (az Pb - a P + f + z2) / rho           log q = norm((log eta + lse_n) / 2)    log S = Y + log q - lse
//
// lse being the logsumexp of Y over samples and over features. The exponentials of those sums, E and F, are all there
// is to P = E p / sum_n E and S = F q / sum_d F: two an entry, and none in the derivative of a small set, which keeps E
// and F of every update. For a large one that would be 2 K + 2 times X: it keeps L and E after every third update, and
// computes those in between again, a few rows at a time (badmm_q_rows.h). A column or row that underflows in P or S is
// still there in E or F. Entries far below the largest of their row or column are zero, as their derivatives are
// multiplied by X again and again.
#pragma once

#include "badmm.h"
#include "badmm_q_rows.h"

namespace {

template <class T> struct QuadraticState {
    T *by_d, *by_n; // P = E by_d, S = F by_n
    T *shift;       // log S = L + shift_n
    Duals<T> duals;
    T *tied_d, *tied_n; // large sets: how many of each column of P and of each row of S are as large as `max`
    int64_t tied = 0;   // how many in all
    double az = 0, max = 0;             // max: max(P, S), of the update before
    const T *E = nullptr, *F = nullptr; // its matrices
};

// What stands for the columns in the formulas of the entries.
template <class T> struct QuadraticColumns {
    T *by_x, *u, *before, *top; // of the P update; top: the largest of the column
    T *u_S, *now;               // of the S update
};

template <class T> struct QuadraticPrimal {
    Marginals<T> marginals;
    T *E, *F;
    T *inverse_d, *inverse_n; // 1 / sum_n E, 1 / sum_d F
    QuadraticColumns<T> columns;
    T *max_n; // large sets: the largest of each row of L
};

// Entries of some rows at an update: E and F of it, and of the one before.
template <class T> struct QuadraticEntries {
    const T *E, *F, *Eb, *Fb;
};

template <class T, Place Where, bool Scaled> struct QuadraticForward : Badmm<T, Where, Scaled> {
    using Base = Badmm<T, Where, Scaled>;
    using Base::set, Base::in, Base::keep;
    static constexpr bool LARGE = Where == IN_PLACE;
    static constexpr int64_t SEGMENT = 3; // updates from one checkpoint to the next
    QuadraticState<T> *states;
    QuadraticPrimal<T> *primals;
    T *L;        // (N, Dp): Y of the last update
    T *E;        // large sets: (N, Dp), E of the last update
    T *kept;     // large sets: L and E at the start of each segment but the first
    T *buffers;  // large sets: (threads, RowBuffers, Dp)
    Slots slots;

    QuadraticForward(const Source<T> &source, Set<T, Where, Scaled> &b, Arena &arena) : Base(source, b, arena) {
        const int64_t size = set.N * set.Dp;
        const int64_t count = keep ? in.K() + 1 : 2; // E of the update before is read while that of this one is made
        states = arena.take<QuadraticState<T>>(count);
        primals = arena.take<QuadraticPrimal<T>>(count);
        T *first = LARGE ? nullptr : arena.take<T>(size); // S at the start, as F
        const QuadraticColumns<T> shared = take_columns(arena);
        for (int64_t k = 0; k < count; ++k) {
            const QuadraticState<T> s = {set.per_feature(arena),
                                         set.per_sample(arena),
                                         set.per_sample(arena),
                                         this->take_duals(arena),
                                         LARGE && keep ? set.per_feature(arena) : nullptr,
                                         LARGE && keep ? set.per_sample(arena) : nullptr};
            const QuadraticPrimal<T> p = {this->take_marginals(arena),
                                          LARGE ? nullptr : arena.take<T>(size),
                                          LARGE ? nullptr : arena.take<T>(size),
                                          set.per_feature(arena),
                                          set.per_sample(arena),
                                          LARGE && keep ? take_columns(arena) : shared,
                                          LARGE ? set.per_sample(arena) : nullptr};
            if (states) {
                states[k] = s;
                primals[k] = p;
            }
        }
        if (states)
            states[0].E = states[0].F = first;
        L = arena.take<T>(size);
        E = LARGE ? arena.take<T>(size) : nullptr;
        kept = LARGE && keep ? arena.take<T>(2 * size * (in.K() / SEGMENT)) : nullptr;
        if (LARGE) {
            // A chunk is a task, so no more threads than chunks are at work in one set.
            const int64_t threads = in.call().threads < set.chunks ? in.call().threads : set.chunks;
            buffers = arena.take<T>(threads * RowBuffers<T>::rows * set.Dp);
            slots = {arena.take<int>(threads), threads};
            if (slots.busy)
                memset(slots.busy, 0, size_t(threads) * sizeof(int));
        }
    }

    QuadraticColumns<T> take_columns(Arena &arena) const {
        return {set.per_feature(arena), set.per_feature(arena), set.per_feature(arena),
                set.per_feature(arena), set.per_feature(arena), set.per_feature(arena)};
    }

    QuadraticState<T> &state(int64_t k) { return states[keep ? k : k % 2]; }
    QuadraticPrimal<T> &primal(int64_t k) { return primals[keep ? k : k % 2]; }

    // All updates. L and the last primal then have the plan.
    void iterate() {
        const int64_t K = in.K();
        in.log_priors(this->log_p0, this->p0, this->log_q0, this->q0);
        start();
        for (int64_t k = 0; k < K; ++k) {
            QuadraticPrimal<T> &p = primal(k);
            update(k, k);
            QuadraticState<T> &next = state(k + 1);
            this->move_duals(state(k).duals, p.marginals, next.duals, k);
            move(state(k), p, next);
            if (keep)
                count_ties(p, next);
        }
        update(K, K - 1);
    }

    void start() {
        QuadraticState<T> &s = state(0);
        s.az = 0;
        s.max = double(largest(this->p0, set.D)) * double(largest(this->q0, set.N));
        this->zero_d(s.by_d);
        this->copy_n(s.by_n, this->q0);
        this->copy_n(s.shift, this->log_q0);
        Base::start(s.duals);
        set.over_chunks([&](int64_t begin, int64_t end, int64_t) {
            for (int64_t n = begin; n < end; ++n) {
                this->copy_d(LARGE ? E + n * set.Dp : (T *)s.F + n * set.Dp, this->p0); // of E just something finite
                start_row(L + n * set.Dp);
            }
        });
    }

    void start_row(T *row) const {
        this->copy_d(row, this->log_p0);
        fill_padding(row, set.D, NOTHING<T>); // so the padding has no part in sums over features
    }

    void move(const QuadraticState<T> &s, const QuadraticPrimal<T> &p, QuadraticState<T> &next) {
        const Marginals<T> &m = p.marginals;
        next.az = m.a;
        next.E = p.E;
        next.F = p.F;
        this->each_d([&](int64_t i) { st(next.by_d + i, ld(m.p + i) * ld(p.inverse_d + i)); });
        this->each_n([&](int64_t n) {
            st(next.by_n + n, ld(m.q + n) * ld(p.inverse_n + n));
            st(next.shift + n, ld(m.log_q + n) - ld(m.lse_n + n));
            st(next.duals.z + n, T(m.both) * (ld(m.lse_n + n) - ld(m.log_q + n)) - ld(s.duals.z2 + n)); // f itself
        });
        // The largest entry of a column of E, or of a row of F, is 1.
        const T of_P = largest(next.by_d, set.D), of_S = largest(next.by_n, set.N);
        next.max = of_P > of_S ? of_P : of_S;
    }

    // Update k, which has the coefficients of step `of`.
    void update(int64_t k, int64_t of) {
        const QuadraticState<T> &s = state(k);
        QuadraticPrimal<T> &o = primal(k);
        Marginals<T> &m = o.marginals;
        const Duals<T> &z = s.duals;
        const QuadraticColumns<T> &by = o.columns;
        const double a = m.a = in.alpha0(of), rho = m.rho = in.rho(of) + a * s.max;
        m.share = 0.5;
        m.both = rho;
        const T move = T(1 / rho);

        this->each_d([&](int64_t i) {
            st(by.by_x + i, set.scale.times(move, i) - V<T>{});
            st(by.u + i, (ld(set.centred + i) + ld(z.z1 + i)) * move);
            st(by.before + i, ld(s.by_d + i) * T(s.az / rho));
        });
        find_E(k);
        this->each_d([&](int64_t i) {
            const V<T> sum = ld(o.inverse_d + i);
            st(o.inverse_d + i, 1 / sum);
            st(m.lse_d + i, ld(by.top + i) + LN2<T> * log2v<T>(sum));
        });
        this->find_p(z, m);

        this->each_d([&](int64_t i) {
            st(by.u_S + i, ld(m.log_p + i) - ld(m.lse_d + i)); // both 0 in the padding
            st(by.now + i, ld(m.p + i) * ld(o.inverse_d + i) * T(a / rho));
        });
        find_F(k);
        fill_padding(o.inverse_n, set.N, T(1));
        this->each_n([&](int64_t n) {
            const V<T> sum = ld(o.inverse_n + n);
            st(o.inverse_n + n, 1 / sum);
            st(m.lse_n + n, ld(m.lse_n + n) + LN2<T> * log2v<T>(sum));
        });
        this->find_q(z, m);
    }

    // f(Int<R>, first, buffers) for blocks of rows of a chunk. A small set has all of its rows instead of buffers.
    template <class F> UOTPOOL_INLINE void blocks(int64_t begin, int64_t end, F f) const {
        if constexpr (LARGE) {
            const int64_t slot = slots.take(), size = 4 * set.Dp;
            T *b = buffers + slot * RowBuffers<T>::rows * set.Dp;
            const RowBuffers<T> mine = {b, b + size, b + 2 * size, b + 3 * size,
                                         b + 4 * size, b + 5 * size, b + 6 * size};
            row_blocks(begin, end, [&](auto rows, int64_t n) { f(rows, n, mine); });
            slots.give(slot);
        } else {
            row_blocks(begin, end, [&](auto rows, int64_t n) UOTPOOL_INLINED { f(rows, n, RowBuffers<T>{}); });
        }
    }

    // Some rows of X.
    template <int R> const T *rows_of_X(int64_t first, const RowBuffers<T> &b) const {
        if constexpr (!LARGE)
            return set.X + first * set.Dp;
        auto given = set.template samples<R>(first);
        each<T>(set.Dp, [&](int64_t i) {
            for (int r = 0; r < R; ++r)
                st(b.x + r * set.Dp + i, given.get(r, i));
        });
        return b.x;
    }

    // F after update k - 1, of rows of L.
    template <int R> void load_F(int64_t k, int64_t first, const T *rows, T *F) {
        T sums[R];
        if (k > 0)
            QuadraticRows<T, R>::row_exps(set.Dp, rows, primal(k - 1).max_n + first, F, sums);
        else
            for (int r = 0; r < R; ++r)
                this->copy_d(F + r * set.Dp, this->p0);
    }

    template <int R>
    void P_update(int64_t k, int64_t first, T *rows, const T *x, const T *Eb, const T *Fb, T *max) {
        const QuadraticState<T> &s = state(k);
        const QuadraticPrimal<T> &o = primal(k);
        const double a = o.marginals.a, rho = o.marginals.rho;
        QuadraticRows<T, R>::P_update(set.Dp, rows, x, o.columns.by_x, Eb, Fb, o.columns.u, o.columns.before,
                                      s.shift + first, s.duals.z + first, s.by_n + first, T(1 / rho), T(a / rho), max);
    }

    template <int R> void S_update(int64_t k, int64_t first, T *rows, const T *Eb, const T *E, T *max) {
        const QuadraticState<T> &s = state(k);
        const QuadraticPrimal<T> &o = primal(k);
        QuadraticRows<T, R>::S_update(set.Dp, rows, Eb, E, o.columns.u_S, o.columns.before, o.columns.now,
                                      s.duals.z + first, s.duals.z2 + first, T(1 / o.marginals.rho), max);
    }

    // L of the P update, E, and the sums of its columns. A large set has no room for F, nor for E while that of the
    // update before is still read.
    void find_E(int64_t k) {
        const int64_t Dp = set.Dp;
        const QuadraticState<T> &s = state(k);
        QuadraticPrimal<T> &o = primal(k);
        set.max_rows(o.columns.top, [&](int64_t begin, int64_t end, T *max) {
            blocks(begin, end, [&](auto rows, int64_t n, const RowBuffers<T> &b) {
                constexpr int R = decltype(rows)::value;
                T *const mine = L + n * Dp;
                if (LARGE)
                    load_F<R>(k, n, mine, b.F);
                P_update<R>(k, n, mine, rows_of_X<R>(n, b), (LARGE ? E : s.E) + n * Dp, LARGE ? b.F : s.F + n * Dp,
                            max);
            });
        });
        set.sum_columns(o.inverse_d, (T *)nullptr, [&](int64_t begin, int64_t end, int64_t, T *acc, T *) {
            blocks(begin, end, [&](auto rows, int64_t n, const RowBuffers<T> &b) {
                constexpr int R = decltype(rows)::value;
                QuadraticRows<T, R>::column_exps(Dp, L + n * Dp, o.columns.top, LARGE ? b.E : o.E + n * Dp, acc);
            });
        });
    }

    // L of the S update, F, and the sums of its rows.
    void find_F(int64_t k) {
        const int64_t Dp = set.Dp;
        const QuadraticState<T> &s = state(k);
        QuadraticPrimal<T> &o = primal(k);
        T *const checkpoint = LARGE && keep && (k + 1) % SEGMENT == 0 && k < in.K() ? kept_at(k + 1) : nullptr;
        set.over_chunks([&](int64_t begin, int64_t end, int64_t) {
            blocks(begin, end, [&](auto rows, int64_t n, const RowBuffers<T> &b) {
                constexpr int R = decltype(rows)::value;
                T *const mine = L + n * Dp, *const max = o.marginals.lse_n + n;
                T *const exps = LARGE ? b.E : o.E + n * Dp;
                if (LARGE)
                    QuadraticRows<T, R>::column_exps(Dp, mine, o.columns.top, exps, b.unread);
                S_update<R>(k, n, mine, (LARGE ? E : s.E) + n * Dp, exps, max);
                QuadraticRows<T, R>::row_exps(Dp, mine, max, LARGE ? b.F : o.F + n * Dp, o.inverse_n + n);
                if constexpr (LARGE) {
                    const size_t bytes = size_t(R * Dp) * sizeof(T);
                    memcpy(E + n * Dp, exps, bytes);
                    memcpy(o.max_n + n, max, R * sizeof(T));
                    if (checkpoint) {
                        memcpy(checkpoint + n * Dp, mine, bytes);
                        memcpy(checkpoint + (set.N + n) * Dp, exps, bytes);
                    }
                }
            });
        });
    }

    // L and E at the start of update k, the first of a segment.
    T *kept_at(int64_t k) const { return kept + (k / SEGMENT - 1) * 2 * set.N * set.Dp; }

    // f(n, i) for each entry of P that is as large as `max`, 1 in E; of a large set that of the last update.
    template <class F> void each_largest_P(const QuadraticState<T> &s, F f) const {
        const T *const matrix = LARGE ? E : s.E;
        for (int64_t i = 0; i < set.D; ++i)
            if (double(s.by_d[i]) == s.max)
                for (int64_t n = 0; n < set.N; ++n)
                    if (matrix[n * set.Dp + i] == 1)
                        f(n, i);
    }

    // The same for S.
    template <class F> void each_largest_S(const QuadraticState<T> &s, const QuadraticPrimal<T> &made_by, F f) const {
        auto of_row = [&](int64_t n, const T *row) {
            for (int64_t i = 0; i < set.D; ++i)
                if (row[i] == 1)
                    f(n, i);
        };
        for (int64_t n = 0; n < set.N; ++n) {
            if (double(s.by_n[n]) != s.max)
                continue;
            if constexpr (LARGE)
                blocks(n, n + 1, [&](auto, int64_t, const RowBuffers<T> &b) {
                    T sum;
                    QuadraticRows<T, 1>::row_exps(set.Dp, L + n * set.Dp, made_by.max_n + n, b.F, &sum);
                    of_row(n, b.F);
                });
            else
                of_row(n, s.F + n * set.Dp);
        }
    }

    void count_ties(const QuadraticPrimal<T> &p, QuadraticState<T> &next) const {
        next.tied = 0;
        if (LARGE) {
            this->zero_d(next.tied_d);
            this->zero_n(next.tied_n);
        }
        each_largest_P(next, [&](int64_t, int64_t i) {
            ++next.tied;
            if (LARGE)
                next.tied_d[i] += 1;
        });
        each_largest_S(next, p, [&](int64_t n, int64_t) {
            ++next.tied;
            if (LARGE)
                next.tied_n[n] += 1;
        });
    }

    // What update k had at R rows; F of it if asked for.
    template <int R>
    UOTPOOL_INLINE QuadraticEntries<T> entries(int64_t k, int64_t first, const RowBuffers<T> &b, bool with_F) {
        if constexpr (LARGE) {
            return computed_again<R>(k, first, b, with_F);
        } else {
            const int64_t at = first * set.Dp;
            const QuadraticState<T> &s = state(k);
            const QuadraticPrimal<T> &o = primal(k);
            return {o.E + at, o.F + at, s.E + at, s.F + at};
        }
    }

    // From the start of its segment.
    template <int R>
    QuadraticEntries<T> computed_again(int64_t k, int64_t first, const RowBuffers<T> &b, bool with_F) {
        const int64_t Dp = set.Dp, at = first * Dp;
        const int64_t start = k / SEGMENT * SEGMENT;
        T *E = b.E, *F = b.F, *Eb = b.Eb, *Fb = b.Fb;
        for (int r = 0; start == 0 && r < R; ++r) {
            start_row(b.L + r * Dp);
            this->copy_d(E + r * Dp, this->p0);
        }
        if (start > 0) {
            const T *const checkpoint = kept_at(start);
            memcpy(b.L, checkpoint + at, size_t(R * Dp) * sizeof(T));
            memcpy(E, checkpoint + (set.N * Dp + at), size_t(R * Dp) * sizeof(T));
        }
        load_F<R>(start, first, b.L, F);
        const T *const x = rows_of_X<R>(first, b);
        for (int64_t j = start; j <= k; ++j) {
            T max[R], sums[R], *const E_before = E, *const F_before = F;
            E = Eb, Eb = E_before;
            F = Fb, Fb = F_before;
            P_update<R>(j, first, b.L, x, Eb, Fb, b.unread);
            QuadraticRows<T, R>::column_exps(Dp, b.L, primal(j).columns.top, E, b.unread);
            if (j < k || with_F) {
                S_update<R>(j, first, b.L, Eb, E, max);
                QuadraticRows<T, R>::row_exps(Dp, b.L, max, F, sums);
            }
        }
        return {E, F, Eb, Fb};
    }
};

} // namespace
