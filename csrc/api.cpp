// The C interface for sets: chooses the instruction set, spreads the sets over threads, sums their derivatives.
#include <string.h>

#include <atomic>

#include "api.h"

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

// A set with fewer entries than this is not worth a thread of its own.
constexpr int64_t TASK_ENTRIES = int64_t(1) << 14;
// A set of at least so many chunks is worked on by all threads together, one such set after the other: fewer of them
// in scratch at a time, and a single one still uses the machine.
constexpr int64_t TEAM_CHUNKS = 4;

int64_t first_of(const uotpool_call &c, int64_t b) { return c.ptr ? c.ptr[b] : b * c.N; }
int64_t size_of(const uotpool_call &c, int64_t b) { return c.ptr ? c.ptr[b + 1] - c.ptr[b] : c.N; }

// Zeros where no set writes: rows that are absent, and everything of an empty set.
void clear(const Job &job, size_t item) {
    const uotpool_call &c = *job.call;
    const bool gaps = c.rows != nullptr;
    if (!job.backward) {
        if (c.head == UOTPOOL_PLAN) {
            if (gaps)
                memset(c.out, 0, size_t(c.M * c.D) * item);
            return;
        }
        for (int64_t b = 0; b < c.B; ++b)
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

// Scratch that serves every set of up to so many samples: one of a single chunk may need more than a larger one
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

// The sets of one task, one after the other in the same scratch.
struct Batch {
    const Job *job;
    const Kernels *kernels;
    int64_t sets_per_task, chunk_rows;
    size_t scratch;
    std::atomic<int> *status;
};

bool is_large(const Batch &batch, int64_t n) { return n > batch.chunk_rows * (TEAM_CHUNKS - 1); }

void run_batch(void *context, int64_t task) {
    const Batch &batch = *(const Batch *)context;
    const uotpool_call &c = *batch.job->call;
    const Team alone = {run_inline, 1};
    const Scratch scratch(batch.scratch);
    if (!scratch.get()) {
        batch.status->store(UOTPOOL_NO_MEMORY);
        return;
    }
    const int64_t begin = task * batch.sets_per_task, end = begin + batch.sets_per_task;
    for (int64_t b = begin; b < end && b < c.B; ++b) {
        const int64_t n = size_of(c, b);
        if (n == 0 || is_large(batch, n) ||
            batch.kernels->solve(batch.job, b, first_of(c, b), n, scratch.get(), &alone))
            continue;
        const int bad = solve_in_double(*batch.job, *batch.kernels, b, first_of(c, b), n, alone);
        if (bad)
            batch.status->store(bad);
    }
}

int run_sets(const Job &job, const Kernels &kernels) {
    const uotpool_call &c = *job.call;
    std::atomic<int> status{UOTPOOL_OK};
    Batch batch = {&job, &kernels, 1, kernels.chunk_rows(&job), 0, &status};
    int64_t small_rows = 0, large = 0;
    Largest small = {0, 0};
    for (int64_t b = 0; b < c.B; ++b) {
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
        for (int64_t b = 0; b < c.B; ++b) {
            const int64_t n = size_of(c, b);
            if (!is_large(batch, n))
                continue;
            bool solved;
            {
                const Scratch scratch(kernels.scratch(&job, n));
                if (!scratch.get())
                    return UOTPOOL_NO_MEMORY;
                solved = kernels.solve(&job, b, first_of(c, b), n, scratch.get(), &together);
            }
            const int bad = solved ? UOTPOOL_OK : solve_in_double(job, kernels, b, first_of(c, b), n, together);
            if (bad)
                return bad;
        }
    }
    if (small_rows > 0) {
        batch.scratch = small.scratch(job, kernels);
        // Tasks of a size that is worth handing out, and a few for each thread so that they end together.
        const int64_t entries = small_rows * c.D;
        int64_t tasks = entries / TASK_ENTRIES;
        tasks = tasks > 8 * c.threads ? 8 * c.threads : tasks;
        tasks = tasks > c.B ? c.B : tasks;
        tasks = tasks < 1 || c.threads == 1 ? 1 : tasks;
        batch.sets_per_task = (c.B + tasks - 1) / tasks;
        tasks = (c.B + batch.sets_per_task - 1) / batch.sets_per_task;
        run_tasks(tasks, c.threads, run_batch, &batch);
    }
    return status.load();
}

// What all sets share is summed in their order, whoever worked on them: n numbers of each. `out` may be `each`.
template <class From, class To> void sum_in_order(const From *each, int64_t sets, int64_t n, To *out) {
    constexpr int64_t block = 64; // of numbers that lie together
    for (int64_t begin = 0; begin < n; begin += block) {
        const int64_t count = n - begin < block ? n - begin : block;
        From sums[block] = {};
        for (int64_t b = 0; b < sets; ++b)
            for (int64_t i = 0; i < count; ++i)
                sums[i] += each[b * n + begin + i];
        for (int64_t i = 0; i < count; ++i)
            out[begin + i] = To(sums[i]);
    }
}

bool wants_dcoefficients(const uotpool_call &c) {
    for (int which = UOTPOOL_ALPHA0; which <= UOTPOOL_RHO; ++which)
        if (c.dcoefficient[which])
            return true;
    return false;
}

void sum_derivatives(const uotpool_call &c, const Job &job) {
    if (job.dcoefficients) {
        sum_in_order(job.dcoefficients, c.B, job.per_step * c.K, job.dcoefficients);
        coefficient_derivatives(c, job.per_step, job.dcoefficients);
    }
    if (job.dscale) {
        sum_in_order(job.dscale, c.B, job.scale_length, job.dscale);
        scale_derivatives(c, job.dscale);
    }
    if (job.dlog_p0 && c.p0_shared)
        with_type(c, [&](auto *type) {
            sum_in_order((decltype(type))job.dlog_p0, c.B, c.D, (decltype(type))c.dlog_p0);
        });
}

// What the kernels get of a valid call. Values and scales are to be made yet.
Job job_of(const uotpool_call &c, int backward, const Sizes &sizes) {
    return {&c, backward, sizes.per_step, nullptr, nullptr, c.length[UOTPOOL_SCALE], nullptr, nullptr, nullptr};
}

int run(const uotpool_call *call, int backward) {
    if (!call)
        return UOTPOOL_NULL_POINTER;
    const uotpool_call &c = *call;
    Sizes sizes;
    const int bad = refuse(c, backward, sizes);
    if (bad)
        return bad;
    Job job = job_of(c, backward, sizes);
    const size_t values = size_t(sizes.per_step * c.K) * sizes.item;
    const Memory made(values + size_t(job.scale_length) * sizes.item);
    if (!made.get())
        return UOTPOOL_NO_MEMORY;
    make_coefficients(c, sizes.per_step, made.get());
    job.coefficients = made.get();
    if (job.scale_length > 0) {
        make_scales(c, (char *)made.get() + values);
        job.scale = (char *)made.get() + values;
    }
    clear(job, sizes.item);
    Memory dcoefficients, dscale, dlog_p0; // of each set
    // One more than there are: the sum of no set needs a place, too.
    const auto zeros = [&](Memory &memory, int64_t numbers, size_t item) {
        const size_t bytes = size_t((c.B + 1) * numbers) * item;
        return memory.take(bytes) ? memset(memory.get(), 0, bytes) : nullptr;
    };
    if (backward && wants_dcoefficients(c)) {
        job.dcoefficients = (double *)zeros(dcoefficients, sizes.per_step * c.K, sizeof(double));
        if (!job.dcoefficients)
            return UOTPOOL_NO_MEMORY;
    }
    if (backward && c.dcoefficient[UOTPOOL_SCALE]) {
        job.dscale = (double *)zeros(dscale, job.scale_length, sizeof(double));
        if (!job.dscale)
            return UOTPOOL_NO_MEMORY;
    }
    if (backward && c.dlog_p0) {
        job.dlog_p0 = c.p0_shared ? zeros(dlog_p0, c.D, sizes.item) : c.dlog_p0;
        if (!job.dlog_p0)
            return UOTPOOL_NO_MEMORY;
        for (int64_t b = 0; b < c.B; ++b)
            if (size_of(c, b) == 0)
                memset((char *)job.dlog_p0 + size_t(b * c.D) * sizes.item, 0, size_t(c.D) * sizes.item);
    }
    const int status = run_sets(job, chosen_kernels());
    if (status == UOTPOOL_OK)
        sum_derivatives(c, job);
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

UOTPOOL_EXPORT int uotpool_forward(const uotpool_call *call) { return run(call, 0); }

UOTPOOL_EXPORT int uotpool_backward(const uotpool_call *call) { return run(call, 1); }

UOTPOOL_EXPORT int64_t uotpool_scratch(const uotpool_call *call, int backward) {
    if (!call)
        return -UOTPOOL_NULL_POINTER;
    Sizes sizes;
    uotpool_call c = *call;
    c.out = c.out ? c.out : (void *)64; // only sizes count here, and nothing is read or written
    c.dout = c.dout ? c.dout : (void *)64;
    const int bad = refuse(c, backward, sizes);
    if (bad)
        return -bad;
    const Job job = job_of(c, backward, sizes);
    const Kernels &kernels = chosen_kernels();
    const int64_t chunk_rows = kernels.chunk_rows(&job);
    Largest largest = {0, 0};
    for (int64_t b = 0; b < c.B; ++b)
        largest.add(size_of(c, b), chunk_rows);
    return (int64_t)largest.scratch(job, kernels);
}
