// Weights of a call that gives the parameters of a layer in their place, and the derivatives by those. The softplus of a
// few numbers takes torch longer than a small bag takes us.
#pragma once

#include "uotpool.h"

// The weights (rows, K), in the dtype of the call.
void learned_weights(const uotpool_call &call, int64_t rows, void *weights);

// Fills the wanted ones of `draw` from the derivatives by the weights, (rows, K).
void learned_derivatives(const uotpool_call &call, int64_t rows, const double *dweights);
