// Vectors of one width, the exponential and the logarithm on them, and loops over arrays of padded length.
//
// Everything here and in the headers that include this has internal linkage: kernels.cpp is compiled once for each
// instruction set, and a shared inline function could be taken from the wrong one by the linker. For the same
// reason none of them includes a C++ library header.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#ifndef UOTPOOL_VECTOR_BYTES
#if defined(__AVX512F__)
#define UOTPOOL_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define UOTPOOL_VECTOR_BYTES 32
#else
#define UOTPOOL_VECTOR_BYTES 16
#endif
#endif

#define UOTPOOL_INLINE inline __attribute__((always_inline))
#define UOTPOOL_INLINED __attribute__((always_inline)) // of a lambda

namespace {

template <class T> struct Lanes;

template <> struct Lanes<float> {
    typedef float V __attribute__((vector_size(UOTPOOL_VECTOR_BYTES), may_alias));
    typedef uint32_t I __attribute__((vector_size(UOTPOOL_VECTOR_BYTES), may_alias)); // unsigned: it may wrap
    typedef uint32_t Bits;
    static constexpr int mantissa = 23, bias = 127;
    static constexpr float lowest_exponent = -126.0f;
    static constexpr float round_magic = 12582912.0f; // 1.5 2^23: adding it rounds to an integer
    static constexpr Bits sqrt_half = 0x3f3504f3, one = 0x3f800000;
};

template <> struct Lanes<double> {
    typedef double V __attribute__((vector_size(UOTPOOL_VECTOR_BYTES), may_alias));
    typedef uint64_t I __attribute__((vector_size(UOTPOOL_VECTOR_BYTES), may_alias));
    typedef uint64_t Bits;
    static constexpr int mantissa = 52, bias = 1023;
    static constexpr double lowest_exponent = -1022.0;
    static constexpr double round_magic = 6755399441055744.0; // 1.5 2^52
    static constexpr Bits sqrt_half = 0x3fe6a09e667f3bcd, one = 0x3ff0000000000000;
};

template <class T> using V = typename Lanes<T>::V;
template <class T> constexpr int W = UOTPOOL_VECTOR_BYTES / sizeof(T);

template <class T> constexpr T LOG2E = T(1.4426950408889634074);
template <class T> constexpr T LN2 = T(0.69314718055994530942);

template <class T> constexpr int64_t padded(int64_t n) { return (n + W<T> - 1) / W<T> * W<T>; }

// Scratch arrays are aligned to a cache line and of padded length, so these loads are aligned ones.
template <class T> UOTPOOL_INLINE V<T> ld(const T *p) { return *(const V<T> *)p; }
template <class T> UOTPOOL_INLINE void st(T *p, V<T> x) { *(V<T> *)p = x; }

template <class T> UOTPOOL_INLINE V<T> ld_unaligned(const T *p) {
    V<T> x;
    memcpy(&x, p, sizeof x);
    return x;
}

template <class T> UOTPOOL_INLINE void st_unaligned(T *p, V<T> x) { memcpy(p, &x, sizeof x); }

// Lane-wise a > b ? a : b. Where one is NaN it is b, as the instruction does it, and callers rely on.
#if defined(__AVX512F__) && UOTPOOL_VECTOR_BYTES == 64
// With a mask of all lanes: GCC 12 warns of its own header for the form without.
UOTPOOL_INLINE V<float> vmax(V<float> a, V<float> b) {
    return (V<float>)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b);
}
UOTPOOL_INLINE V<double> vmax(V<double> a, V<double> b) {
    return (V<double>)_mm512_maskz_max_pd(0xff, (__m512d)a, (__m512d)b);
}
#elif defined(__AVX2__) && UOTPOOL_VECTOR_BYTES == 32
UOTPOOL_INLINE V<float> vmax(V<float> a, V<float> b) { return (V<float>)_mm256_max_ps((__m256)a, (__m256)b); }
UOTPOOL_INLINE V<double> vmax(V<double> a, V<double> b) { return (V<double>)_mm256_max_pd((__m256d)a, (__m256d)b); }
#elif defined(__SSE2__) && UOTPOOL_VECTOR_BYTES == 16
UOTPOOL_INLINE V<float> vmax(V<float> a, V<float> b) { return (V<float>)_mm_max_ps((__m128)a, (__m128)b); }
UOTPOOL_INLINE V<double> vmax(V<double> a, V<double> b) { return (V<double>)_mm_max_pd((__m128d)a, (__m128d)b); }
#else
UOTPOOL_INLINE V<float> vmax(V<float> a, V<float> b) { return a > b ? a : b; }
UOTPOOL_INLINE V<double> vmax(V<double> a, V<double> b) { return a > b ? a : b; }
#endif

// a b + c, rounded once where the CPU has an instruction for that and twice where it has none. Where it is written as a
// sum, the compiler chooses for each place: it may round twice where a product has two uses. Exponents are relative to
// the largest of them, which has to be rounded as they are, or one comes out positive.
#if defined(__AVX512F__) && UOTPOOL_VECTOR_BYTES == 64
UOTPOOL_INLINE V<float> fma_vectors(V<float> a, V<float> b, V<float> c) {
    return (V<float>)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
UOTPOOL_INLINE V<double> fma_vectors(V<double> a, V<double> b, V<double> c) {
    return (V<double>)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
}
#elif defined(__FMA__) && UOTPOOL_VECTOR_BYTES == 32
UOTPOOL_INLINE V<float> fma_vectors(V<float> a, V<float> b, V<float> c) {
    return (V<float>)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
UOTPOOL_INLINE V<double> fma_vectors(V<double> a, V<double> b, V<double> c) {
    return (V<double>)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
}
#elif defined(__aarch64__) && UOTPOOL_VECTOR_BYTES == 16
UOTPOOL_INLINE V<float> fma_vectors(V<float> a, V<float> b, V<float> c) {
    return (V<float>)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
UOTPOOL_INLINE V<double> fma_vectors(V<double> a, V<double> b, V<double> c) {
    return (V<double>)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
}
#elif defined(__FMA__) || defined(__FP_FAST_FMAF) // vectors of another width than those of the CPU
UOTPOOL_INLINE V<float> fma_vectors(V<float> a, V<float> b, V<float> c) {
    for (int i = 0; i < W<float>; ++i)
        c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
}
UOTPOOL_INLINE V<double> fma_vectors(V<double> a, V<double> b, V<double> c) {
    for (int i = 0; i < W<double>; ++i)
        c[i] = __builtin_fma(a[i], b[i], c[i]);
    return c;
}
#else
UOTPOOL_INLINE V<float> fma_vectors(V<float> a, V<float> b, V<float> c) { return a * b + c; }
UOTPOOL_INLINE V<double> fma_vectors(V<double> a, V<double> b, V<double> c) { return a * b + c; }
#endif

// The same, where the factor or the summand may be one number for all lanes.
template <class T, class Factor, class Summand> UOTPOOL_INLINE V<T> fma(Factor a, V<T> b, Summand c) {
    return fma_vectors(a - V<T>{}, b, c - V<T>{});
}

// 2^f = 1 + f g(f); the coefficients of g, highest first, from fit_exp2.py.
constexpr float EXP2_FLOAT[] = {0.000154531629451206902f, 0.00133908633646712344f, 0.00961808255727785149f,
                                0.0555035711421907782f,   0.240226507605681269f,   0.693147188026228781f};
constexpr double EXP2_DOUBLE[] = {4.45496059818651839e-10, 7.0725859492692237e-9, 1.01780624458457735e-7,
                                  1.32154425879216897e-6,  0.0000152527338298361184, 0.000154035304417360502,
                                  0.00133335581464169353,  0.00961812910760688853, 0.0555041086648215943,
                                  0.240226506959100982,    0.693147180559945309};
template <class T> constexpr int EXP2_TERMS = sizeof(T) == 4 ? 6 : 11;
template <class T> UOTPOOL_INLINE T exp2_coefficient(int i) {
    if constexpr (sizeof(T) == 4)
        return EXP2_FLOAT[i];
    else
        return EXP2_DOUBLE[i];
}

// The exponent that is used for y.
template <class T> UOTPOOL_INLINE V<T> clamped(V<T> y) { return vmax(Lanes<T>::lowest_exponent - V<T>{}, y); }

// 2^y in place of y, for y up to the largest exponent. Below the smallest normal number it is that number, 2^-126 or
// 2^-1022, or 0 where asked for (TO_ZERO; already from 2^-125.5 and 2^-1021.5 on): nothing is ever denormal. 2^0 is 1.
// NaN passes on. Several vectors at a time, step by step: alone, each step would wait for the one before.
enum Underflow { TO_LOWEST, TO_ZERO };

template <class T, int R, Underflow U> UOTPOOL_INLINE void exp2_together(V<T> (&y)[R]) {
    typedef Lanes<T> L;
    // For TO_ZERO the power of 2 is half as large and the polynomial twice: the lowest power then has the bits of 0.
    constexpr T twice = U == TO_ZERO ? 2 : 1;
    // Added to y, this leaves the biased exponent in the lowest bits.
    constexpr T magic = L::round_magic + T(L::bias) + (1 - twice);
    V<T> shifted[R], g[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        y[r] = clamped<T>(y[r]);
        shifted[r] = y[r] + magic;
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        y[r] -= shifted[r] - magic;
        g[r] = twice * exp2_coefficient<T>(0) * y[r] + twice * exp2_coefficient<T>(1);
    }
#pragma GCC unroll 16
    for (int i = 2; i < EXP2_TERMS<T>; ++i)
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
            g[r] = g[r] * y[r] + twice * exp2_coefficient<T>(i);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
        g[r] = g[r] * y[r] + twice;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        typename L::I power = (typename L::I)shifted[r] << L::mantissa;
        y[r] = g[r] * (V<T>)power; // a product, so that a NaN stays one
    }
}

// The same for any number: two together keep the processor busy, more would need more registers than it has.
template <class T, int R, Underflow U = TO_LOWEST> UOTPOOL_INLINE void exp2_all(V<T> (&y)[R]) {
#pragma GCC unroll 8
    for (int r = 0; r + 2 <= R; r += 2) {
        V<T> two[2] = {y[r], y[r + 1]};
        exp2_together<T, 2, U>(two);
        y[r] = two[0];
        y[r + 1] = two[1];
    }
    if constexpr (R % 2 == 1) {
        V<T> one[1] = {y[R - 1]};
        exp2_together<T, 1, U>(one);
        y[R - 1] = one[0];
    }
}

template <class T, Underflow U = TO_LOWEST> UOTPOOL_INLINE V<T> exp2v(V<T> y) {
    V<T> one[1] = {y};
    exp2_together<T, 1, U>(one);
    return one[0];
}

// log2 of x > 0, normal. NaN and infinity give NaN.
template <class T> UOTPOOL_INLINE V<T> log2v(V<T> x) {
    typedef Lanes<T> L;
    typedef typename L::I I;
    typedef typename L::Bits Bits;
    // x = 2^e m with m in [sqrt(1/2), sqrt(2)), and log m = 2 atanh((m - 1) / (m + 1)), a series in the square.
    I bits = (I)x;
    I biased = (bits + (L::one - L::sqrt_half)) >> L::mantissa;
    V<T> m = (V<T>)(bits - ((biased - Bits(L::bias)) << L::mantissa));
    V<T> magic = L::round_magic - V<T>{};
    V<T> e = (V<T>)((I)magic + (biased - Bits(L::bias))) - magic; // integer to floating, without an instruction for it
    V<T> s = (m - 1) / (m + 1);
    V<T> s2 = s * s; // at most 0.0295
    constexpr int terms = sizeof(T) == 4 ? 5 : 11;
    V<T> series = T(1.0 / (2 * terms - 1)) - V<T>{};
#pragma GCC unroll 11
    for (int i = terms - 2; i >= 0; --i)
        series = series * s2 + T(1.0 / (2 * i + 1));
    return e + (2 * LOG2E<T>)*s * series + (x - x);
}

// op over the lanes of x, always in the same order: halves are put together until two are left.
template <class T, class Op> UOTPOOL_INLINE T fold_lanes(V<T> x, Op op) {
    typedef T Quarter __attribute__((vector_size(16)));
    Quarter part[sizeof(x) / 16];
    memcpy(part, &x, sizeof x);
    for (unsigned half = sizeof(x) / 32; half > 0; half /= 2)
        for (unsigned i = 0; i < half; ++i)
            part[i] = op(part[i], part[i + half]);
    const Quarter q = part[0];
    if constexpr (sizeof(T) == 4) {
        const Quarter pairs = op(q, (Quarter){q[2], q[3], q[2], q[3]});
        return op(pairs, (Quarter){pairs[1], pairs[1], pairs[1], pairs[1]})[0];
    } else {
        return op(q, (Quarter){q[1], q[1]})[0];
    }
}

template <class T> UOTPOOL_INLINE T lane_sum(V<T> x) {
    return fold_lanes<T>(x, [](auto a, auto b) { return a + b; });
}

template <class T> UOTPOOL_INLINE T lane_max(V<T> x) {
    return fold_lanes<T>(x, [](auto a, auto b) { return a > b ? a : b; });
}

// x with `fill` in the lanes from `left` on.
template <class T> UOTPOOL_INLINE V<T> keep_first(V<T> x, int64_t left, T fill) {
    for (int64_t i = left; i < W<T>; ++i)
        x[i] = fill;
    return x;
}

// f(i) for the start i of each vector of an array of n entries. The last one reaches into the padding.
template <class T, class F> UOTPOOL_INLINE void each(int64_t n, F f) {
    for (int64_t i = 0; i < n; i += W<T>)
        f(i);
}

// Sum over i of f(i), a vector each. f has to be 0 in the padding.
template <class T, class F> UOTPOOL_INLINE double total(int64_t n, F f) {
    double sum = 0;
    for (int64_t block = 0; block < n; block += 64 * W<T>) { // short sums in T, long ones in double
        V<T> part = {};
        const int64_t end = block + 64 * W<T> < n ? block + 64 * W<T> : n;
        for (int64_t i = block; i < end; i += W<T>)
            part += f(i);
        sum += lane_sum<T>(part);
    }
    return sum;
}

template <class T> UOTPOOL_INLINE double sum(const T *a, int64_t n) {
    return total<T>(n, [&](int64_t i) { return ld(a + i); });
}

template <class T> UOTPOOL_INLINE double dot(const T *a, const T *b, int64_t n) {
    return total<T>(n, [&](int64_t i) { return ld(a + i) * ld(b + i); });
}

template <class T> UOTPOOL_INLINE void fill_padding(T *a, int64_t n, T value) {
    for (int64_t i = n; i < padded<T>(n); ++i)
        a[i] = value;
}

// Largest sign * entry of n, times sign: the maximum, or the minimum for sign = -1. NaN is passed over.
template <class T> inline T extreme(const T *a, int64_t n, T sign) {
    T top = sign * a[0];
    int64_t i = 0;
    if (n >= W<T>) {
        V<T> m = sign * ld(a);
        for (i = W<T>; i + W<T> <= n; i += W<T>)
            m = vmax(sign * ld(a + i), m);
        top = lane_max<T>(m);
    }
    for (; i < n; ++i)
        top = sign * a[i] > top ? sign * a[i] : top;
    return sign * top;
}

template <class T> inline T largest(const T *a, int64_t n) { return extreme<T>(a, n, T(1)); }
template <class T> inline T smallest(const T *a, int64_t n) { return extreme<T>(a, n, T(-1)); }

// a -= logsumexp(a), and p = exp(a), in another array. Zeros in the padding of both.
template <class T> inline void normalise(T *a, T *p, int64_t n) {
    const T max = largest(a, n);
    each<T>(n, [&](int64_t i) { // the maximum first: beside a large one, rounding would eat the log of the sum
        const V<T> x = ld(a + i) - max;
        st(a + i, x);
        st(p + i, exp2v<T>(x * LOG2E<T>));
    });
    fill_padding(p, n, T(0));
    const double whole = sum(p, n);
    const T shift = T(__builtin_log(whole)), scale = T(1 / whole);
    each<T>(n, [&](int64_t i) {
        st(a + i, ld(a + i) - shift);
        st(p + i, ld(p + i) * scale);
    });
    fill_padding(a, n, T(0));
    fill_padding(p, n, T(0));
}

} // namespace
