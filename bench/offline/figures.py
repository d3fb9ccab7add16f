"""The static figures of the kernels: what they take of registers, and instructions for each entry of a tile."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch

from bench.offline import code, ttgir
from bench.offline.driver import Launch, dry
from uotpool.backends.images import WindowArguments
from uotpool.backends.triton import calls, choice, window_calls
from uotpool.backends.triton.arguments import Arguments
from uotpool.backends.triton.choice import Choice

K = 2  # with two modules every pass is launched: the first, one between, the last
ROWS, CHUNK = (1000, 20), 128
# Constants by which a kernel is another program, and what it is called then.
FLAGS = {"FIRST": "first", "LAST": "last", "WAY": "of the output"}
PER_ENTRY = 0.5  # a loop over a tile has at least so many exponentials, logs and 1 / x for each entry


class Window(NamedTuple):
    """Square windows of an image: their side, from one to the next, and whether channels are last in memory."""

    side: int
    stride: int
    last: bool

    def __str__(self) -> str:
        apart = "" if self.stride == self.side else f" with stride {self.stride}"
        return f"windows {self.side} x {self.side}{apart}, {'channels_last' if self.last else 'NCHW'}"


class Subject(NamedTuple):
    """What is compiled: for which GPU, how many features, of what dtype, with a scale for each or none.

    Attributes:
        window: for windows of images, whose channels are the features.
    """

    target: str
    D: int
    dtype: torch.dtype = torch.float32
    scale: bool = False
    solver: str = "sinkhorn"
    window: Window | None = None


class Figure(NamedTuple):
    """A kernel of a subject.

    Attributes:
        kernel: its name and the flags that make it another program, such as "forward_pass, first".
        registers: of a thread.
        spills: instructions that move registers to memory and back.
        shared: bytes of shared memory of a program.
        conversions: changes of layout of a whole tile in loops.
        instructions: for each entry of a tile, in the longest innermost loop; 0 where no loop is over a tile.
        special: those of the unit for exp, log and 1 / x among them.
    """

    subject: Subject
    kernel: str
    registers: int
    spills: int
    shared: int
    conversions: int
    instructions: float
    special: float


def arguments(subject: Subject, rows: tuple[int, ...] = ROWS, modules: int = K) -> Arguments:
    """Make a batch of sets. Its values are not read."""
    _, D, dtype, scale, solver, _ = subject
    ptr = torch.tensor([0, *rows]).cumsum(0)
    X = torch.zeros(sum(rows), D, dtype=dtype)
    weights = torch.ones(3 if solver == "sinkhorn" else 4, modules)
    return Arguments(
        X, ptr, None, None, 0, None, None, weights, torch.ones(D) if scale else None, len(rows), solver, False
    )


def choices(subject: Subject) -> list[Choice]:
    """Return the regimes of a solver, with the tiles that the library has for them."""
    size = subject.dtype.itemsize
    if subject.solver == "badmm-q":
        return [choice.narrow(subject.D, size)]
    light = subject.solver == "sinkhorn" and not subject.scale
    by_set = choice.by_set(subject.D, size, heavy=subject.solver == "badmm-e")
    return [choice.by_chunk(subject.D, size, CHUNK, light=light), by_set]


def images(subject: Subject, modules: int = K) -> WindowArguments:
    """Make a batch of images. Its values are not read."""
    assert subject.window is not None
    side, stride, last = subject.window
    size = 4 * side
    X = torch.zeros(8, subject.D, size, size, dtype=subject.dtype)
    if last:
        X = X.contiguous(memory_format=torch.channels_last)
    count = (size - side) // stride + 1
    scale = torch.ones(subject.D) if subject.scale else None
    pairs = ((n, n) for n in (side, stride, 0, count))
    return WindowArguments(X, torch.ones(3, modules), scale, *pairs)


def launch_windows(p: WindowArguments) -> None:
    """Solve and differentiate by all that can be."""
    out, rows = window_calls.forward(p)
    assert rows is not None
    window_calls.backward(out, p, rows, [True] * 3)


def launch(p: Arguments, how: Choice) -> None:
    """Solve and differentiate by all that can be."""
    out, saved = calls.forward(p, choice=how)
    assert saved is not None
    calls.backward(out, p, saved, [tensor is not None for tensor in p.differentiable()], choice=how)


def measure(subject: Subject, cache: str | None = None) -> list[Figure]:
    """Compile the kernels of all regimes, and read what came out."""
    with dry(subject.target, cache) as launches:
        if subject.window is not None:
            launch_windows(images(subject))
        else:
            for how in choices(subject):
                launch(arguments(subject), how)
    return describe(subject, launches)


def describe(subject: Subject, launches: Iterable[Launch]) -> list[Figure]:
    """Return one figure for each program; the most of each where the JIT specialised one by a number."""
    found: dict[str, Figure] = {}
    for one in launches:
        figure = _figure(subject, one)
        if other := found.get(figure.kernel):
            figure = Figure._make((subject, figure.kernel, *map(max, figure[2:], other[2:])))
        found[figure.kernel] = figure
    return list(found.values())


def label(launched: Launch) -> str:
    """Return the name of a kernel with its flags."""
    given = launched.arguments
    return ", ".join([launched.name, *(name for flag, name in FLAGS.items() if given.get(flag))])


def _figure(subject: Subject, launched: Launch) -> Figure:
    machine, loops = code.read(launched.kernel), ttgir.read(launched.kernel.asm["ttgir"])
    entries = loops.tile / launched.threads
    most, special = 0.0, 0.0
    if not launched.name.endswith("merge"):  # a merge has partial sums for entries
        for loop in machine.loops:
            if loop.special >= PER_ENTRY * entries:
                most = max(most, loop.instructions / entries)
                special = max(special, loop.special / entries)
    shared = launched.kernel.metadata.shared
    return Figure(
        subject,
        label(launched),
        machine.registers,
        machine.spills,
        shared,
        loops.conversions,
        most,
        special,
    )
