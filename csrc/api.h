// What the files of the C interface share.
#pragma once

#include <stdlib.h>

#include "job.h"

#define UOTPOOL_EXPORT extern "C" __attribute__((visibility("default")))

// Those of the instruction set in use.
const Kernels &chosen_kernels();

inline bool aligned(const void *p, size_t to) { return (uintptr_t)p % to == 0; }

inline void *take(size_t bytes) {
    void *p = nullptr;
    return posix_memalign(&p, 64, bytes ? bytes : 64) == 0 ? p : nullptr;
}

// Derivatives that all parts of a batch share are summed in the order of the parts, whoever worked on them: n numbers
// of each, `step` apart. `carry` is what the parts of earlier calls sum to, and takes what they and these do; NULL:
// there are none.
template <class T>
void sum_in_order(const double *each, int64_t parts, int64_t step, int64_t n, double *carry, T *out) {
    constexpr int64_t block = 64; // of numbers that lie together
    for (int64_t begin = 0; begin < n; begin += block) {
        const int64_t count = n - begin < block ? n - begin : block;
        double s[block];
        for (int64_t i = 0; i < count; ++i)
            s[i] = carry ? carry[begin + i] : 0;
        for (int64_t part = 0; part < parts; ++part)
            for (int64_t i = 0; i < count; ++i)
                s[i] += each[part * step + begin + i];
        for (int64_t i = 0; i < count; ++i) {
            if (carry)
                carry[begin + i] = s[i];
            out[begin + i] = T(s[i]);
        }
    }
}
