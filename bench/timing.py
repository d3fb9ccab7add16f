"""Times of several calls side by side: taken in turns, the least of some repeats counts."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import NamedTuple, TypeVar

import torch

Call = Callable[[], object]
Key = TypeVar("Key", bound=Hashable)


class Job(NamedTuple):
    """A call and the number of torch's threads it runs with."""

    call: Call
    threads: int


def interleaved(jobs: Mapping[Key, Job], repeats: int, min_sample: float) -> dict[Key, float]:
    """Seconds a call takes, the minimum over `repeats` samples that last `min_sample` seconds or more each.

    Noise only ever adds time, so the minimum is the figure that repeats. Every repeat takes a sample of each
    job, starting with another one each time: a slow phase of the machine, or a neighbour that leaves the caches
    cold, meets all of them.
    """
    best = dict.fromkeys(jobs, math.inf)
    threads = torch.get_num_threads()
    with _no_garbage_collection():
        loops = {key: _loops(job, min_sample) for key, job in jobs.items()}
        order = list(jobs)
        for repeat in range(repeats):
            start = repeat % len(order)
            for key in order[start:] + order[:start]:
                best[key] = min(best[key], _sample(jobs[key], loops[key]) / loops[key])
    torch.set_num_threads(threads)
    return best


def fastest(calls: Mapping[Key, Call], threads: int, budget: float = 0.1) -> Key:
    """Which one to measure, from a rough comparison of some `budget` seconds for each."""
    jobs = {key: Job(call, threads) for key, call in calls.items()}
    best = {key: _sample(job, 1) for key, job in jobs.items()}
    rounds = min(20, math.ceil(budget / max(best.values())))
    for _ in range(rounds):
        best = {key: min(best[key], _sample(job, 1)) for key, job in jobs.items()}
    return min(best, key=lambda key: best[key])


def _loops(job: Job, min_sample: float) -> int:
    """How many calls make a sample long enough; also warms up."""
    loops = 1
    _sample(job, loops)  # says nothing of the next ones: torch.compile compiles in it
    while (seconds := _sample(job, loops)) < min_sample:
        # At most tenfold: the first samples of a call are slow ones. A tenth on top, not to land just below.
        loops = max(loops + 1, min(10 * loops, math.ceil(1.1 * loops * min_sample / seconds)))
    return loops


def _sample(job: Job, loops: int) -> float:
    call = job.call
    switch = torch.get_num_threads() != job.threads
    if switch:
        torch.set_num_threads(job.threads)
    if switch or loops > 1:  # threads start, caches fill; a long call does not notice its neighbour's caches
        call()
    start = perf_counter()
    for _ in range(loops):
        call()
    return perf_counter() - start


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
