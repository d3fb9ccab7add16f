// The kernels of one instruction set: compiled once for each, with UOTPOOL_ISA_NAME set and the flags on this file.
#include "badmm_e.h"
#include "badmm_q.h"
#include "sinkhorn.h"
#include "window.h"

namespace {

// Pieces of about this many entries are worked on by one thread at a time, and summed over in one go.
constexpr int64_t CHUNK_ENTRIES = int64_t(1) << 17;

inline int64_t chunk_rows_of(const Job *job) {
    // Not padded to the width of a vector: pieces are the same on every machine.
    const int64_t rows = CHUNK_ENTRIES / job->call->D / 4 * 4;
    return rows < 4 ? 4 : rows;
}

template <class T, template <class> class Solver> size_t scratch_of(const Job *job, int64_t n) {
    Arena arena = {nullptr, 0};
    const Source<T> source = {job, 0, 0, n};
    Bag<T> bag(arena, n, job->call->D, chunk_rows_of(job), job->backward);
    Solver<T> solver(source, bag, arena);
    return arena.used;
}

template <class T, template <class> class Solver>
void solve_bag(const Job *job, int64_t b, int64_t first, int64_t n, void *scratch, const Team *team) {
    Arena arena = {(char *)scratch, 0};
    const Source<T> source = {job, b, first, n};
    Bag<T> bag(arena, n, job->call->D, chunk_rows_of(job), job->backward);
    bag.team = team;
    Solver<T> solver(source, bag, arena);
    solver.run();
}

template <template <class> class Solver> size_t scratch_by_dtype(const Job *job, int64_t n) {
    return job->call->dtype == UOTPOOL_FLOAT32 ? scratch_of<float, Solver>(job, n) : scratch_of<double, Solver>(job, n);
}

template <template <class> class Solver>
void bag_by_dtype(const Job *job, int64_t b, int64_t first, int64_t n, void *scratch, const Team *team) {
    if (job->call->dtype == UOTPOOL_FLOAT32)
        solve_bag<float, Solver>(job, b, first, n, scratch, team);
    else
        solve_bag<double, Solver>(job, b, first, n, scratch, team);
}

int64_t chunk_rows(const Job *job) { return chunk_rows_of(job); }

size_t scratch(const Job *job, int64_t n) {
    switch (job->call->solver) {
    case UOTPOOL_SINKHORN:
        return scratch_by_dtype<Sinkhorn>(job, n);
    case UOTPOOL_BADMM_E:
        return scratch_by_dtype<EntropicBadmm>(job, n);
    default:
        return scratch_by_dtype<QuadraticBadmm>(job, n);
    }
}

void bag(const Job *job, int64_t b, int64_t first, int64_t n, void *memory, const Team *team) {
    switch (job->call->solver) {
    case UOTPOOL_SINKHORN:
        return bag_by_dtype<Sinkhorn>(job, b, first, n, memory, team);
    case UOTPOOL_BADMM_E:
        return bag_by_dtype<EntropicBadmm>(job, b, first, n, memory, team);
    default:
        return bag_by_dtype<QuadraticBadmm>(job, b, first, n, memory, team);
    }
}

template <class T> size_t window_scratch_of(const WindowJob *job) {
    Arena arena = {nullptr, 0};
    WindowSinkhorn<T> solver(*job, arena);
    return arena.used;
}

size_t window_scratch(const WindowJob *job) {
    return job->call->dtype == UOTPOOL_FLOAT32 ? window_scratch_of<float>(job) : window_scratch_of<double>(job);
}

template <class T>
void pool_rows(const WindowJob *job, int64_t b, int64_t begin, int64_t end, void *memory, double *sums) {
    Arena arena = {(char *)memory, 0};
    WindowSinkhorn<T> solver(*job, arena);
    const int64_t out_w = job->call->out_w;
    for (int64_t first = begin * out_w; first < end * out_w; first += W<T>)
        solver.run(b, first, end * out_w, sums);
}

void window_rows(const WindowJob *job, int64_t b, int64_t begin, int64_t end, void *memory, double *sums) {
    if (job->call->dtype == UOTPOOL_FLOAT32)
        pool_rows<float>(job, b, begin, end, memory, sums);
    else
        pool_rows<double>(job, b, begin, end, memory, sums);
}

} // namespace

#define UOTPOOL_JOIN_(a, b) a##b
#define UOTPOOL_JOIN(a, b) UOTPOOL_JOIN_(a, b)

extern "C" const Kernels UOTPOOL_JOIN(uotpool_kernels_, UOTPOOL_ISA_NAME) = {chunk_rows, scratch, bag, window_scratch,
                                                                            window_rows};
