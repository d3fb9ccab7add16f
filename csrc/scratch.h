// Blocks of memory for the kernels, kept from one call to the next: fresh pages of a large one can cost as much time as
// the work that is done in them.
#pragma once

#include <stddef.h>

struct Scratch {
    void *memory; // aligned to a cache line; NULL: there was none to be had
    size_t bytes; // at least what was asked for
};

// What is in it is left to chance.
Scratch take_scratch(size_t bytes);

void give_scratch(Scratch block);
