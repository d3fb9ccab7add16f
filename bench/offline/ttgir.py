"""Read Triton's own form of a kernel: the size of a tile, and where it changes its layout.

A change of layout goes through shared memory with barriers. For a vector per row that is cheap, for a
whole tile in the loop over rows it costs more than the arithmetic.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

SHAPE = re.compile(r"tensor<((?:\d+x)+)")


class Loops(NamedTuple):
    """The loops of a kernel together.

    Attributes:
        tile: entries of the largest tensor in them, 0 if there is no loop.
        conversions: changes of layout of tensors of that size.
    """

    tile: int
    conversions: int


@cache
def read(text: str) -> Loops:
    """Look at all lines inside of loops, at any depth."""
    inside = list(_in_loops(text))
    tile = max((size for line in inside for size in _sizes(line)), default=0)
    conversions = sum("ttg.convert_layout" in line and max(_sizes(line), default=0) == tile for line in inside)
    return Loops(tile, conversions)


def _in_loops(text: str) -> Iterator[str]:
    """Go through the lines of regions that scf.for and scf.while open."""
    opened: list[bool] = []  # for each open brace, whether it is that of a loop
    for line in text.splitlines():
        if any(opened):
            yield line
        bare = re.sub(r'"[^"]*"|\bloc\(.*\)\s*$', "", line)
        loop = "scf.for" in bare or "scf.while" in bare
        for brace in re.findall(r"[{}]", bare):
            if brace == "{":
                opened.append(loop)
            else:
                opened.pop()


def _sizes(line: str) -> list[int]:
    return [math.prod(int(n) for n in shape.split("x") if n) for shape in SHAPE.findall(line)]
