// What api.cpp hands to the kernels of one instruction set.
#pragma once

#include <stddef.h>

#include "uotpool.h"

// Runs fn(context, i) for i = 0 .. tasks - 1, on several threads where `team` has them.
struct Team {
    void (*run)(const Team *team, int64_t tasks, void (*fn)(void *context, int64_t i), void *context);
    int64_t threads;
};

// One of the solvers, at the index that is its code.
struct SolverInfo {
    const char *name;
    int64_t coefficients; // how many each step has: alpha0, alpha1, alpha2, and rho for 4
};

struct Job {
    const uotpool_call *call;
    int backward;
    int64_t per_step;         // how many coefficients a step of the solver has
    const void *coefficients; // (per_step, K), in the dtype of the call
    const void *scale;        // (scale_length), likewise
    int64_t scale_length;     // 0 without a scale
    double *dcoefficients;    // (B, per_step, K): of each set, summed in order by api.cpp
    double *dscale;           // (B, scale_length): likewise
    void *dlog_p0;            // (B, D)
};

struct Kernels {
    const SolverInfo *solvers;
    int64_t solver_count;
    // Rows of a set that are worked on as one piece. They depend on D alone, so that the bits of a result do not depend
    // on threads or machines.
    int64_t (*chunk_rows)(const Job *job);
    // Bytes of scratch for a set of n samples.
    size_t (*scratch)(const Job *job, int64_t n);
    // Solve set b of n samples, the first of them `first` (in rows, or in X). False, and nothing written: its numbers
    // are too far apart for float32 (widen.cpp).
    bool (*solve)(const Job *job, int64_t b, int64_t first, int64_t n, void *scratch, const Team *team);
};

extern "C" const Kernels uotpool_kernels_baseline, uotpool_kernels_avx2, uotpool_kernels_avx512;
