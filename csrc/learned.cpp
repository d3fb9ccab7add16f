#include "learned.h"

#include <math.h>

namespace {

// Above this a softplus is its argument, as in torch.
constexpr double LINEAR = 20;

// The logarithm of a weight of the form UOTPOOL_LOG, before its limits; what is not a number passes them.
double logarithm(double raw) { return UOTPOOL_RATE * raw; }
bool within_limits(double x) { return !(fabs(x) > log(UOTPOOL_LOG_LIMIT)); }

double weight(int64_t form, double raw) {
    if (form == UOTPOOL_SOFTPLUS)
        return (raw > LINEAR ? raw : log1p(exp(raw))) + UOTPOOL_FLOOR;
    if (form == UOTPOOL_LOG) {
        const double x = logarithm(raw);
        return within_limits(x) ? exp(x) : x > 0 ? UOTPOOL_LOG_LIMIT : 1 / UOTPOOL_LOG_LIMIT;
    }
    return raw;
}

double slope(int64_t form, double raw) {
    if (form == UOTPOOL_SOFTPLUS)
        return raw > LINEAR ? 1 : 1 / (1 + exp(-raw));
    if (form == UOTPOOL_LOG)
        return within_limits(logarithm(raw)) ? UOTPOOL_RATE * weight(form, raw) : 0;
    return 1;
}

template <class T> void make(const uotpool_call &c, int64_t rows, T *weights) {
    for (int64_t row = 0; row < rows; ++row) {
        const T *const raw = (const T *)c.raw[row];
        const bool shared = c.raw_length[row] == 1;
        const T first = T(weight(c.raw_form[row], raw[0]));
        for (int64_t k = 0; k < c.K; ++k)
            weights[row * c.K + k] = shared || k == 0 ? first : T(weight(c.raw_form[row], raw[k]));
    }
}

template <class T> void differentiate(const uotpool_call &c, int64_t rows, const double *dweights) {
    for (int64_t row = 0; row < rows; ++row) {
        T *const out = (T *)c.draw[row];
        const T *const raw = (const T *)c.raw[row];
        const int64_t modules = c.K / c.raw_length[row]; // that share a parameter
        for (int64_t i = 0; out && i < c.raw_length[row]; ++i) {
            double sum = 0;
            for (int64_t k = 0; k < modules; ++k)
                sum += dweights[row * c.K + i * modules + k];
            out[i] = T(sum * slope(c.raw_form[row], raw[i]));
        }
    }
}

template <class From, class To> void times_rate(const From *from, int64_t count, To *to) {
    for (int64_t i = 0; i < count; ++i)
        to[i] = To(UOTPOOL_RATE * from[i]);
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

void learned_scales(const uotpool_call &call, void *scales) {
    if (call.dtype == UOTPOOL_FLOAT32)
        times_rate((const float *)call.scale, call.scale_length, (float *)scales);
    else
        times_rate((const double *)call.scale, call.scale_length, (double *)scales);
}

void learned_scale_derivatives(const uotpool_call &call, const double *dscales) {
    if (call.dtype == UOTPOOL_FLOAT32)
        times_rate(dscales, call.scale_length, (float *)call.dscale);
    else
        times_rate(dscales, call.scale_length, (double *)call.dscale);
}
