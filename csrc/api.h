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

// Scratch of a call. Fresh pages of a large block can cost as much time as the work that is done in them, so the block
// stays with its thread, which has one such scratch at a time; one of more than MOST_KEPT bytes is freed.
class Scratch {
    static constexpr size_t MOST_KEPT = size_t(1) << 27;
    Memory fresh;
    void *block;

    static void *kept(size_t bytes) {
        struct Kept {
            Memory memory;
            size_t bytes = 0;
        };
        thread_local Kept kept;
        if (kept.bytes < bytes)
            kept.bytes = kept.memory.take(bytes) ? bytes : 0;
        return kept.memory.get();
    }

  public:
    explicit Scratch(size_t bytes) : block(bytes <= MOST_KEPT ? kept(bytes) : fresh.take(bytes)) {}
    void *get() const { return block; }
};
