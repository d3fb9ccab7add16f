"""Times of several calls side by side: taken in turns, the least of some repeats counts. And the calls."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter, process_time
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

Call = Callable[[], object]
Pool = Callable[..., Tensor]  # a module or a function: X and how it is laid out -> pooled
Size = tuple[int, int, int]  # sets, samples, features
Key = TypeVar("Key", bound=Hashable)
FORWARD, BOTH = "forward", "forward+backward"


class Job(NamedTuple):
    """A call and the number of torch's threads it runs with."""

    call: Call
    threads: int


def interleaved(
    jobs: Mapping[Key, Job], repeats: int, min_sample: float, after_each: Callable[[], None] | None = None
) -> dict[Key, float]:
    """Return the seconds of a call: the least of `repeats` samples of at least `min_sample` seconds each.

    Noise only ever adds time, so the minimum is the figure that repeats. Every repeat takes a sample of each
    job, starting with another one each time: a slow phase of the machine, or a neighbour that leaves the caches
    cold, meets all of them. `after_each` is called after each repeat.
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
            if after_each is not None:
                after_each()
    torch.set_num_threads(threads)
    return best


def processor_time(calls: Mapping[Key, Call], repeats: int, min_sample: float) -> dict[Key, float]:
    """Return the least seconds of the processor for each call on one thread, of samples taken in turns.

    Long calls share their time with whatever else runs, which this does not count.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    best, loops = dict.fromkeys(calls, math.inf), dict.fromkeys(calls, 1)
    for repeat in range(repeats + 1):  # the first one warms up, and tells how many calls make a sample
        for name, call in calls.items():
            start = process_time()
            for _ in range(loops[name]):
                call()
            seconds = (process_time() - start) / loops[name]
            if repeat:
                best[name] = min(best[name], seconds)
            else:
                loops[name] = max(1, math.ceil(min_sample / max(seconds, 1e-6)))
    torch.set_num_threads(before)
    return best


def fastest(calls: Mapping[Key, Call], threads: int, budget: float = 0.1) -> Key:
    """Choose which one to measure, by a rough comparison of some `budget` seconds for each."""
    jobs = {key: Job(call, threads) for key, call in calls.items()}
    best = {key: _sample(job, 1) for key, job in jobs.items()}
    rounds = min(20, math.ceil(budget / max(best.values())))
    for _ in range(rounds):
        best = {key: min(best[key], _sample(job, 1)) for key, job in jobs.items()}
    return min(best, key=lambda key: best[key])


def _loops(job: Job, min_sample: float) -> int:
    """Find how many calls make a sample long enough; this also warms up."""
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


def samples(size: tuple[int, ...], seed: int = 0) -> Tensor:
    """Draw standard normal numbers, which is what a normalised network puts out."""
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def random_edges(size: Size, seed: int = 4) -> Tensor:
    """Draw (2, 4 B N): four edges to each node, from any node of its set; rows of X.flatten(0, 1)."""
    B, N, _ = size
    g = torch.Generator().manual_seed(seed)
    ends = torch.randint(N, (B, 4 * N), generator=g) + N * torch.arange(B)[:, None]
    starts = torch.arange(B * N).reshape(B, N).repeat_interleave(4, dim=1)
    return torch.stack([ends.flatten(), starts.flatten()])


def timed(pool: Pool, mode: str, X: Tensor, **layout: Any) -> Call:
    """Return the call of a mode: forward without a graph, or forward and backward by X and all parameters."""
    if mode == FORWARD:

        def forward() -> object:
            with torch.no_grad():
                return pool(X, **layout)

        return forward
    assert mode == BOTH
    leaf = X.detach().requires_grad_()
    wanted = [leaf, *(pool.parameters() if isinstance(pool, nn.Module) else ())]
    with torch.no_grad():
        shape = pool(leaf, **layout).shape
    dout = samples(tuple(shape), seed=2)

    def both() -> object:
        # Not .backward(): that would add to the last round's gradients, a pass over memory of its own.
        y = pool(leaf, **layout)
        outputs, douts = [y], [dout]
        loss = getattr(pool, "aux_loss", 0.0)
        if isinstance(loss, Tensor):  # trained with it, so it is part of the cost
            outputs, douts = [y, loss], [dout, torch.ones_like(loss)]
        return torch.autograd.grad(outputs, wanted, douts, allow_unused=True)

    return both
