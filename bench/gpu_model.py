"""Traffic and launches on a GPU, counted, and from them a model of the time. Nothing here was timed on a GPU.

The reference is counted operation by operation on tensors without values, torch.compile by the code that
Inductor writes for CUDA, ours by dry launches: the tensors that a launch is given, each once.
"""

from __future__ import annotations

import math
import tempfile
from typing import NamedTuple

import torch
from torch import Tensor

from bench.cases import show
from bench.offline import figures, inductor
from bench.offline.counting import Counter, moved
from bench.offline.driver import Launch, dry, unusable
from bench.offline.figures import Subject
from bench.rows import PART, Finding
from bench.session import Session
from bench.timing import BOTH, FORWARD, Size
from uotpool import UOTPool2d, uot_pool
from uotpool.backends.images import WindowArguments
from uotpool.backends.triton import calls, window_calls

K = 4
LARGE = (1, 50_000, 512)
WINDOWS = (32, 64, 56, 56)  # images, of which windows of 2 x 2 are pooled
COLUMNS = ("reference", "torch.compile", "triton")
COUNTED, MODEL = "counted: memory in multiples of X, and launches", "a MODEL of the time, in microseconds"


class GPU(NamedTuple):
    """Data sheets: processors, clock in GHz, and memory in TB/s."""

    processors: int
    clock: float
    memory: float


GPUS = {"A100": GPU(108, 1.41, 1.555), "H100": GPU(132, 1.755, 3.35)}
TARGET = "sm_80"  # whose instructions are counted, for both: those of sm_90 are nearly the same
# What is reached of it, by assumption.
MEMORY, ISSUE, SPECIAL = 0.85, 0.6, 0.8
QUEUED, OPERATION = (
    1.5,
    5.0,
)  # microseconds of a launch that waits in a queue or a graph, and of torch's eager ones
PER_CLOCK, SPECIAL_PER_CLOCK = 128, 16  # instructions of threads for each processor


class Work(NamedTuple):
    """What a call takes: launches, bytes, instructions and special ones of all threads; a program for a set?"""

    launches: int
    bytes: int
    instructions: float = 0.0
    special: float = 0.0
    by_set: bool = False


def measure(session: Session) -> list[Finding]:
    if reason := unusable():
        raise SystemExit(f"bench: {reason}")
    sizes: tuple[tuple[int, ...], ...] = session.sizes if session.quick else (*session.sizes, LARGE)
    compiled_at = {"none": (), "some": sizes[:1], "all": sizes}[session.compile]
    sizes = (*sizes, (2, 8, 8, 8) if session.quick else WINDOWS)
    rows: list[Finding] = []
    with tempfile.TemporaryDirectory() as cache:
        for size in session.track(sizes, "gpu-model"):
            for mode in (FORWARD, BOTH):
                work = {"reference": reference(size, mode), "triton": ours(size, mode, cache)}
                if len(size) == 3 and size in compiled_at:
                    work["torch.compile"] = compiled(size, mode)
                rows += _rows(size, mode, work)
    return rows


def _named(size: tuple[int, ...]) -> str:
    return f"2 x 2 windows of {show(size)}" if len(size) == 4 else show(size)


def _rows(size: tuple[int, ...], mode: str, work: dict[str, Work]) -> list[Finding]:
    X = 4 * math.prod(size)
    about: Finding = {PART: COUNTED, "size": _named(size), "mode": mode}
    rows = [
        about | {"": name, "memory / X": f"{one.bytes / X:.1f}", "launches": one.launches}
        for name, one in work.items()
    ]
    for name, gpu in GPUS.items():
        times = {key: max(_memory(one, gpu), one.launches * OPERATION) for key, one in work.items()}
        times["triton"] = _time(work["triton"], gpu, size)
        about = {PART: MODEL, "size": _named(size), "mode": mode, "GPU": name}
        about |= {key: f"{times[key]:.0f}" if key in times else "" for key in COLUMNS}
        rows.append(about | {"reference / triton": f"{times['reference'] / times['triton']:.0f}"})
    return rows


def _memory(work: Work, gpu: GPU) -> float:
    return work.bytes / (gpu.memory * 1e6 * MEMORY)


def _time(work: Work, gpu: GPU, size: tuple[int, ...]) -> float:
    """Return the longest of memory, issue and special unit, with launches. Few sets leave processors idle."""
    rate = gpu.processors * gpu.clock * 1e3
    idle = 1.0
    if work.by_set:  # two programs are on a processor at a time
        at_once = 2 * gpu.processors
        idle = math.ceil(size[0] / at_once) * at_once / size[0]
    issued = work.instructions / (rate * PER_CLOCK * ISSUE)
    special = work.special / (rate * SPECIAL_PER_CLOCK * SPECIAL)
    return max(_memory(work, gpu), idle * issued, idle * special) + work.launches * QUEUED


def pooled(X: Tensor, weights: Tensor) -> Tensor:
    return uot_pool(X, *weights, impl="reference")


def differentiated(X: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
    X, weights = X.requires_grad_(), weights.requires_grad_()
    return torch.autograd.grad(pooled(X, weights).sum(), (X, weights))


def reference(size: tuple[int, ...], mode: str) -> Work:
    """Count the reference, operation by operation."""
    X, weights = torch.empty(size, device="meta"), torch.empty(3, K, device="meta")
    layer = None
    if len(size) == 4:
        layer = UOTPool2d(size[1], 2, K=K, impl="reference").to("meta")
        wanted = [X.requires_grad_(), *layer.parameters()]
    with Counter() as counter, torch.set_grad_enabled(mode == BOTH):
        if layer is not None:
            y = layer(X)
            if mode == BOTH:
                torch.autograd.grad(y.sum(), wanted)
        elif mode == FORWARD:
            pooled(X, weights)
        else:
            differentiated(X, weights)
    return Work(counter.operations, counter.bytes)


def compiled(size: Size, mode: str) -> Work:
    """Count what Inductor makes of the reference."""
    return Work(*inductor.count(pooled if mode == FORWARD else differentiated, size, (3, K)))


def ours(size: tuple[int, ...], mode: str, cache: str) -> Work:
    """Count the launches that the library chooses for a dense batch, and the torch operations beside them."""
    if len(size) == 4:
        return _windows(size, mode, cache)
    B, N, D = size
    p = figures.arguments(Subject(TARGET, D), (N,) * B, K)._replace(ptr=None, N=N)
    with dry(TARGET, cache) as found, Counter() as counter:
        out, saved = calls.forward(p, save=mode == BOTH)
        if saved is not None:
            calls.backward(out, p, saved, [tensor is not None for tensor in p.differentiable()])
    work = [_launched(one, p.X.shape[0]) for one in found]
    instructions, special = (sum(one[i] for one in work) for i in (2, 3))
    moved_by_all = sum(one.bytes for one in work) + counter.bytes
    by_set = any(one.name.endswith("_set") for one in found)
    return Work(len(found) + counter.operations, moved_by_all, instructions, special, by_set)


def _windows(size: tuple[int, ...], mode: str, cache: str) -> Work:
    """Count the same for windows of 2 x 2, whose kernels go through the K modules of a tile once."""
    C, H, W = size[1:]
    pairs = ((2, 2), (2, 2), (0, 0), (H // 2, W // 2))
    p = WindowArguments(torch.zeros(size), torch.ones(3, K), torch.ones(C), *pairs)
    with dry(TARGET, cache) as found, Counter() as counter:
        out, rows = window_calls.forward(p, save=mode == BOTH)
        if rows is not None:
            window_calls.backward(out, p, rows, [True] * 3)
    moved_by_all, instructions, special = counter.bytes, 0.0, 0.0
    for one in found:
        (figure,) = figures.describe(Subject(one.target, C), [one])
        entries = one.grid[0] * math.prod(one.arguments[name] for name in "NGPQ") * K
        moved_by_all += sum({id(t): moved(t) for t in one.arguments.values() if isinstance(t, Tensor)}.values())
        instructions += entries * figure.instructions
        special += entries * figure.special
    return Work(len(found) + counter.operations, moved_by_all, instructions, special)


def _launched(one: Launch, rows: int) -> Work:
    """Take a launch for as many passes over the rows as its kernel has loops, each as long as its longest."""
    given = {id(t): moved(t) for t in one.arguments.values() if isinstance(t, Tensor)}
    passes = {"forward_set": K + 1, "backward_set": 2 * K + 1, "backward_finish": K + 1}.get(one.name, 1)
    (figure,) = figures.describe(Subject(one.target, one.arguments["D"]), [one])
    width = one.arguments["C"] * one.arguments["BL"] if "BL" in one.arguments else 0
    entries = rows * width * passes
    return Work(1, sum(given.values()), entries * figure.instructions, entries * figure.special)
