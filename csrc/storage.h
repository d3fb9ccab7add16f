// Where the numbers of one set are, and loops over its rows.
#pragma once

#include "job.h"
#include "simd.h"

namespace {

// Hands out aligned pieces of one block. With no block it only counts, so sizes are stated in one place.
struct Arena {
    char *base;
    size_t used;
    template <class T> T *take(int64_t n) {
        T *p = base ? (T *)(base + used) : nullptr;
        used += (size_t(n) * sizeof(T) + 63) / 64 * 64;
        return p;
    }
};

template <int N> struct Int {
    static constexpr int value = N;
};

// f(Int<R>, n) for blocks of R rows. Four at a time share the loads of what is per feature.
template <class F> UOTPOOL_INLINE void row_blocks(int64_t begin, int64_t end, F f) {
    int64_t n = begin;
    for (; n + 4 <= end; n += 4)
        f(Int<4>{}, n);
    for (; n < end; ++n)
        f(Int<1>{}, n);
}

// A small set is copied to scratch, where it stays in the cache. A large one would not, and a copy of it would only
// cost memory: it is read, and its derivative written, where the caller has them.
enum Place { IN_SCRATCH, IN_PLACE };

// R rows of a matrix, of which each has its own place; a vector at a time.
template <class T, int R, Place Where> struct RowsOf;

template <class T, int R> struct RowsOf<T, R, IN_SCRATCH> {
    T *first;
    int64_t Dp;

    UOTPOOL_INLINE V<T> get(int r, int64_t d) const { return ld(first + r * Dp + d); }
    UOTPOOL_INLINE void set(int r, int64_t d, V<T> x) { st(first + r * Dp + d, x); }
    void finish() {}
};

// The last vector of a row may be shorter, and what is behind it belongs to another row, or to nobody: it is exchanged
// for one of our own, zeros in its padding.
template <class T, int R> struct RowsOf<T, R, IN_PLACE> {
    T *row[R];
    int64_t whole, rest;
    T tail[R][W<T>];

    UOTPOOL_INLINE T *at(int r, int64_t d) { return d < whole ? row[r] + d : tail[r]; }
    UOTPOOL_INLINE V<T> get(int r, int64_t d) { return ld_unaligned(at(r, d)); }
    UOTPOOL_INLINE void set(int r, int64_t d, V<T> x) { st_unaligned(at(r, d), x); }
    // Has to follow the last `set`.
    UOTPOOL_INLINE void finish() {
        for (int r = 0; r < R; ++r)
            for (int64_t i = 0; i < rest; ++i)
                row[r][whole + i] = tail[r][i];
    }
};

// An array of the caller: row n is the rows[n]-th of D entries; rows NULL means they follow each other. Not const,
// though an input is only read.
template <class T> struct CallerMatrix {
    T *base;
    const int64_t *rows;
    int64_t D;

    UOTPOOL_INLINE T *row(int64_t n) const { return base + (rows ? rows[n] : n) * D; }

    template <int R> UOTPOOL_INLINE RowsOf<T, R, IN_PLACE> block(int64_t n) const {
        RowsOf<T, R, IN_PLACE> view;
        view.whole = D / W<T> * W<T>;
        view.rest = D - view.whole;
        for (int r = 0; r < R; ++r) {
            view.row[r] = row(n + r);
            for (int i = 0; view.rest && i < W<T>; ++i)
                view.tail[r][i] = i < view.rest ? view.row[r][view.whole + i] : T(0);
        }
        return view;
    }

    // A vector of a row, of which the last may be shorter: zeros then.
    UOTPOOL_INLINE V<T> entries(int64_t n, int64_t d) const {
        const T *from = row(n) + d;
        if (D - d >= W<T>)
            return ld_unaligned(from);
        V<T> x = {};
        for (int64_t i = 0; i < D - d; ++i)
            x[i] = from[i];
        return x;
    }
};

// R rows of X minus the maxima of the columns, 0 in the padding.
template <class T, int R, Place Where> struct Samples {
    RowsOf<T, R, Where> rows;
    const T *top;

    UOTPOOL_INLINE V<T> get(int r, int64_t d) {
        if constexpr (Where == IN_SCRATCH) // where that is what it holds
            return rows.get(r, d);
        else
            return rows.get(r, d) - ld(top + d);
    }
};

template <class T, Place Where> struct Storage {
    int64_t N, D, Np, Dp, chunk, chunks;
    CallerMatrix<T> source; // X as it was given
    CallerMatrix<T> target; // in place: dX
    T *X;        // in scratch: (N, Dp), minus the maximum of the column, 0 in the padding
    T *dX;       // in scratch: (N, Dp), derivative by X
    T *top;      // (Dp): the maxima of the columns
    T *partial;  // (chunks, 2, Dp): sums over the rows of a chunk
    double *scalar; // (chunks)
    const Team *team;

    Storage(Arena &arena, CallerMatrix<T> given, CallerMatrix<T> wanted, int64_t n, int64_t chunk_rows, bool backward)
        : N(n), D(given.D), Np(padded<T>(n)), Dp(padded<T>(D)), chunk(chunk_rows),
          chunks((n + chunk_rows - 1) / chunk_rows), source(given), target(wanted) {
        X = Where == IN_SCRATCH ? arena.take<T>(N * Dp) : nullptr;
        dX = Where == IN_SCRATCH && backward ? arena.take<T>(N * Dp) : nullptr;
        if (Where == IN_PLACE && backward && !target.base) // the other derivatives are made with it, wanted or not
            target = {arena.take<T>(N * D), nullptr, D};
        top = arena.take<T>(Dp);
        partial = chunks > 1 ? arena.take<T>(chunks * 2 * Dp) : nullptr;
        scalar = arena.take<double>(chunks);
        team = nullptr;
    }

    template <int R> UOTPOOL_INLINE Samples<T, R, Where> samples(int64_t n) const {
        if constexpr (Where == IN_SCRATCH)
            return {{X + n * Dp, Dp}, top};
        else
            return {source.template block<R>(n), top};
    }
    // One vector of them.
    UOTPOOL_INLINE V<T> sample(int64_t n, int64_t d) const {
        if constexpr (Where == IN_SCRATCH)
            return ld(X + n * Dp + d);
        else
            return source.entries(n, d) - ld(top + d);
    }
    template <int R> UOTPOOL_INLINE RowsOf<T, R, Where> derivatives(int64_t n) const {
        if constexpr (Where == IN_SCRATCH)
            return {dX + n * Dp, Dp};
        else
            return target.template block<R>(n);
    }

    T *per_feature(Arena &arena) const { return arena.take<T>(Dp); }
    T *per_sample(Arena &arena) const { return arena.take<T>(Np); }

    // The loops below work on copies of this struct and of the sums they are about (`in`, `q`). A store through a
    // vector pointer may change any memory, as far as the compiler knows, but not what sits in registers.

    // f(begin, end, index) for each chunk of rows.
    template <class F> void over_chunks(F f) {
        if (chunks == 1) {
            f(int64_t(0), N, int64_t(0));
            return;
        }
        struct Context {
            F *f;
            int64_t chunk, N;
        } context = {&f, chunk, N};
        team->run(
            team, chunks,
            [](void *p, int64_t i) {
                Context *c = (Context *)p;
                const int64_t end = (i + 1) * c->chunk;
                (*c->f)(i * c->chunk, end < c->N ? end : c->N, i);
            },
            &context);
    }

    // The same with sums per feature: f(begin, end, index, a, b) adds to a and b, which start at 0. The chunks
    // are summed in order, so the bits do not depend on who worked on which.
    template <class F> void sum_columns(T *a, T *b, F f) {
        over_chunks([&](int64_t begin, int64_t end, int64_t i) {
            T *pa = chunks == 1 ? a : partial + (2 * i) * Dp;
            T *pb = chunks == 1 ? b : partial + (2 * i + 1) * Dp;
            memset(pa, 0, size_t(Dp) * sizeof(T));
            if (b)
                memset(pb, 0, size_t(Dp) * sizeof(T));
            f(begin, end, i, pa, pb);
        });
        if (chunks == 1)
            return;
        for (int64_t d = 0; d < Dp; d += W<T>) {
            V<T> sa = {}, sb = {};
            for (int64_t i = 0; i < chunks; ++i) {
                sa += ld(partial + 2 * i * Dp + d);
                if (b)
                    sb += ld(partial + (2 * i + 1) * Dp + d);
            }
            st(a + d, sa);
            if (b)
                st(b + d, sb);
        }
    }

    double sum_scalars() const {
        double s = 0;
        for (int64_t i = 0; i < chunks; ++i)
            s += scalar[i];
        return s;
    }

    // Largest of at(n, d, of_column(d)) over the rows, for each feature; `at` is asked for once each, `of_column` once
    // for a block of rows. Both should capture by value.
    template <class C, class G> void max_columns(T *m, const C &of_column, const G &at) {
        over_chunks([&](int64_t begin, int64_t end, int64_t i) {
            const int64_t Dp = this->Dp;
            const C c = of_column;
            const G g = at;
            T *const pm = chunks == 1 ? m : partial + i * Dp;
            each<T>(Dp, [&](int64_t d) { st(pm + d, g(begin, d, c(d))); });
            row_blocks(begin + 1, end, [&](auto rows, int64_t n) {
                each<T>(Dp, [&](int64_t d) {
                    V<T> x = ld(pm + d);
                    const auto column = c(d);
                    for (int r = 0; r < rows.value; ++r)
                        x = vmax(g(n + r, d, column), x);
                    st(pm + d, x);
                });
            });
        });
        max_chunks(m);
    }

    // The same where f(begin, end, max) puts the largest of each feature in a chunk to `max`, -infinity at first.
    template <class F> void max_rows(T *m, const F &f) {
        over_chunks([&](int64_t begin, int64_t end, int64_t i) {
            const int64_t Dp = this->Dp;
            T *const pm = chunks == 1 ? m : partial + i * Dp;
            each<T>(Dp, [&](int64_t d) { st(pm + d, T(-__builtin_inf()) - V<T>{}); });
            f(begin, end, pm);
        });
        max_chunks(m);
    }

    void max_chunks(T *m) const {
        if (chunks == 1)
            return;
        each<T>(Dp, [&](int64_t d) {
            V<T> x = ld(partial + d);
            for (int64_t i = 1; i < chunks; ++i)
                x = vmax(ld(partial + i * Dp + d), x);
            st(m + d, x);
        });
    }

    // Rows of the caller to padded ones in scratch, zeros in the padding.
    void gather(const CallerMatrix<T> &from, T *rows) {
        over_chunks([&](int64_t begin, int64_t end, int64_t) {
            for (int64_t n = begin; n < end; ++n)
                each<T>(Dp, [&](int64_t d) { st(rows + n * Dp + d, from.entries(n, d)); });
        });
    }

    // Back again.
    void scatter(const T *rows, const CallerMatrix<T> &to) {
        const int64_t whole = D / W<T> * W<T>;
        over_chunks([&](int64_t begin, int64_t end, int64_t) {
            for (int64_t n = begin; n < end; ++n) {
                const T *from = rows + n * Dp;
                T *out = to.row(n);
                for (int64_t d = 0; d < whole; d += W<T>)
                    st_unaligned(out + d, ld(from + d));
                for (int64_t d = whole; d < D; ++d)
                    out[d] = from[d];
            }
        });
    }

    void load_derivatives(const CallerMatrix<T> &from) {
        if constexpr (Where == IN_SCRATCH)
            gather(from, dX);
        else
            over_chunks([&](int64_t begin, int64_t end, int64_t) {
                for (int64_t n = begin; n < end; ++n)
                    memcpy(target.row(n), from.row(n), size_t(D) * sizeof(T));
            });
    }

    void store_derivatives(const CallerMatrix<T> &to) {
        if constexpr (Where == IN_SCRATCH)
            if (to.base)
                scatter(dX, to);
    }
};

} // namespace
