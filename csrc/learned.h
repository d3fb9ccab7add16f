// Weights and scales of a call that gives the parameters of a layer in their place, and the derivatives by those. To
// make a few numbers of them takes torch longer than a small bag takes us.
#pragma once

#include "uotpool.h"

inline bool makes_weights(const uotpool_call &call) { return call.raw_length[0] != 0; }
inline bool makes_scale(const uotpool_call &call) { return call.scale_form != UOTPOOL_VALUE; }

// The weights (rows, K), in the dtype of the call.
void learned_weights(const uotpool_call &call, int64_t rows, void *weights);

// Fills the wanted ones of `draw` from the derivatives by the weights, (rows, K).
void learned_derivatives(const uotpool_call &call, int64_t rows, const double *dweights);

// The scales (scale_length), in the dtype of the call, of what is in its `scale`.
void learned_scales(const uotpool_call &call, void *scales);

// Fills `dscale` from the derivatives by the scales.
void learned_scale_derivatives(const uotpool_call &call, const double *dscales);
