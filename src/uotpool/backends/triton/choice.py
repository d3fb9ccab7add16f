"""Which regime and which tiles a call takes: from shapes, dtype and processors alone, never from values.

So nothing is read back from the GPU, a CUDA graph can capture a call, and a call gives the same bits each time.
There is no tuning at run time, which would change bits and delay the first call.
"""

from __future__ import annotations

from typing import NamedTuple

LANES = 32  # that a tile is made for; a warp of 64 takes the work of two
VECTOR = 16  # bytes that a lane loads at once

# A model of the time of both regimes, in microseconds: what a processor does of entries times modules,
# and what a launch costs. The model only has to be right where the two differ much.
ENTRIES_PER_MICROSECOND = 4000.0
LAUNCH = 5.0
CHUNKS_PER_PROCESSOR = 8


class Tile(NamedTuple):
    """The shape (R, C, W, BL) of a tile, see `kernels.tiles`, and the warps of `LANES` of a program."""

    R: int
    C: int
    W: int
    BL: int
    warps: int

    @property
    def rows(self) -> int:
        return self.R * self.W


class Choice(NamedTuple):
    """How a call is done.

    Attributes:
        chunk: rows that a program has of a set; 0: all, the regime of small sets.
        forward, backward: the tiles of the two directions.
        finish: the tile of the last pass backward, where it is a launch of its own.
    """

    chunk: int
    forward: Tile
    backward: Tile
    finish: Tile


def choose(
    M: int,
    B: int,
    D: int,
    K: int,
    itemsize: int,
    processors: int,
    *,
    light: bool = False,
    heavy: bool = False,
) -> Choice:
    """Choose by the time that a model gives the two regimes.

    Args:
        M: rows in all.
        B: sets, at least one.
        D: columns.
        K: modules.
        itemsize: bytes of an entry of X.
        processors: of the GPU.
        light: as in `by_chunk`.
        heavy: as in `by_set`.
    """
    work = M * D * (K + 1)
    at_once = min(B, 2 * processors)
    by_sets = work / at_once / ENTRIES_PER_MICROSECOND
    by_chunks = work / (2 * processors) / ENTRIES_PER_MICROSECOND + (2 * K + 1) * LAUNCH
    if by_sets <= by_chunks:
        return by_set(D, itemsize, heavy=heavy)
    return by_chunk(D, itemsize, _chunk(M, processors), light=light)


def _chunk(M: int, processors: int) -> int:
    """Return a power of two of rows of which there are enough chunks for all processors."""
    return min(max(power_of_two(M // (CHUNKS_PER_PROCESSOR * processors)), 64), 1024)


def by_set(D: int, itemsize: int, *, heavy: bool = False) -> Choice:
    """Return the choice of one program for each set.

    Args:
        D: columns.
        itemsize: bytes of an entry of X.
        heavy: whether the way back, all of whose passes are one kernel, has as many vectors as entropic ADMM.
            Its tiles are half as large then.
    """
    small = tile(D, itemsize, 16)
    backward = tile(D, itemsize, 8, 8 if D > 256 else 16) if heavy else small
    return Choice(0, small if D <= 128 else tile(D, itemsize, 32), backward, small)


def by_chunk(D: int, itemsize: int, chunk: int, *, light: bool = False) -> Choice:
    """Return the choice of one program for so many rows of a set.

    Args:
        D: columns.
        itemsize: bytes of an entry of X.
        chunk: rows of a program.
        light: whether a pass forward has as few vectors as Sinkhorn without a scale. Then a wide tile of
            float32 has twice the rows, which share the work for each column, in the registers that are left.
    """
    small, large = tile(D, itemsize, 16), tile(D, itemsize, 32)
    widest = tile(D, itemsize, 64) if light and D > 512 and itemsize == 4 else large
    return Choice(chunk, widest, large if D <= 128 else small, small)


def narrow(D: int, itemsize: int) -> Choice:
    """Return the choice of one program for each set where many vectors of columns are kept: quadratic ADMM.

    Its matrices are in float32 at least, and so are its tiles.
    """
    small = tile(D, max(itemsize, 4), 8, 8)
    return Choice(0, small, small, small)


def tile(D: int, itemsize: int, entries: int, most: int = 16) -> Tile:
    """Return a tile with about so many entries in a thread.

    Up to `most` entries of a row are in one thread, so that what is done for each row is shared by many; but
    half a warp at least has a row, for loads without gaps. A row that is wider than `most` times a warp goes
    over several warps.
    """
    vector = max(1, VECTOR // itemsize)
    width = max(power_of_two(D), 16)
    warps = 8 if D > 512 else 4
    C = max(1, min(most // vector, width // (LANES // 2 * vector)))
    BL = width // C
    while BL > LANES * vector * warps:
        warps *= 2
    W = warps * LANES * vector // BL
    return Tile(max(1, entries // (C * vector)), C, W, BL, warps)


def power_of_two(n: int) -> int:
    """Return the least power of two that is n or more."""
    return 1 << max(0, (n - 1).bit_length())


class WindowTile(NamedTuple):
    """The shape (N, G, P, Q) of a tile of windows, see `kernels.windows`, and the warps of a program."""

    N: int
    G: int
    P: int
    Q: int
    warps: int


# Entries of a window, padded: more do not fit the registers of a program.
MOST_WINDOW = 4096


def window_entries(C: int, positions: int) -> int:
    """Return the entries of a window in a tile, whose positions and channels are padded to powers of two."""
    return power_of_two(C) * power_of_two(positions)


def window_tile(C: int, positions: int, itemsize: int, last: bool) -> WindowTile:
    """Return a tile for windows of so many channels and positions; `last` is for images in channels_last.

    A thread has 16 entries of float32, in which a derivative just fits its registers. A program has four warps,
    or as many more as one window takes.

    Args:
        C: channels.
        positions: of a window.
        itemsize: bytes of a number in computation.
        last: whether channels are last in memory.
    """
    N, width = power_of_two(positions), power_of_two(C)
    entries = 16 if itemsize <= 4 else 8
    windows = max(1, 4 * LANES * entries // (N * width))
    warps = max(1, N * width * windows // (entries * LANES))
    if last:
        return WindowTile(N, 1, windows, width, warps)
    G = max(1, min(entries // N, width))
    return WindowTile(N, G, width // G, windows, warps)
