// What a call about bags must be like before any of its pointers is followed.
#pragma once

#include <stddef.h>

#include "uotpool.h"

struct Sizes {
    int64_t weights; // rows of `weights`
    size_t item;
};

// Returns UOTPOOL_OK and fills in `sizes`, or says why the bags from `begin` to `end` cannot be solved.
int refuse(const uotpool_call &c, int backward, int64_t begin, int64_t end, Sizes &sizes);
