// A bag of float32 whose numbers are too far apart for it, solved by the kernels for double.
#pragma once

#include "job.h"

// Bag b of n samples, the first of them `first`, as Kernels::bag does it for one that it can solve. A status.
int solve_in_double(const Job &job, const Kernels &kernels, int64_t b, int64_t first, int64_t n, const Team &team);
