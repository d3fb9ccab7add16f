"""What all kernels share: the shape of a tile, which rows a program has, and sums over one direction.

A tile has the shape (R, C, W, BL). Row r W + w and column c BL + l of the block are its entry (r, c, w, l):
Triton puts l on the lanes of a warp (16 bytes on each) and w on the warps, so r and c stay in one thread. A sum
over columns takes C additions and five shuffles, a sum over rows R additions, and the warps meet only at the
end of a pass. A value per row has the shape (R, 1, W, 1), a value per column (1, C, 1, BL), and running sums of
columns (1, C, W, BL), as every w has its own.

The number of columns D is a constant of the kernel, so the compiler knows how rows are aligned. `LOW` stands
for minus infinity: a finite number far below all others, as LOW - LOW is 0 and not NaN. So |scale X| has to
stay below 1e36 in float32. Maxima start from LOW / 2, so that an absent row, whose v is LOW, adds nothing to
sums even where no row is present. Exponents have base 2.

Set b has the slots ptr[b] // CHUNK + b and on, as many as it has chunks, so the number of slots,
M // CHUNK + B, is known without a look at ptr; some stay unused.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

# Batches vary in these: a launch would compile anew for a size that is 1 or a multiple of 16.
VARYING = ["M", "N", "B", "K", "k", "p_step"]

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def log2(x, FAST: tl.constexpr):
    """Return the logarithm of sums that are 1 or more; FAST is one instruction of NVIDIA's, for float32."""
    if FAST:
        return libdevice.fast_log2f(x)
    else:
        return tl.log2(x)


@triton.jit
def weights_of(WEIGHTS, K, k):
    """Return alpha0, alpha1 and alpha2 of module k."""
    return tl.load(WEIGHTS + k), tl.load(WEIGHTS + K + k), tl.load(WEIGHTS + 2 * K + k)


@triton.jit
def columns(C: tl.constexpr, BL: tl.constexpr):
    """Return the columns of a tile."""
    return tl.arange(0, C)[None, :, None, None] * BL + tl.arange(0, BL)[None, None, None, :]


@triton.jit
def bounds(PTR, b, M, N):
    """Return where the rows of set b begin and end, inside of X whatever the offsets hold."""
    if PTR is None:
        begin = b * N
        end = begin + N
    else:
        begin = tl.minimum(tl.maximum(tl.load(PTR + b), 0), M)
        end = tl.minimum(tl.maximum(tl.load(PTR + b + 1), begin), M)
    return begin, end


@triton.jit
def first_slot(PTR, b, M, N, CHUNK: tl.constexpr):
    """Return the first slot of set b."""
    if PTR is None:
        return b * tl.maximum((N + CHUNK - 1) // CHUNK, 1)
    else:
        return tl.minimum(tl.maximum(tl.load(PTR + b), 0), M) // CHUNK + b


@triton.jit
def chunk_of(PTR, B, M, N, CHUNK: tl.constexpr):
    """Return the slot of this program, its set, begin and end of its chunk, and if that is the first."""
    slot = tl.program_id(0).to(tl.int64)
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
    return slot, low, start, tl.minimum(start + CHUNK, end), i == 0


@triton.jit
def chunks_of(PTR, b, M, N, CHUNK: tl.constexpr):
    """Return the first slot of a set and the one behind its last chunk."""
    begin, end = bounds(PTR, b, M, N)
    first = first_slot(PTR, b, M, N, CHUNK)
    return first, first + (end - begin + CHUNK - 1) // CHUNK


@triton.jit
def rows_at(ORDER, PRESENT, start, end, M, R: tl.constexpr, W: tl.constexpr):
    """Return the rows of X of a tile, which of them are in the chunk, and which of these are present."""
    row = start + tl.arange(0, R)[:, None, None, None] * W + tl.arange(0, W)[None, None, :, None]
    inside = row < end
    if ORDER is not None:
        row = tl.load(ORDER + row, mask=inside, other=0)
        row = tl.minimum(tl.maximum(row, 0), M - 1)
    live = inside
    if PRESENT is not None:
        live = inside & (tl.load(PRESENT + row, mask=inside, other=0) != 0)
    return row, inside, live


@triton.jit
def entries(X, row, live, d, here, D: tl.constexpr, CT: tl.constexpr):
    """Return a tile of X; 0 at absent rows."""
    return tl.load(X + row * D + d, mask=live & here, other=0.0).to(CT)


@triton.jit
def log_q_of(LOGQ, row, live, CT: tl.constexpr):
    """Return log q0 of each row; 0 for a uniform prior, whose constant changes nothing, and at absent rows."""
    if LOGQ is None:
        return tl.zeros(row.shape, dtype=CT)
    else:
        return tl.load(LOGQ + row, mask=live, other=0.0)


@triton.jit
def log_p_of(LOGP, b, step, d, here, CT: tl.constexpr):
    """Return log p0 of set b; 0 for a uniform prior."""
    if LOGP is None:
        return tl.zeros(d.shape, dtype=CT)
    else:
        return tl.load(LOGP + b * step + d, mask=here, other=0.0)


@triton.jit
def scale_of(SCALE, d, here, STEP: tl.constexpr, CT: tl.constexpr):
    """Return the scale of each column; STEP is 0 where all have the same one."""
    if SCALE is None:
        return tl.full(d.shape, 1.0, dtype=CT)
    elif STEP == 0:
        return tl.full(d.shape, 1.0, dtype=CT) * tl.load(SCALE)
    else:
        return tl.load(SCALE + d, mask=here, other=1.0)


@triton.jit
def sign_of(scale):
    """Return 1 or -1, by which an entry is multiplied to grow where scale X does."""
    return tl.where(scale < 0, scale * 0.0 - 1.0, scale * 0.0 + 1.0)


@triton.jit
def sum_d(y):
    """Return the sums over columns."""
    return tl.sum(tl.sum(y, axis=1, keep_dims=True), axis=3, keep_dims=True)


@triton.jit
def max_d(y):
    """Return the maxima over columns."""
    return tl.max(tl.max(y, axis=1, keep_dims=True), axis=3, keep_dims=True)


@triton.jit
def sum_rc(y):
    """Return the sums over all that one thread has."""
    return tl.sum(tl.sum(y, axis=0, keep_dims=True), axis=1, keep_dims=True)


@triton.jit
def centred_tops(scale, top, here, LOW: tl.constexpr, CT: tl.constexpr):
    """Return the largest entry of each column of scale X, less the largest of all.

    The product is rounded after the difference: of numbers that are large and alike its own rounding would be
    all that is left.
    """
    product = scale.to(tl.float64) * top.to(tl.float64)
    return tl.where(here, product - tl.max(tl.where(here, product, LOW)), 0.0).to(CT)


@triton.jit
def log_sum_of(MAXIMA, SUMS, at, here, a, FAST: tl.constexpr):
    """Return L of a module from the maxima and sums of its columns."""
    m = tl.load(MAXIMA + at, mask=here, other=0.0)
    return m + (a * LN2) * log2(tl.load(SUMS + at, mask=here, other=1.0), FAST)


@triton.jit
def sum_of_chunks(PARTIAL, PTR, b, M, N, CHUNK: tl.constexpr, CT: tl.constexpr):
    """Return the sum of a number of each chunk over a set, in their order."""
    first, behind = chunks_of(PTR, b, M, N, CHUNK)
    s = tl.zeros((128,), dtype=CT)
    for start in range(first, behind, 128):
        slot = start + tl.arange(0, 128)
        s += tl.load(PARTIAL + slot, mask=slot < behind, other=0.0)
    return tl.sum(s)
