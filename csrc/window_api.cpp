// The C interface to windows of images: refuses what is wrong and spreads bands of output rows over threads.
#include <string.h>

#include <atomic>

#include "api.h"
#include "scratch.h"
#include "threads.h"

namespace {

// Bands of about this many entries; whole rows of the output, so that windows fill the lanes. They depend on the sizes
// of one image alone: the bits of a sum over bands do not depend on threads or on the batch.
constexpr int64_t BAND_ENTRIES = int64_t(1) << 16;

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Size of a product of numbers >= 0, or -1 where it would not fit.
int64_t product(int64_t a, int64_t b) {
    int64_t size;
    return a < 0 || b < 0 || __builtin_mul_overflow(a, b, &size) ? -1 : size;
}

int64_t most_positions(const uotpool_window_call &c) {
    return product(smaller(c.kernel_h, c.H), smaller(c.kernel_w, c.W));
}

int refuse(const uotpool_window_call &c, int backward, int64_t begin, int64_t end) {
    if (c.dtype != UOTPOOL_FLOAT32 && c.dtype != UOTPOOL_FLOAT64)
        return UOTPOOL_BAD_ARGUMENT;
    if (c.channels_last != 0 && c.channels_last != 1)
        return UOTPOOL_BAD_ARGUMENT;
    const int64_t most = int64_t(1) << 31;
    if (c.K < 1 || c.K > (1 << 20) || c.threads < 1 || c.threads > 4096)
        return UOTPOOL_BAD_ARGUMENT;
    if (c.B < 0 || c.B > most || c.C < 1 || c.C > most || c.H < 1 || c.H > most || c.W < 1 || c.W > most)
        return UOTPOOL_BAD_ARGUMENT;
    if (begin < 0 || end < begin || end > c.B)
        return UOTPOOL_BAD_ARGUMENT;
    if ((c.scale_length != 0 && c.scale_length != 1 && c.scale_length != c.C) ||
        (c.scale_length == 0 && (c.scale || c.dscale)))
        return UOTPOOL_BAD_ARGUMENT;
    const int64_t at_least_1[] = {c.kernel_h, c.kernel_w, c.stride_h, c.stride_w};
    for (int64_t size : at_least_1)
        if (size < 1 || size > most)
            return UOTPOOL_BAD_ARGUMENT;
    const int64_t at_least_0[] = {c.padding_h, c.padding_w, c.out_h, c.out_w};
    for (int64_t size : at_least_0)
        if (size < 0 || size > most)
            return UOTPOOL_BAD_ARGUMENT;
    // Bytes of X, of the output, of scratch (3 arrays of a tile of at most 64 bytes, some dozens of vectors for each
    // module) and of the sums of all bands.
    const int64_t images = product(c.B, c.C * 8), each_module = product(most_positions(c) + c.C, 2048);
    if (product(images, c.H * c.W) < 0 || product(images, c.out_h * c.out_w) < 0 || each_module < 0 ||
        product(each_module, c.K) < 0 || product(most_positions(c), c.C * 512) < 0 ||
        product(product(c.B, c.out_h), (c.K + c.C) * 64) < 0)
        return UOTPOOL_BAD_ARGUMENT;

    const bool some = c.B > 0, some_out = some && c.out_h > 0 && c.out_w > 0;
    if ((some && !c.X) || !c.weights || (some_out && (backward ? !c.dout : !c.out)) || (c.scale_length > 0 && !c.scale))
        return UOTPOOL_NULL_POINTER;
    const void *floats[] = {c.X, c.weights, c.scale, c.dout, c.out, c.dX, c.dweights, c.dscale};
    for (const void *p : floats)
        if (!aligned(p, c.dtype == UOTPOOL_FLOAT32 ? 4 : 8))
            return UOTPOOL_MISALIGNED;
    return UOTPOOL_OK;
}

// How many numbers a band has of the derivatives by weights and scale.
int64_t sums_of(const uotpool_window_call &c) { return 3 * c.K + (c.scale_length > 1 ? c.scale_length : 1); }

struct Bands {
    const WindowJob *job;
    const Kernels *kernels;
    int64_t begin, end; // images
    int64_t rows, each; // output rows of a band, bands of an image
    int64_t colours, colour; // with two, this one: every other band
    int64_t count, a_task;   // bands of this colour, of one task
    size_t scratch;
    double *sums; // (end - begin, each, sums_of)
    std::atomic<int> *status;
};

void run_bands(void *context, int64_t task) {
    const Bands &bands = *(const Bands *)context;
    const uotpool_window_call &c = *bands.job->call;
    const Scratch scratch = take_scratch(bands.scratch);
    if (!scratch.memory) {
        bands.status->store(UOTPOOL_NO_MEMORY);
        return;
    }
    const int64_t of_colour = (bands.each - bands.colour + bands.colours - 1) / bands.colours;
    for (int64_t i = task * bands.a_task; i < smaller((task + 1) * bands.a_task, bands.count); ++i) {
        const int64_t image = i / of_colour, band = i % of_colour * bands.colours + bands.colour;
        double *sums = bands.sums ? bands.sums + (image * bands.each + band) * sums_of(c) : nullptr;
        bands.kernels->window_rows(bands.job, bands.begin + image, band * bands.rows,
                                   smaller((band + 1) * bands.rows, c.out_h), scratch.memory, sums);
    }
    give_scratch(scratch);
}

template <class T> void sum_bands(const uotpool_window_call &c, const Bands &bands, double *carry) {
    const int64_t step = sums_of(c), parts = (bands.end - bands.begin) * bands.each;
    if (c.dweights)
        sum_in_order(bands.sums, parts, step, 3 * c.K, carry, (T *)c.dweights);
    if (c.dscale)
        sum_in_order(bands.sums + 3 * c.K, parts, step, c.scale_length, carry ? carry + 3 * c.K : nullptr,
                     (T *)c.dscale);
}

int run(const uotpool_window_call *call, int backward, int64_t begin, int64_t end, double *carry) {
    if (!call)
        return UOTPOOL_NULL_POINTER;
    const uotpool_window_call &c = *call;
    const int bad = refuse(c, backward, begin, end);
    if (bad)
        return bad;
    if (begin > 0 && backward && (c.dweights || c.dscale) && !carry)
        return UOTPOOL_NULL_POINTER;
    if (!aligned(carry, sizeof(double)))
        return UOTPOOL_MISALIGNED;
    if (carry && begin == 0)
        memset(carry, 0, size_t(3 * c.K + c.scale_length) * sizeof(double));
    const size_t item = c.dtype == UOTPOOL_FLOAT32 ? 4 : 8;
    // With stride = kernel and no leftover each entry is in one window; else dX is added to.
    const bool once = c.stride_h == c.kernel_h && c.stride_w == c.kernel_w &&
                      c.out_h * c.stride_h - c.padding_h >= c.H && c.out_w * c.stride_w - c.padding_w >= c.W;
    const WindowJob job = {call, backward, most_positions(c), !once};
    if (backward && c.dX && !once)
        memset((char *)c.dX + size_t(begin * c.C * c.H * c.W) * item, 0,
               size_t((end - begin) * c.C * c.H * c.W) * item);

    std::atomic<int> status{UOTPOOL_OK};
    const Kernels &kernels = chosen_kernels();
    const size_t scratch = kernels.window_scratch(&job);
    Bands bands = {&job, &kernels, begin, end, c.out_h, c.out_h > 0, 1, 0, 0, 1, scratch, nullptr, &status};
    const bool work = end > begin && c.out_h > 0 && c.out_w > 0;
    if (work) {
        // In fours: most widths then fill the lanes. At least as many as a window reaches over, so that of the bands
        // only neighbours share entries of dX: every other band first, then those between.
        const int64_t entries = job.most * c.C, wanted = BAND_ENTRIES / smaller(entries, BAND_ENTRIES) / c.out_w;
        const int64_t reach = (c.kernel_h + c.stride_h - 1) / c.stride_h;
        bands.rows = ((wanted > reach ? wanted : reach) + 3) / 4 * 4;
        bands.each = (c.out_h + bands.rows - 1) / bands.rows;
        if (backward && c.kernel_h > c.stride_h && bands.each > 1)
            bands.colours = 2;
    }
    if (backward) {
        bands.sums = (double *)calloc(size_t((end - begin) * bands.each * sums_of(c)) + 1, sizeof(double));
        if (!bands.sums)
            return UOTPOOL_NO_MEMORY;
    }
    for (; work && bands.colour < bands.colours; ++bands.colour) {
        bands.count = (end - begin) * ((bands.each - bands.colour + bands.colours - 1) / bands.colours);
        const int64_t tasks = smaller(bands.count, c.threads == 1 ? 1 : 8 * c.threads);
        bands.a_task = (bands.count + tasks - 1) / tasks;
        run_tasks((bands.count + bands.a_task - 1) / bands.a_task, c.threads, run_bands, &bands);
    }
    if (status.load() == UOTPOOL_OK && backward) {
        if (c.dtype == UOTPOOL_FLOAT32)
            sum_bands<float>(c, bands, carry);
        else
            sum_bands<double>(c, bands, carry);
    }
    free(bands.sums);
    return status.load();
}

} // namespace

UOTPOOL_EXPORT int uotpool_window_forward(const uotpool_window_call *call) {
    return run(call, 0, 0, call ? call->B : 0, nullptr);
}

UOTPOOL_EXPORT int uotpool_window_backward(const uotpool_window_call *call) {
    return run(call, 1, 0, call ? call->B : 0, nullptr);
}

UOTPOOL_EXPORT int uotpool_window_forward_images(const uotpool_window_call *call, int64_t begin, int64_t end) {
    return run(call, 0, begin, end, nullptr);
}

UOTPOOL_EXPORT int uotpool_window_backward_images(const uotpool_window_call *call, int64_t begin, int64_t end,
                                                  double *carry) {
    return run(call, 1, begin, end, carry);
}
