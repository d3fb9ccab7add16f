// Sorts rows by their set.
#include <string.h>

#include "api.h"

UOTPOOL_EXPORT int uotpool_group(const int64_t *index, const uint8_t *present, int64_t M, int64_t B, int64_t N,
                                 int64_t *ptr, int64_t *rows) {
    if (M < 0 || B < 0 || N < 0 || B > (int64_t(1) << 40) || M > (int64_t(1) << 40))
        return UOTPOOL_BAD_ARGUMENT;
    if (!ptr || (!rows && M > 0))
        return UOTPOOL_NULL_POINTER;
    if (!aligned(index, 8) || !aligned(ptr, 8) || !aligned(rows, 8))
        return UOTPOOL_MISALIGNED;
    if (!index && (N == 0 ? M > 0 : M / N > B || M % N != 0))
        return UOTPOOL_BAD_ARGUMENT;
    memset(ptr, 0, size_t(B + 1) * sizeof(int64_t));
    for (int64_t i = 0; i < M; ++i) {
        const int64_t b = index ? index[i] : i / N;
        if (b < 0 || b >= B)
            return UOTPOOL_BAD_ARGUMENT;
        ptr[b + 1] += !present || present[i];
    }
    for (int64_t b = 0; b < B; ++b)
        ptr[b + 1] += ptr[b];
    // Each set's offset moves on as its rows come, and ends where the next begins.
    for (int64_t i = 0; i < M; ++i)
        if (!present || present[i])
            rows[ptr[index ? index[i] : i / N]++] = i;
    for (int64_t b = B; b > 0; --b)
        ptr[b] = ptr[b - 1];
    ptr[0] = 0;
    for (int64_t i = ptr[B]; i < M; ++i)
        rows[i] = 0; // not used, but not left to chance
    return UOTPOOL_OK;
}
