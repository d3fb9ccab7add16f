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
    for (int64_t i = 0; i < n; ++i) {
        double s = carry ? carry[i] : 0;
        for (int64_t part = 0; part < parts; ++part)
            s += each[part * step + i];
        if (carry)
            carry[i] = s;
        out[i] = T(s);
    }
}
