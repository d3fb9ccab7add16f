#include "learned.h"

#include <math.h>

namespace {

// Above this a softplus is its argument, as in torch.
constexpr double LINEAR = 20;

double positive(double raw) { return (raw > LINEAR ? raw : log1p(exp(raw))) + UOTPOOL_FLOOR; }
double slope(double raw) { return raw > LINEAR ? 1 : 1 / (1 + exp(-raw)); }

template <class T> void make(const uotpool_call &c, int64_t rows, T *weights) {
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t k = 0; k < c.K; ++k)
            weights[row * c.K + k] = T(positive(((const T *)c.raw[row])[c.raw_length == 1 ? 0 : k]));
}

template <class T> void differentiate(const uotpool_call &c, int64_t rows, const double *dweights) {
    for (int64_t row = 0; row < rows; ++row) {
        T *const out = (T *)c.draw[row];
        const T *const raw = (const T *)c.raw[row];
        const int64_t modules = c.K / c.raw_length; // that share a parameter
        for (int64_t i = 0; out && i < c.raw_length; ++i) {
            double sum = 0;
            for (int64_t k = 0; k < modules; ++k)
                sum += dweights[row * c.K + i * modules + k];
            out[i] = T(sum * slope(raw[i]));
        }
    }
}

} // namespace

void learned_weights(const uotpool_call &call, int64_t rows, void *weights) {
    if (call.dtype == UOTPOOL_FLOAT32)
        make(call, rows, (float *)weights);
    else
        make(call, rows, (double *)weights);
}

void learned_derivatives(const uotpool_call &call, int64_t rows, const double *dweights) {
    if (call.dtype == UOTPOOL_FLOAT32)
        differentiate<float>(call, rows, dweights);
    else
        differentiate<double>(call, rows, dweights);
}
