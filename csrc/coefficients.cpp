#include "api.h"

#include <math.h>

namespace {

// Above this a softplus is its argument, as in torch.
constexpr double LINEAR = 20;

// The logarithm of a coefficient with UOTPOOL_EXP, before its limits; what is not a number passes them.
double logarithm(double raw) { return UOTPOOL_RATE * raw; }
bool within_limits(double x) { return !(fabs(x) > log(UOTPOOL_LIMIT)); }

double transformed(int64_t transform, double raw) {
    if (transform == UOTPOOL_SOFTPLUS)
        return (raw > LINEAR ? raw : log1p(exp(raw))) + UOTPOOL_FLOOR;
    if (transform == UOTPOOL_EXP) {
        const double x = logarithm(raw);
        return within_limits(x) ? exp(x) : x > 0 ? UOTPOOL_LIMIT : 1 / UOTPOOL_LIMIT;
    }
    return transform == UOTPOOL_LINEAR ? UOTPOOL_RATE * raw : raw;
}

double slope(int64_t transform, double raw) {
    if (transform == UOTPOOL_SOFTPLUS)
        return raw > LINEAR ? 1 : 1 / (1 + exp(-raw));
    if (transform == UOTPOOL_EXP)
        return within_limits(logarithm(raw)) ? UOTPOOL_RATE * transformed(transform, raw) : 0;
    return transform == UOTPOOL_LINEAR ? UOTPOOL_RATE : 1;
}

// Number i of coefficient `which`.
template <class T> double raw_of(const uotpool_call &c, int64_t which, int64_t i) {
    const void *const numbers = c.coefficient[which];
    return c.transform[which] == UOTPOOL_FIXED ? ((const double *)numbers)[i] : ((const T *)numbers)[i];
}

// The values of coefficient `which`, spread to `count`.
template <class T> void make(const uotpool_call &c, int64_t which, int64_t count, T *values) {
    const T first = T(transformed(c.transform[which], raw_of<T>(c, which, 0)));
    for (int64_t i = 0; i < count; ++i)
        values[i] = c.length[which] == 1 || i == 0 ? first : T(transformed(c.transform[which], raw_of<T>(c, which, i)));
}

// Its derivatives from those by `count` values.
template <class T>
void differentiate(const uotpool_call &c, int64_t which, int64_t count, const double *dvalues, T *) {
    T *const out = (T *)c.dcoefficient[which];
    const int64_t length = c.length[which], shared = out ? count / length : 0; // values of one number
    for (int64_t i = 0; out && i < length; ++i) {
        double sum = 0;
        for (int64_t k = 0; k < shared; ++k)
            sum += dvalues[i * shared + k];
        out[i] = T(sum * slope(c.transform[which], raw_of<T>(c, which, i)));
    }
}

} // namespace

void make_coefficients(const uotpool_call &call, int64_t per_step, void *coefficients) {
    with_type(call, [&](auto *type) {
        for (int64_t which = 0; which < per_step; ++which)
            make(call, which, call.K, (decltype(type))coefficients + which * call.K);
    });
}

void make_scales(const uotpool_call &call, void *scales) {
    with_type(call, [&](auto *type) { make(call, UOTPOOL_SCALE, call.length[UOTPOOL_SCALE], (decltype(type))scales); });
}

void coefficient_derivatives(const uotpool_call &call, int64_t per_step, const double *dcoefficients) {
    with_type(call, [&](auto *type) {
        for (int64_t which = 0; which < per_step; ++which)
            differentiate(call, which, call.K, dcoefficients + which * call.K, type);
    });
}

void scale_derivatives(const uotpool_call &call, const double *dscales) {
    with_type(call, [&](auto *type) {
        differentiate(call, UOTPOOL_SCALE, call.length[UOTPOOL_SCALE], dscales, type);
    });
}
