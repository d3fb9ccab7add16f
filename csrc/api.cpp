// The C interface for bags: chooses the instruction set, spreads the bags over threads, sums their derivatives.
#include <stdlib.h>
#include <string.h>

#include <atomic>

#include "api.h"
#include "learned.h"
#include "refuse.h"
#include "scratch.h"
#include "threads.h"
#include "widen.h"

namespace {

const Kernels *kernels_of(int isa) {
    switch (isa) {
    case UOTPOOL_BASELINE:
        return &uotpool_kernels_baseline;
#ifdef UOTPOOL_HAVE_AVX2
    case UOTPOOL_AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &uotpool_kernels_avx2 : nullptr;
#endif
#ifdef UOTPOOL_HAVE_AVX512
    case UOTPOOL_AVX512:
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                       __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw")
                   ? &uotpool_kernels_avx512
                   : nullptr;
#endif
    default:
        return nullptr;
    }
}

int best_isa() {
    for (int isa = UOTPOOL_AVX512; isa > UOTPOOL_BASELINE; --isa)
        if (kernels_of(isa))
            return isa;
    return UOTPOOL_BASELINE;
}

std::atomic<int> &chosen() {
    static std::atomic<int> isa{best_isa()};
    return isa;
}

// A bag with fewer entries than this is not worth a thread of its own.
constexpr int64_t TASK_ENTRIES = int64_t(1) << 14;
// A bag of at least so many chunks is worked on by all threads together, one such bag after the other: fewer of them
// in scratch at a time, and a single one still uses the machine.
constexpr int64_t TEAM_CHUNKS = 4;

int64_t first_of(const uotpool_call &c, int64_t b) { return c.ptr ? c.ptr[b] : b * c.N; }
int64_t size_of(const uotpool_call &c, int64_t b) { return c.ptr ? c.ptr[b + 1] - c.ptr[b] : c.N; }

// Zeros where no bag writes: rows that are absent, and everything of an empty bag.
void clear(const Job &job, size_t item) {
    const uotpool_call &c = *job.call;
    const bool gaps = c.rows != nullptr && job.begin == 0;
    if (!job.backward) {
        if (c.head == UOTPOOL_PLAN) {
            if (gaps)
                memset(c.out, 0, size_t(c.M * c.D) * item);
            return;
        }
        for (int64_t b = job.begin; b < job.end; ++b)
            if (size_of(c, b) == 0)
                memset((char *)c.out + size_t(b * c.D) * item, 0, size_t(c.D) * item);
        return;
    }
    if (gaps && c.dX)
        memset(c.dX, 0, size_t(c.M * c.D) * item);
    if (gaps && c.dlog_q0)
        memset(c.dlog_q0, 0, size_t(c.M) * item);
}

void run_inline(const Team *, int64_t tasks, void (*fn)(void *, int64_t), void *context) {
    for (int64_t i = 0; i < tasks; ++i)
        fn(context, i);
}

void run_together(const Team *team, int64_t tasks, void (*fn)(void *, int64_t), void *context) {
    run_tasks(tasks, team->threads, fn, context);
}

// Scratch that serves every bag of up to so many samples: one of a single chunk may need more than a larger one
// (sinkhorn.h). `single` is the largest size of that kind.
struct Largest {
    int64_t any, single;
    void add(int64_t n, int64_t chunk_rows) {
        any = n > any ? n : any;
        single = n <= chunk_rows && n > single ? n : single;
    }
    size_t scratch(const Job &job, const Kernels &kernels) const {
        const size_t a = any ? kernels.scratch(&job, any) : 0, b = single ? kernels.scratch(&job, single) : 0;
        return a > b ? a : b;
    }
};

// The bags of one task, one after the other in the same scratch.
struct Batch {
    const Job *job;
    const Kernels *kernels;
    int64_t bags_a_task, chunk_rows;
    size_t scratch;
    std::atomic<int> *status;
};

bool is_large(const Batch &batch, int64_t n) { return n > batch.chunk_rows * (TEAM_CHUNKS - 1); }

void run_batch(void *context, int64_t task) {
    const Batch &batch = *(const Batch *)context;
    const uotpool_call &c = *batch.job->call;
    const Team alone = {run_inline, 1};
    const Scratch scratch = take_scratch(batch.scratch);
    if (!scratch.memory) {
        batch.status->store(UOTPOOL_NO_MEMORY);
        return;
    }
    const int64_t begin = batch.job->begin + task * batch.bags_a_task, end = begin + batch.bags_a_task;
    for (int64_t b = begin; b < end && b < batch.job->end; ++b) {
        const int64_t n = size_of(c, b);
        if (n == 0 || is_large(batch, n) ||
            batch.kernels->bag(batch.job, b, first_of(c, b), n, scratch.memory, &alone))
            continue;
        const int bad = solve_in_double(*batch.job, *batch.kernels, b, first_of(c, b), n, alone);
        if (bad)
            batch.status->store(bad);
    }
    give_scratch(scratch);
}

int run_bags(const Job &job, const Kernels &kernels) {
    const uotpool_call &c = *job.call;
    std::atomic<int> status{UOTPOOL_OK};
    Batch batch = {&job, &kernels, 1, kernels.chunk_rows(&job), 0, &status};
    int64_t small_rows = 0, large = 0;
    Largest small = {0, 0};
    for (int64_t b = job.begin; b < job.end; ++b) {
        const int64_t n = size_of(c, b);
        if (is_large(batch, n)) {
            ++large;
        } else {
            small_rows += n;
            small.add(n, batch.chunk_rows);
        }
    }
    if (large > 0) {
        const Team together = {run_together, c.threads};
        for (int64_t b = job.begin; b < job.end; ++b) {
            const int64_t n = size_of(c, b);
            if (!is_large(batch, n))
                continue;
            const Scratch scratch = take_scratch(kernels.scratch(&job, n));
            if (!scratch.memory)
                return UOTPOOL_NO_MEMORY;
            const bool solved = kernels.bag(&job, b, first_of(c, b), n, scratch.memory, &together);
            give_scratch(scratch);
            const int bad = solved ? UOTPOOL_OK : solve_in_double(job, kernels, b, first_of(c, b), n, together);
            if (bad)
                return bad;
        }
    }
    if (small_rows > 0) {
        batch.scratch = small.scratch(job, kernels);
        // Tasks of a size that is worth handing out, and a few for each thread so that they end together.
        const int64_t entries = small_rows * c.D, bags = job.end - job.begin;
        int64_t tasks = entries / TASK_ENTRIES;
        tasks = tasks > 8 * c.threads ? 8 * c.threads : tasks;
        tasks = tasks > bags ? bags : tasks;
        tasks = tasks < 1 || c.threads == 1 ? 1 : tasks;
        batch.bags_a_task = (bags + tasks - 1) / tasks;
        tasks = (bags + batch.bags_a_task - 1) / batch.bags_a_task;
        run_tasks(tasks, c.threads, run_batch, &batch);
    }
    return status.load();
}

template <class T> void sum_bags(const T *each, int64_t bags, int64_t n, bool first, T *out) {
    for (int64_t i = 0; first && i < n; ++i)
        out[i] = 0;
    for (int64_t b = 0; b < bags; ++b)
        for (int64_t i = 0; i < n; ++i)
            out[i] += each[b * n + i];
}

bool wants_dweights(const uotpool_call &c) { return c.dweights || c.draw[0] || c.draw[1] || c.draw[2] || c.draw[3]; }

// What is summed over the bags when all are done.
struct OfEachBag {
    double *dweights = nullptr, *dscale = nullptr;
    void *dlog_p0 = nullptr;
    ~OfEachBag() {
        free(dweights);
        free(dscale);
        free(dlog_p0);
    }
};

// `carry` is for dweights, then for dscale.
template <class T>
void sum_derivatives(const uotpool_call &c, const Sizes &sizes, int64_t begin, int64_t bags, double *carry,
                     const OfEachBag &each) {
    const int64_t weights = sizes.weights * c.K;
    if (each.dweights && makes_weights(c)) {
        // The sum of the first `weights` numbers is done when they are written, so it can take their place.
        sum_in_order(each.dweights, bags, weights, weights, carry, each.dweights);
        learned_derivatives(c, sizes.weights, each.dweights);
    } else if (each.dweights) {
        sum_in_order(each.dweights, bags, weights, weights, carry, (T *)c.dweights);
    }
    if (each.dscale) {
        double *const carried = carry ? carry + weights : nullptr;
        if (makes_scale(c)) {
            sum_in_order(each.dscale, bags, c.scale_length, c.scale_length, carried, each.dscale);
            learned_scale_derivatives(c, each.dscale);
        } else {
            sum_in_order(each.dscale, bags, c.scale_length, c.scale_length, carried, (T *)c.dscale);
        }
    }
    if (each.dlog_p0)
        sum_bags((const T *)each.dlog_p0, bags, c.D, begin == 0, (T *)c.dlog_p0);
}

double *zeros(int64_t count) { return (double *)calloc(size_t(count), sizeof(double)); }

int run_valid(const uotpool_call &c, int backward, int64_t begin, int64_t end, double *carry, const Sizes &sizes) {
    Job job = {&c, backward, sizes.weights, begin, end, nullptr, nullptr, nullptr};
    clear(job, sizes.item);
    const int64_t weights = sizes.weights * c.K, bags = end - begin;
    if (carry && begin == 0)
        memset(carry, 0, size_t(weights + c.scale_length) * sizeof(double));
    OfEachBag each;
    if (backward && wants_dweights(c)) {
        job.dweights = each.dweights = zeros((bags + 1) * weights);
        if (!each.dweights)
            return UOTPOOL_NO_MEMORY;
    }
    if (backward && c.dscale) {
        job.dscale = each.dscale = zeros((bags + 1) * c.scale_length);
        if (!each.dscale)
            return UOTPOOL_NO_MEMORY;
    }
    if (backward && c.dlog_p0) {
        job.dlog_p0 = (char *)c.dlog_p0 + size_t(begin * c.D) * sizes.item;
        if (c.p0_shared)
            job.dlog_p0 = each.dlog_p0 = take(size_t(bags * c.D) * sizes.item);
        if (!job.dlog_p0)
            return UOTPOOL_NO_MEMORY;
        for (int64_t b = begin; b < end; ++b)
            if (size_of(c, b) == 0)
                memset((char *)job.dlog_p0 + size_t((b - begin) * c.D) * sizes.item, 0, size_t(c.D) * sizes.item);
    }
    const int status = run_bags(job, chosen_kernels());
    if (status != UOTPOOL_OK)
        return status;
    if (c.dtype == UOTPOOL_FLOAT32)
        sum_derivatives<float>(c, sizes, begin, bags, carry, each);
    else
        sum_derivatives<double>(c, sizes, begin, bags, carry, each);
    return UOTPOOL_OK;
}

int run(const uotpool_call *call, int backward, int64_t begin, int64_t end, double *carry) {
    if (!call)
        return UOTPOOL_NULL_POINTER;
    Sizes sizes;
    const int bad = refuse(*call, backward, begin, end, sizes);
    if (bad)
        return bad;
    if (begin > 0 && backward && (wants_dweights(*call) || call->dscale) && !carry)
        return UOTPOOL_NULL_POINTER;
    if (!aligned(carry, sizeof(double)))
        return UOTPOOL_MISALIGNED;
    // What is made of the parameters of a layer: weights, then scales. The kernels get these.
    const int64_t weights = makes_weights(*call) ? sizes.weights * call->K : 0;
    const int64_t scales = makes_scale(*call) ? call->scale_length : 0;
    if (weights + scales == 0)
        return run_valid(*call, backward, begin, end, carry, sizes);
    uotpool_call with_made = *call;
    char *const made = (char *)take(size_t(weights + scales) * sizes.item);
    if (!made)
        return UOTPOOL_NO_MEMORY;
    if (weights > 0) {
        learned_weights(*call, sizes.weights, made);
        with_made.weights = made;
    }
    if (scales > 0) {
        char *const scale = made + size_t(weights) * sizes.item;
        learned_scales(*call, scale);
        with_made.scale = scale;
    }
    const int status = run_valid(with_made, backward, begin, end, carry, sizes);
    free(made);
    return status;
}

} // namespace

const Kernels &chosen_kernels() { return *kernels_of(chosen().load()); }

UOTPOOL_EXPORT int uotpool_abi(void) { return UOTPOOL_ABI; }

UOTPOOL_EXPORT const char *uotpool_solver(int64_t code) {
    const Kernels &kernels = uotpool_kernels_baseline; // all have the same
    return code >= 0 && code < kernels.solver_count ? kernels.solvers[code].name : nullptr;
}

UOTPOOL_EXPORT int uotpool_isa(void) { return chosen().load(); }

UOTPOOL_EXPORT int uotpool_has_isa(int isa) { return kernels_of(isa) != nullptr; }

UOTPOOL_EXPORT int uotpool_set_isa(int isa) {
    if (!kernels_of(isa))
        return UOTPOOL_NO_SUCH_ISA;
    chosen().store(isa);
    return UOTPOOL_OK;
}

UOTPOOL_EXPORT int uotpool_forward(const uotpool_call *call) { return run(call, 0, 0, call ? call->B : 0, nullptr); }

UOTPOOL_EXPORT int uotpool_backward(const uotpool_call *call) { return run(call, 1, 0, call ? call->B : 0, nullptr); }

UOTPOOL_EXPORT int uotpool_forward_bags(const uotpool_call *call, int64_t begin, int64_t end) {
    return run(call, 0, begin, end, nullptr);
}

UOTPOOL_EXPORT int uotpool_backward_bags(const uotpool_call *call, int64_t begin, int64_t end, double *carry) {
    return run(call, 1, begin, end, carry);
}

UOTPOOL_EXPORT int64_t uotpool_scratch(const uotpool_call *call, int backward) {
    if (!call)
        return -UOTPOOL_NULL_POINTER;
    Sizes sizes;
    uotpool_call c = *call;
    c.out = c.out ? c.out : (void *)64; // only sizes count here, and nothing is read or written
    c.dout = c.dout ? c.dout : (void *)64;
    const int bad = refuse(c, backward, 0, c.B, sizes);
    if (bad)
        return -bad;
    const Job job = {&c, backward, sizes.weights, 0, c.B, nullptr, nullptr, nullptr};
    const Kernels &kernels = chosen_kernels();
    const int64_t chunk_rows = kernels.chunk_rows(&job);
    Largest largest = {0, 0};
    for (int64_t b = 0; b < c.B; ++b)
        largest.add(size_of(c, b), chunk_rows);
    return (int64_t)largest.scratch(job, kernels);
}
