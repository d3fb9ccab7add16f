// What a call about bags must be like before it is solved. Of its arrays only ptr and rows are read.
#pragma once

#include <stddef.h>

#include "uotpool.h"

struct Sizes {
    int64_t rows; // coefficients of the solver
    size_t item;
};

// Returns UOTPOOL_OK and fills in `sizes`, or says why the call cannot be solved; `sizes` then means nothing.
int refuse(const uotpool_call &c, int backward, Sizes &sizes);
