#include "api.h"

namespace {

// Numbers of the set in an array of the caller, and in one of their own: `width` of each of its rows, or `width` from
// `at` on.
struct Part {
    float *narrow;
    double *wide;
    int64_t width;
    bool by_row;
    int64_t at;
};

// The set as a batch of one, whose rows follow each other. With no memory it only counts.
struct WideSet {
    const uotpool_call &given;
    const int64_t first, n;
    double *memory;
    int64_t used = 0;
    Part inputs[6], outputs[4];
    int input_count = 0, output_count = 0;
    uotpool_call call;
    Job job;

    WideSet(const Job &from, int64_t b, int64_t first_row, int64_t rows, double *block)
        : given(*from.call), first(first_row), n(rows), memory(block), call(given),
          job(from) {
        const int64_t D = given.D, values = from.per_step * given.K;
        const bool plan = given.head == UOTPOOL_PLAN;
        call.dtype = UOTPOOL_FLOAT64;
        call.B = call.p0_shared = 1;
        call.M = call.N = n;
        call.ptr = call.rows = nullptr;
        call.X = input({(float *)given.X, nullptr, D, true, 0});
        call.log_q0 = input({(float *)given.log_q0, nullptr, 1, true, 0});
        call.log_p0 = input({(float *)given.log_p0, nullptr, D, false, given.p0_shared ? 0 : b * D});
        job.call = &call;
        job.coefficients = input({(float *)from.coefficients, nullptr, values, false, 0});
        job.scale = input({(float *)from.scale, nullptr, from.scale_length, false, 0});
        call.out = call.dX = call.dlog_q0 = nullptr;
        call.dlog_p0 = job.dlog_p0 = nullptr; // of each set it is in the job
        if (from.backward) {
            call.dout = input({(float *)given.dout, nullptr, D, plan, b * D});
            call.dX = output({(float *)given.dX, nullptr, D, true, 0});
            call.dlog_q0 = output({(float *)given.dlog_q0, nullptr, 1, true, 0});
            job.dlog_p0 = output({(float *)from.dlog_p0, nullptr, D, false, b * D});
            job.dscale = from.dscale ? from.dscale + b * from.scale_length : nullptr;
            job.dcoefficients = from.dcoefficients ? from.dcoefficients + b * values : nullptr;
        } else {
            call.out = output({(float *)given.out, nullptr, D, plan, b * D});
        }
    }
    WideSet(const WideSet &) = delete; // `job` points into it

    double *input(Part part) { return part.narrow ? place(inputs[input_count++] = part) : nullptr; }
    double *output(Part part) { return part.narrow ? place(outputs[output_count++] = part) : nullptr; }

    double *place(Part &part) {
        part.wide = memory ? memory + used : nullptr;
        used += (part.width * (part.by_row ? n : 1) + 7) / 8 * 8; // aligned as scratch is
        return part.wide;
    }

    // f(float, double) for each number of the part.
    template <class F> void pairs(const Part &part, F f) const {
        for (int64_t i = 0; i < (part.by_row ? n : 1); ++i) {
            const int64_t row = given.rows ? given.rows[first + i] : first + i;
            float *const narrow = part.narrow + (part.by_row ? row * part.width : part.at);
            double *const wide = part.wide + i * part.width;
            for (int64_t j = 0; j < part.width; ++j)
                f(narrow[j], wide[j]);
        }
    }

    void load() const {
        for (int i = 0; i < input_count; ++i)
            pairs(inputs[i], [](const float &narrow, double &wide) { wide = narrow; });
    }
    void store() const {
        for (int i = 0; i < output_count; ++i)
            pairs(outputs[i], [](float &narrow, const double &wide) { narrow = float(wide); });
    }
};

} // namespace

int solve_in_double(const Job &job, const Kernels &kernels, int64_t b, int64_t first, int64_t n, const Team &team) {
    const WideSet counted(job, b, first, n, nullptr);
    const Memory numbers(size_t(counted.used) * sizeof(double));
    const WideSet set(job, b, first, n, (double *)numbers.get());
    const Memory scratch(kernels.scratch(&set.job, n));
    if (!numbers.get() || !scratch.get())
        return UOTPOOL_NO_MEMORY;
    set.load();
    kernels.solve(&set.job, 0, 0, n, scratch.get(), &team);
    set.store();
    return UOTPOOL_OK;
}
