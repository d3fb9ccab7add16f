// Neighbouring windows of an image in scratch, one in each lane of a vector: where their positions are, and the ways in
// and out. Every sum over samples or channels is then one of whole vectors, and no window sees another.
#pragma once

#include "bag.h"

namespace {

// Lane i of the result is that of a where i has not the bit H, else lane i - H of b; the other way round in `high`.
template <class T, int H> UOTPOOL_INLINE void swap_blocks(V<T> &a, V<T> &b) {
    V<T> low, high;
#if defined(__GNUC__) && !defined(__clang__)
    typename Lanes<T>::I from_low, from_high;
#pragma GCC unroll 16
    for (int i = 0; i < W<T>; ++i) {
        from_low[i] = i & H ? W<T> + i - H : i;
        from_high[i] = i & H ? W<T> + i : i + H;
    }
    low = __builtin_shuffle(a, b, from_low);
    high = __builtin_shuffle(a, b, from_high);
#else
    for (int i = 0; i < W<T>; ++i) {
        low[i] = i & H ? b[i - (i & H)] : a[i];
        high[i] = i & H ? b[i] : a[i ^ H];
    }
#endif
    a = low;
    b = high;
}

// Entry j of row i becomes entry i of row j: blocks of 1, 2, 4, ... are swapped across the diagonal.
template <class T, int H = 1> UOTPOOL_INLINE void transpose(V<T> (&rows)[W<T>]) {
    if constexpr (H < W<T>) {
#pragma GCC unroll 16
        for (int i = 0; i < W<T>; ++i)
            if (!(i & H))
                swap_blocks<T, H>(rows[i], rows[i | H]);
        transpose<T, 2 * H>(rows);
    }
}

// Every other one of the 2 W numbers at p.
template <class T> UOTPOOL_INLINE V<T> every_other(const T *p, bool odd) {
    V<T> a = ld_unaligned(p), b = ld_unaligned(p + W<T>), x;
#if defined(__GNUC__) && !defined(__clang__)
    typename Lanes<T>::I even_of, odd_of;
#pragma GCC unroll 16
    for (int i = 0; i < W<T>; ++i) {
        even_of[i] = 2 * i;
        odd_of[i] = 2 * i + 1;
    }
    x = odd ? __builtin_shuffle(a, b, odd_of) : __builtin_shuffle(a, b, even_of);
#else
    for (int i = 0; i < W<T>; ++i)
        x[i] = 2 * i < W<T> ? a[(2 * i + odd) % W<T>] : b[(2 * i + odd) % W<T>];
#endif
    return x;
}

// A bit for each lane.
typedef uint32_t LaneSet;
template <class T> constexpr LaneSet ALL_LANES = (LaneSet(1) << W<T>)-1;

template <class T> UOTPOOL_INLINE LaneSet lanes_below(V<T> x, T bound) {
    LaneSet set = 0;
    for (int i = 0; i < W<T>; ++i)
        set |= LaneSet(x[i] < bound) << i;
    return set;
}

// Sum over the lanes of the set.
template <class T> UOTPOOL_INLINE double lanes_sum(V<T> x, LaneSet set) {
    double sum = 0;
    for (int i = 0; i < W<T>; ++i)
        sum += set >> i & 1 ? double(x[i]) : 0.0;
    return sum;
}

// 1 in the lanes of the set, 0 in others.
template <class T> UOTPOOL_INLINE V<T> ones_in(LaneSet set) {
    V<T> x = {};
    for (int i = 0; i < W<T>; ++i)
        x[i] = T(set >> i & 1);
    return x;
}

// f(count) with count.value() = N, known to the compiler for windows of 2 x 2.
struct Count {
    int64_t N;
    int64_t value() const { return N; }
};
struct Four {
    static constexpr int64_t value() { return 4; }
};
template <class F> UOTPOOL_INLINE void with_count(int64_t N, F f) {
    if (N == 4)
        f(Four{});
    else
        f(Count{N});
}

// An image or an output: planes of the channels one after the other, or the channels of a position together.
template <class T> struct Image {
    int64_t C, size; // size: of a plane
    bool channels_last;

    // (C, W) from a position for each lane.
    void load(const T *data, const int64_t *at, T *target) const {
        const int64_t C = this->C;
        if (channels_last) {
            const T *from[W<T>];
            for (int i = 0; i < W<T>; ++i)
                from[i] = data + at[i] * C;
            int64_t c = 0;
            for (; c + W<T> <= C; c += W<T>) {
                V<T> rows[W<T>];
#pragma GCC unroll 16
                for (int i = 0; i < W<T>; ++i)
                    rows[i] = ld_unaligned(from[i] + c);
                transpose<T>(rows);
#pragma GCC unroll 16
                for (int i = 0; i < W<T>; ++i)
                    st(target + (c + i) * W<T>, rows[i]);
            }
            for (; c < C; ++c)
                for (int i = 0; i < W<T>; ++i)
                    target[c * W<T> + i] = from[i][c];
            return;
        }
        const int64_t size = this->size, first = at[0];
        const int step = step_of(at);
        // Two vectors reach one number past the last: there may be none, then one before the first.
        const bool before = at[W<T> - 1] + 1 >= size;
        if (step == 1)
            for (int64_t c = 0; c < C; ++c)
                st(target + c * W<T>, ld_unaligned(data + c * size + first));
        else if (step == 2 && !(before && first == 0))
            for (int64_t c = 0; c < C; ++c)
                st(target + c * W<T>, every_other(data + c * size + first - before, before));
        else
            for (int64_t c = 0; c < C; ++c)
                for (int i = 0; i < W<T>; ++i)
                    target[c * W<T> + i] = data[c * size + at[i]];
    }

    // The other way for the lanes of the set, in their order where two have one position. Add: to what is there.
    template <bool Add> void store(T *data, const int64_t *at, const T *source, LaneSet set) const {
        const int64_t C = this->C;
        if (channels_last) {
            T *to[W<T>];
            for (int i = 0; i < W<T>; ++i)
                to[i] = data + at[i] * C;
            int64_t c = 0;
            for (; c + W<T> <= C; c += W<T>) {
                V<T> rows[W<T>];
#pragma GCC unroll 16
                for (int i = 0; i < W<T>; ++i)
                    rows[i] = ld(source + (c + i) * W<T>);
                transpose<T>(rows);
#pragma GCC unroll 16
                for (int i = 0; i < W<T>; ++i)
                    if (set >> i & 1)
                        st_unaligned(to[i] + c, Add ? ld_unaligned(to[i] + c) + rows[i] : rows[i]);
            }
            for (; c < C; ++c)
                for (int i = 0; i < W<T>; ++i)
                    if (set >> i & 1)
                        to[i][c] = Add ? to[i][c] + source[c * W<T> + i] : source[c * W<T> + i];
            return;
        }
        const int64_t size = this->size;
        if (set == ALL_LANES<T> && step_of(at) == 1) {
            for (int64_t c = 0; c < C; ++c) {
                T *p = data + c * size + at[0];
                const V<T> x = ld(source + c * W<T>);
                st_unaligned(p, Add ? ld_unaligned(p) + x : x);
            }
            return;
        }
        for (int64_t c = 0; c < C; ++c)
            for (int i = 0; i < W<T>; ++i)
                if (set >> i & 1) {
                    T *p = data + c * size + at[i];
                    *p = Add ? *p + source[c * W<T> + i] : source[c * W<T> + i];
                }
    }

    // The distance of one lane's position to the next, if it is 1 or 2 for all.
    static int step_of(const int64_t *at) {
        const int64_t step = at[1] - at[0];
        for (int i = 1; i + 1 < W<T>; ++i)
            if (at[i + 1] - at[i] != step)
                return 0;
        return step == 1 || step == 2 ? int(step) : 0;
    }
};

template <class T, bool Scaled> struct Tile {
    const uotpool_window_call &call;
    const int64_t width;    // C W: a row of X
    int64_t N;              // positions of the largest window here
    LaneSet live, empty;    // windows with positions; windows without
    int64_t *at;            // (N, W): the positions of each window; where it has less, its first again
    int64_t out_at[W<T>];
    LaneSet *there;         // (N): the lanes that have this position
    T *present;             // (N, W): 1 for them, else 0
    T *X;                   // (N, C, W): minus `top`
    T *top;                 // (C, W): largest over the window, or smallest for a negative scale
    T *centred;             // (C, W): minus the largest of the channels, or the smallest; scaled: of scale times top
    Scale<T, Scaled> scale; // (C, W): of each channel
    V<T> poison;            // NaN in the lane of a window with an entry that is not finite; else 0

    Tile(const WindowJob &job, Arena &arena) : call(*job.call), width(job.call->C * W<T>) {
        at = arena.take<int64_t>(job.most * W<T>);
        there = arena.take<LaneSet>(job.most);
        present = arena.take<T>(job.most * W<T>);
        X = arena.take<T>(job.most * width);
        top = arena.take<T>(width);
        centred = arena.take<T>(width);
        scale.of = Scaled ? arena.take<T>(width) : nullptr;
        for (int64_t d = 0; scale.of && d < width; ++d)
            scale.of[d] = ((const T *)call.scale)[d / W<T>];
    }

    Image<T> image() const { return {call.C, call.H * call.W, call.channels_last != 0}; }
    Image<T> output() const { return {call.C, call.out_h * call.out_w, call.channels_last != 0}; }

    // The windows first, first + 1, ... before `end`, numbered along the rows of the output.
    void locate(int64_t first, int64_t end) {
        live = empty = 0;
        N = 1;
        int64_t counts[W<T>];
        for (int i = 0; i < W<T>; ++i) {
            const int64_t window = first + i < end ? first + i : end - 1;
            const int64_t h = window / call.out_w * call.stride_h - call.padding_h;
            const int64_t w = window % call.out_w * call.stride_w - call.padding_w;
            const int64_t h0 = h < 0 ? 0 : h, h1 = h + call.kernel_h < call.H ? h + call.kernel_h : call.H;
            const int64_t w0 = w < 0 ? 0 : w, w1 = w + call.kernel_w < call.W ? w + call.kernel_w : call.W;
            int64_t n = 0;
            if (w0 < w1)
                for (int64_t y = h0; y < h1; ++y)
                    for (int64_t x = w0; x < w1; ++x)
                        at[n++ * W<T> + i] = y * call.W + x;
            out_at[i] = window;
            counts[i] = n;
            N = n > N ? n : N;
            if (first + i < end)
                (n > 0 ? live : empty) |= LaneSet(1) << i;
        }
        for (int64_t n = 0; n < N; ++n) {
            there[n] = 0;
            for (int i = 0; i < W<T>; ++i) {
                const bool in = n < counts[i];
                present[n * W<T> + i] = in;
                there[n] |= LaneSet(in) << i;
                if (!in)
                    at[n * W<T> + i] = counts[i] > 0 ? at[i] : 0;
            }
        }
    }

    // `sign` is that of a scale of all channels.
    void load(int64_t b, T sign) {
        const Image<T> from = image();
        const T *const data = (const T *)call.X + b * from.C * from.size;
        for (int64_t n = 0; n < N; ++n)
            from.load(data, at + n * W<T>, X + n * width);
        const int64_t width = this->width;
        T *const X = this->X, *const top = this->top;
        const auto scale = this->scale;
        V<T> zero = {}, best = {};
        with_count(N, [&](auto count) {
            each<T>(width, [&](int64_t d) {
                const auto turned = scale.signs(d);
                const auto s = scale.times(T(1), d);
                V<T> m = scale.upwards(sign * ld(X + d), turned), finite = {};
                for (int64_t n = 1; n < count.value(); ++n)
                    m = vmax(scale.upwards(sign * ld(X + n * width + d), turned), m);
                m = scale.upwards(m, turned);
                const V<T> of_plan = scale.times(m, d);
                best = d == 0 ? of_plan : vmax(of_plan, best);
                m *= sign;
                st(top + d, m);
                for (int64_t n = 0; n < count.value(); ++n) {
                    const V<T> x = ld(X + n * width + d) - m;
                    st(X + n * width + d, x);
                    finite += x * s * 0;
                }
                zero += finite;
            });
        });
        best *= sign;
        each<T>(width, [&](int64_t d) { st(centred + d, scale.times(ld(top + d), d) - best); });
        poison = zero;
    }

    // The next tile's positions follow on those of this one: what is read a line here and a line there, no hardware
    // foresees. Only if it stays in the second cache.
    UOTPOOL_INLINE void fetch_next(int64_t b) const { // not inlined, GCC takes it for a function without effect
        const Image<T> from = image();
        if (!from.channels_last || N * width * int64_t(sizeof(T)) > 65536)
            return;
        const char *const data = (const char *)((const T *)call.X + b * from.C * from.size);
        for (int64_t n = 0; n < N; ++n)
            for (int i = 0; i < W<T>; ++i) {
                const int64_t next = at[n * W<T> + i] + W<T> * call.stride_w;
                if (next < from.size)
                    for (int64_t byte = 0; byte < from.C * int64_t(sizeof(T)); byte += 64)
                        __builtin_prefetch(data + next * from.C * int64_t(sizeof(T)) + byte);
            }
    }
};

} // namespace
