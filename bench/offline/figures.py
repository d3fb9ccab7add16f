"""The static figures of the kernels: what they take of registers, and instructions for each entry of a tile."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch

from bench.offline import code, ttgir
from bench.offline.driver import Launch, dry
from uotpool.backends.triton import calls, choice
from uotpool.backends.triton.arguments import Arguments

K = 2  # with two modules every pass is launched: the first, one between, the last
ROWS, CHUNK = (1000, 20), 128
# Constants by which a kernel is another program, and what it is called then.
FLAGS = {"FIRST": "first", "LAST": "last", "WAY": "of the output"}
PER_ENTRY = 0.5  # a loop over a tile has at least so many exponentials, logs and 1 / x for each entry


class Subject(NamedTuple):
    """What is compiled: for which GPU, how many features, of what dtype, with a scale for each or none."""

    target: str
    D: int
    dtype: torch.dtype = torch.float32
    scale: bool = False
    solver: str = "sinkhorn"


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
    _, D, dtype, scale, solver = subject
    ptr = torch.tensor([0, *rows]).cumsum(0)
    X = torch.zeros(sum(rows), D, dtype=dtype)
    weights = torch.ones(3 if solver == "sinkhorn" else 4, modules)
    return Arguments(
        X, ptr, None, None, 0, None, None, weights, torch.ones(D) if scale else None, len(rows), solver, False
    )


def launch(p: Arguments, how: choice.Choice) -> None:
    """Solve and differentiate by all that can be."""
    out, saved = calls.forward(p, choice=how)
    assert saved is not None
    calls.backward(out, p, saved, [tensor is not None for tensor in p.differentiable()], choice=how)


def measure(subject: Subject, cache: str | None = None) -> list[Figure]:
    """Compile the kernels of both regimes, and read what came out."""
    p, size = arguments(subject), subject.dtype.itemsize
    with dry(subject.target, cache) as launches:
        launch(p, choice.by_chunk(subject.D, size, CHUNK))
        launch(p, choice.by_set(subject.D, size))
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
