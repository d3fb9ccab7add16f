// The kernels of one instruction set: compiled once for each, with UOTPOOL_ISA_NAME set and the flags on this file.
#include "badmm_e.h"
#include "badmm_q.h"
#include "sinkhorn.h"

namespace {

// Pieces of about this many entries are worked on by one thread at a time, and summed over in one go.
constexpr int64_t CHUNK_ENTRIES = int64_t(1) << 17;

inline int64_t chunk_rows_of(const Job *job) {
    // Not padded to the width of a vector: pieces are the same on every machine.
    const int64_t rows = CHUNK_ENTRIES / job->call->D / 4 * 4;
    return rows < 4 ? 4 : rows;
}

// A set of several chunks is large: it is left where it is.
template <class F> auto by_place(const Job *job, int64_t n, F f) {
    using InScratch = Int<IN_SCRATCH>;
    using InPlace = Int<IN_PLACE>;
    return n > chunk_rows_of(job) ? f(InPlace{}) : f(InScratch{});
}

// A scale costs a little in every loop, so there is code without.
template <class F> auto by_scale(const Job *job, F f) {
    return job->scale_length > 0 ? f(Int<true>{}) : f(Int<false>{});
}

// How much rounding may be magnified that is left to float32: an exponent that is off by 2^-24 times this is an error of
// up to 3e-4 of the range of a feature in the pooled output, however small that range is beside the others.
constexpr double MAX_FLOAT = 0x1p13;

// What became of a set, and the scratch for it.
struct Outcome {
    size_t scratch;
    bool solved;
};

template <class T, Place Where, bool Scaled, template <class, Place, bool> class Solver>
Outcome with_set(const Job *job, int64_t b, int64_t first, int64_t n, void *scratch, const Team *team) {
    Arena arena = {(char *)scratch, 0};
    const Source<T> source = {job, b, first, n};
    const uotpool_call &c = *job->call;
    Set<T, Where, Scaled> set(arena, source.matrix(c.X), source.matrix(c.dX), n, chunk_rows_of(job), job->backward);
    Solver<T, Where, Scaled> solver(source, set, arena);
    if (!scratch)
        return {arena.used, false};
    set.team = team;
    if constexpr (Scaled)
        source.load_scale(set.scale.of);
    set.load();
    // By the numbers of this set and the coefficients alone, forward and backward alike. A depth that is not finite may
    // be so in float32 only, by the difference of two entries.
    if (sizeof(T) == 4 && !(set.depth < __builtin_inf() &&
                            source.template magnified<Solver<T, Where, Scaled>>(set.depth) <= MAX_FLOAT))
        return {arena.used, false};
    solver.run();
    return {arena.used, true};
}

// Solves the set; with no scratch, only says how much it needs.
template <template <class, Place, bool> class Solver>
Outcome with_solver(const Job *job, int64_t b, int64_t first, int64_t n, void *scratch, const Team *team) {
    return by_place(job, n, [&](auto place) {
        return by_scale(job, [&](auto scaled) {
            constexpr Place Where = Place(decltype(place)::value);
            constexpr bool Scaled = decltype(scaled)::value;
            return job->call->dtype == UOTPOOL_FLOAT32
                       ? with_set<float, Where, Scaled, Solver>(job, b, first, n, scratch, team)
                       : with_set<double, Where, Scaled, Solver>(job, b, first, n, scratch, team);
        });
    });
}

// A new solver is one line in each of these, and its header.
constexpr SolverInfo SOLVERS[] = {{"sinkhorn", 3}, {"badmm-e", 4}, {"badmm-q", 4}};
constexpr decltype(&with_solver<Sinkhorn>) SOLVE[] = {with_solver<Sinkhorn>, with_solver<EntropicBadmm>,
                                                      with_solver<QuadraticBadmm>};
constexpr int64_t SOLVER_COUNT = sizeof SOLVERS / sizeof *SOLVERS;
static_assert(sizeof SOLVE / sizeof *SOLVE == SOLVER_COUNT);

size_t scratch(const Job *job, int64_t n) { return SOLVE[job->call->solver](job, 0, 0, n, nullptr, nullptr).scratch; }

bool solve(const Job *job, int64_t b, int64_t first, int64_t n, void *memory, const Team *team) {
    return SOLVE[job->call->solver](job, b, first, n, memory, team).solved;
}

} // namespace

#define UOTPOOL_JOIN_(a, b) a##b
#define UOTPOOL_JOIN(a, b) UOTPOOL_JOIN_(a, b)

extern "C" const Kernels UOTPOOL_JOIN(uotpool_kernels_, UOTPOOL_ISA_NAME) = {
    SOLVERS, SOLVER_COUNT, chunk_rows_of, scratch, solve};
