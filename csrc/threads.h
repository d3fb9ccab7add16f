// A small pool of threads. No OpenMP: torch brings its own, and two of them in a process get in each other's way.
#pragma once

#include <stdint.h>

// Runs fn(context, i) for i = 0 .. tasks - 1 on up to `threads` threads, the caller among them. Tasks are taken in
// order by whoever is free. If the pool is busy with another call, the caller does all of them itself.
void run_tasks(int64_t tasks, int64_t threads, void (*fn)(void *context, int64_t i), void *context);
