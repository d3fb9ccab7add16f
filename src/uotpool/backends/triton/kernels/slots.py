"""Which chunk of rows a program has where many share a set, and how what chunks have is merged.

Set b has the slots ptr[b] // CHUNK + b and on, as many as it has chunks, so the number of slots,
M // CHUNK + B, is known without a look at ptr; some stay unused. Partial sums of chunks are merged in their
order, so a set has the same bits alone and in any batch.
"""

import triton
import triton.language as tl

from uotpool.backends.triton.kernels.tiles import LOG2E, bounds, scale_of


@triton.jit
def first_slot(PTR, b, M, N, CHUNK: tl.constexpr):
    """Return the first slot of set b."""
    if PTR is None:
        return b * tl.maximum((N + CHUNK - 1) // CHUNK, 1)
    else:
        return tl.minimum(tl.maximum(tl.load(PTR + b), 0), M) // CHUNK + b


@triton.jit
def chunk_of(PTR, slot, B, M, N, CHUNK: tl.constexpr):
    """Return the set of a slot, where its chunk begins and ends, and whether it is the first of the set."""
    low = slot * 0
    high = low + B - 1
    while low < high:  # the last set whose first slot is not behind this one
        middle = (low + high + 1) // 2
        if first_slot(PTR, middle, M, N, CHUNK) <= slot:
            low = middle
        else:
            high = middle - 1
    begin, end = bounds(PTR, low, M, N)
    i = tl.maximum(slot - first_slot(PTR, low, M, N, CHUNK), 0)
    start = tl.minimum(begin + i * CHUNK, end)
    return low, start, tl.minimum(start + CHUNK, end), i == 0


@triton.jit
def chunks_of(PTR, b, M, N, CHUNK: tl.constexpr):
    """Return the first slot of a set and the one behind its last chunk."""
    begin, end = bounds(PTR, b, M, N)
    first = first_slot(PTR, b, M, N, CHUNK)
    return first, first + (end - begin + CHUNK - 1) // CHUNK


@triton.jit
def merged(
    PM, PS, PT, PTR, b, d, here, c2, M, N,
    LAST: tl.constexpr, CHUNK: tl.constexpr, D: tl.constexpr, CHUNKS: tl.constexpr, WIDTH: tl.constexpr,
    CT: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    """Return maxima and sums of columns of a set from those of its chunks; LAST: sums of x times these too."""
    m = tl.full((WIDTH,), LOW * 0.5, dtype=CT)
    s = tl.zeros((WIDTH,), dtype=CT)
    t = tl.zeros((WIDTH,), dtype=CT)
    first, behind = chunks_of(PTR, b, M, N, CHUNK)
    for start in range(first, behind, CHUNKS):
        slot = start + tl.arange(0, CHUNKS)[:, None]
        at = slot * D + d[None, :]
        there = (slot < behind) & here[None, :]
        pm = tl.load(PM + at, mask=there, other=LOW)
        new = tl.maximum(m, tl.max(pm, axis=0))
        e = tl.exp2((pm - new[None, :]) * c2[None, :])
        old = tl.exp2((m - new) * c2)
        s = s * old + tl.sum(tl.load(PS + at, mask=there, other=0.0) * e, axis=0)
        if LAST:
            t = t * old + tl.sum(tl.load(PT + at, mask=there, other=0.0) * e, axis=0)
        m = new
    m = tl.where(s == 0.0, 0.0, m)
    s = tl.where(s == 0.0, 1.0, s)
    return m, s, t


@triton.jit
def added(
    PD, PTR, b, d, here, M, N,
    CHUNK: tl.constexpr, D: tl.constexpr, CHUNKS: tl.constexpr, WIDTH: tl.constexpr, CT: tl.constexpr,
):  # fmt: skip
    """Return the sums over a set of a vector of columns of each chunk, in the order of chunks."""
    du = tl.zeros((WIDTH,), dtype=CT)
    first, behind = chunks_of(PTR, b, M, N, CHUNK)
    for start in range(first, behind, CHUNKS):
        slot = start + tl.arange(0, CHUNKS)[:, None]
        there = (slot < behind) & here[None, :]
        du += tl.sum(tl.load(PD + slot * D + d[None, :], mask=there, other=0.0), axis=0)
    return du


@triton.jit
def centred_part(
    TOP, SCALE, b, d, here,
    STEP: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, WIDTHS: tl.constexpr, CT: tl.constexpr,
    LOW: tl.constexpr,
):  # fmt: skip
    """Return `centred_tops` of some columns of a set."""
    every = tl.arange(0, WIDTHS * WIDTH)
    valid = every < D
    tops = tl.load(TOP + b * D + every, mask=valid, other=0.0).to(tl.float64)
    tops *= scale_of(SCALE, every, valid, STEP, CT).to(tl.float64)
    top = tl.load(TOP + b * D + d, mask=here, other=0.0).to(tl.float64)
    top *= scale_of(SCALE, d, here, STEP, CT).to(tl.float64)
    return tl.where(here, top - tl.max(tl.where(valid, tops, LOW)), 0.0).to(CT)


@triton.jit
def sums_of_rows(PM, PS, PTR, b, a, M, N, CHUNK: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr):
    """Return the maximum and the sum of exponentials of R + v of a set from those of its chunks."""
    first, behind = chunks_of(PTR, b, M, N, CHUNK)
    m = tl.full((128,), LOW * 0.5, dtype=CT)
    s = tl.zeros((128,), dtype=CT)
    for start in range(first, behind, 128):
        slot = start + tl.arange(0, 128)
        pm = tl.load(PM + slot, mask=slot < behind, other=LOW)
        new = tl.maximum(m, pm)
        e = tl.exp2((pm - new) * (LOG2E / a))
        s = s * tl.exp2((m - new) * (LOG2E / a)) + tl.load(PS + slot, mask=slot < behind, other=0.0) * e
        m = new
    most = tl.max(m)
    total = tl.sum(s * tl.exp2((m - most) * (LOG2E / a)))
    return most, tl.where(total == 0.0, 1.0, total)


@triton.jit
def sum_of_chunks(PARTIAL, PTR, b, M, N, CHUNK: tl.constexpr, CT: tl.constexpr):
    """Return the sum of a number of each chunk over a set, in their order."""
    first, behind = chunks_of(PTR, b, M, N, CHUNK)
    s = tl.zeros((128,), dtype=CT)
    for start in range(first, behind, 128):
        slot = start + tl.arange(0, 128)
        s += tl.load(PARTIAL + slot, mask=slot < behind, other=0.0)
    return tl.sum(s)
