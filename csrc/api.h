// What the files of the C interface share.
#pragma once

#include <stdlib.h>

#include "job.h"

#define UOTPOOL_EXPORT extern "C" __attribute__((visibility("default")))

// Those of the instruction set in use.
const Kernels &chosen_kernels();

inline bool aligned(const void *p, size_t to) { return (uintptr_t)p % to == 0; }

// Memory that is aligned to a cache line and freed at the end of the scope; NULL where there was none to be had.
class Memory {
    void *block = nullptr;

  public:
    Memory() = default;
    explicit Memory(size_t bytes) { take(bytes); }
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;
    ~Memory() { free(block); }

    void *take(size_t bytes) {
        free(block);
        if (posix_memalign(&block, 64, bytes ? bytes : 64) != 0)
            block = nullptr;
        return block;
    }
    void *get() const { return block; }
};
