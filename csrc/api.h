// What the files of the C interface have for each other.
#pragma once

#include <stdlib.h>

#include "job.h"

// --- refuse.cpp: what a call must be like before it is solved. Of its arrays only ptr and rows are read.

struct Sizes {
    int64_t per_step; // coefficients of a step of the solver
    size_t item;
};

// Returns UOTPOOL_OK and fills in `sizes`, or says why the call cannot be solved; `sizes` then means nothing.
int refuse(const uotpool_call &c, int backward, Sizes &sizes);

// --- coefficients.cpp: coefficients and scales from what a call has for them, and the derivatives by that. To make a
// few numbers of the parameters of a layer takes torch longer than a small set takes us.

// The coefficients of all steps, (per_step, K), in the dtype of the call; fills the wanted ones of `dcoefficient` from
// the derivatives by these.
void make_coefficients(const uotpool_call &call, int64_t per_step, void *coefficients);
void coefficient_derivatives(const uotpool_call &call, int64_t per_step, const double *dcoefficients);

// The scales, as many as the call has, likewise.
void make_scales(const uotpool_call &call, void *scales);
void scale_derivatives(const uotpool_call &call, const double *dscales);

// --- widen.cpp: set b of n samples, the first of them `first`, of float32 numbers that are too far apart for it,
// solved by the kernels for double as Kernels::solve does it. A status.
int solve_in_double(const Job &job, const Kernels &kernels, int64_t b, int64_t first, int64_t n, const Team &team);

// --- threads.cpp: a small pool of threads. No OpenMP: torch brings its own, and two of them in a process get in each
// other's way. Runs fn(context, i) for i = 0 .. tasks - 1 on up to `threads` threads, the caller among them. Tasks are
// taken in order by whoever is free. If the pool is busy with another call, the caller does all of them itself.
void run_tasks(int64_t tasks, int64_t threads, void (*fn)(void *context, int64_t i), void *context);

// --- What the files of the C interface share.

// f(null pointer to the floating type of the call).
template <class F> void with_type(const uotpool_call &call, F f) {
    if (call.dtype == UOTPOOL_FLOAT32)
        f((float *)nullptr);
    else
        f((double *)nullptr);
}

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
// stays with its thread, which has one such scratch at a time; one of more than MAX_KEPT bytes is freed.
class Scratch {
    static constexpr size_t MAX_KEPT = size_t(1) << 27;
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
    explicit Scratch(size_t bytes) : block(bytes <= MAX_KEPT ? kept(bytes) : fresh.take(bytes)) {}
    void *get() const { return block; }
};
