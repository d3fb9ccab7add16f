// Coefficients and scales from what a call has for them, and the derivatives by that. To make a few numbers of the
// parameters of a layer takes torch longer than a small bag takes us.
#pragma once

#include "uotpool.h"

// The coefficients of all steps, (rows, K), in the dtype of the call.
void make_coefficients(const uotpool_call &call, int64_t rows, void *values);

// The scales, in the dtype of the call, as many as the call has.
void make_scales(const uotpool_call &call, void *scales);

// Fills the wanted ones of `dcoefficient` from the derivatives by these, (rows, K) and as many as there are scales.
void coefficient_derivatives(const uotpool_call &call, int64_t rows, const double *dvalues);
void scale_derivatives(const uotpool_call &call, const double *dscales);
