"""The forward pass: column sums of the first module, K passes over the rows, and the plan."""

import triton
import triton.language as tl

from uotpool.backends.triton.kernels.tiles import (
    LN2,
    LOG2E,
    VARYING,
    centred_tops,
    chunk_of,
    chunks_of,
    columns,
    entries,
    log2,
    log_p_of,
    log_q_of,
    log_sum_of,
    max_d,
    rows_at,
    scale_of,
    sign_of,
    sum_d,
    sum_rc,
    weights_of,
)


@triton.jit
def join(m, s, t, c2):
    """Return maxima and sums of columns over all w from those of each."""
    most = tl.max(m, axis=2, keep_dims=True)
    e = tl.exp2((m - most) * c2)
    return most, tl.sum(s * e, axis=2, keep_dims=True), tl.sum(t * e, axis=2, keep_dims=True)


@triton.jit(do_not_specialize=VARYING)
def first_pass(
    X, PTR, ORDER, PRESENT, WEIGHTS, SCALE, PM, PS, M, N, B,
    CHUNK: tl.constexpr, STEP: tl.constexpr, D: tl.constexpr, R: tl.constexpr, C: tl.constexpr, W: tl.constexpr,
    BL: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    """Write column sums of module 0 over a chunk to PS, relative to the largest entries, in PM.

    These are the largest of X, turned by the sign of the scale. An entry that is not finite makes its row NaN,
    and the row all sums of its set.
    """
    slot, b, begin, end, is_first = chunk_of(PTR, B, M, N, CHUNK)
    d = columns(C, BL)
    here = d < D
    scale = scale_of(SCALE, d, here, STEP, CT)
    sign = sign_of(scale)
    c2 = tl.abs(scale) * (LOG2E / tl.load(WEIGHTS))
    m = tl.full((1, C, W, BL), LOW * 0.5, dtype=CT)
    s = tl.zeros((1, C, W, BL), dtype=CT)
    for start in range(begin, end, R * W):
        row, inside, live = rows_at(ORDER, PRESENT, start, end, M, R, W)
        x = entries(X, row, live, d, here, D, CT)
        spoilt = sum_d(x * 0.0)
        x = tl.where(live & here, x * sign, LOW)
        new = tl.maximum(m, tl.max(x, axis=0, keep_dims=True))
        e = tl.exp2((x - new) * c2 + tl.where(live, spoilt, LOW))
        s = s * tl.exp2((m - new) * c2) + tl.sum(e, axis=0, keep_dims=True)
        m = new
    m, s, t = join(m, s, s, c2)
    tl.store(PM + slot * D + d, m, mask=here)
    tl.store(PS + slot * D + d, s, mask=here)


@triton.jit(do_not_specialize=VARYING)
def forward_pass(
    X, PTR, ORDER, PRESENT, WEIGHTS, SCALE, LOGP, LOGQ, TOP, MAXIMA, SUMS, U, ROWS, PM, PS, PT,
    K, k, M, N, B, p_step,
    LAST: tl.constexpr, PLAN: tl.constexpr, CHUNK: tl.constexpr, STEP: tl.constexpr, D: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr, W: tl.constexpr, BL: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr,
    FAST: tl.constexpr,
):  # fmt: skip
    """Do the rows of module k over a chunk, and from the same registers the sums of what comes next.

    These are the column sums of module k + 1, relative to maxima in PM; LAST: those of the output, and in PT
    sums of x times the same exponentials; of the PLAN: the sums of exp((R + v) / a) over the rows.
    """
    slot, b, begin, end, is_first = chunk_of(PTR, B, M, N, CHUNK)
    d = columns(C, BL)
    here = d < D
    scale = scale_of(SCALE, d, here, STEP, CT)
    top = tl.load(TOP + b * D + d, mask=here, other=0.0)
    a, a1, a2 = weights_of(WEIGHTS, K, k)
    tau1 = a1 / (a + a1)
    tau2 = a2 / (a + a2)
    at_k = (tl.cast(k, tl.int64) * B + b) * D + d
    log_sum = log_sum_of(MAXIMA, SUMS, at_k, here, a, FAST)
    centred = centred_tops(scale, top, here, LOW, CT) * (a / (a + a1))
    u = tau1 * (a * log_p_of(LOGP, b, p_step, d, here, CT) - log_sum) + centred
    u = tl.where(here, u, LOW)
    u -= tl.max(u)
    tl.store(U + at_k, u, mask=here & is_first)
    c2 = LOG2E / a
    c2_next = c2
    if not LAST:
        c2_next = LOG2E / tl.load(WEIGHTS + k + 1)
    rows = ROWS + tl.cast(k, tl.int64) * M
    CS: tl.constexpr = 1 if LAST and PLAN else C
    BS: tl.constexpr = 1 if LAST and PLAN else BL
    m = tl.full((1, CS, W, BS), LOW * 0.5, dtype=CT)
    s = tl.zeros((1, CS, W, BS), dtype=CT)
    t = tl.zeros((1, CS, W, BS), dtype=CT)
    for start in range(begin, end, R * W):
        row, inside, live = rows_at(ORDER, PRESENT, start, end, M, R, W)
        x = entries(X, row, live, d, here, D, CT) - top
        y = x * scale + u
        most = max_d(y)
        r = most + (a * LN2) * log2(sum_d(tl.exp2((y - most) * c2)), FAST)
        tl.store(rows + row, r, mask=live)
        v = tl.where(live, tau2 * (a * log_q_of(LOGQ, row, live, CT) - r), LOW)
        if LAST and PLAN:
            z = tl.where(live, r, 0.0) + v
        else:
            z = x * scale + v
        new = tl.maximum(m, tl.max(z, axis=0, keep_dims=True))
        e = tl.exp2((z - new) * c2_next)
        old = tl.exp2((m - new) * c2_next)
        s = s * old + tl.sum(e, axis=0, keep_dims=True)
        if LAST and not PLAN:
            t = t * old + tl.sum(e * x, axis=0, keep_dims=True)
        m = new
    m, s, t = join(m, s, t, c2_next)
    if LAST and PLAN:
        tl.store(PM + slot, tl.max(m))
        tl.store(PS + slot, tl.sum(s))
    else:
        tl.store(PM + slot * D + d, m, mask=here)
        tl.store(PS + slot * D + d, s, mask=here)
        if LAST:
            tl.store(PT + slot * D + d, t, mask=here)


@triton.jit(do_not_specialize=VARYING)
def forward_merge(
    PTR, WEIGHTS, SCALE, PM, PS, PT, TOP, MAXIMA, SUMS, HEAD, OUT, K, k, M, N, B,
    FIRST: tl.constexpr, LAST: tl.constexpr, CHUNK: tl.constexpr, STEP: tl.constexpr, D: tl.constexpr,
    CHUNKS: tl.constexpr, WIDTH: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    """Merge the sums of the chunks of a set: those of module k, and for k = K (LAST) the output."""
    b = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    here = d < D
    scale = scale_of(SCALE, d, here, STEP, CT)
    c2 = tl.full((WIDTH,), 1.0, dtype=CT) * (LOG2E / tl.load(WEIGHTS + tl.minimum(k, K - 1)))
    if FIRST:
        c2 *= tl.abs(scale)
    m = tl.full((WIDTH,), LOW * 0.5, dtype=CT)
    s = tl.zeros((WIDTH,), dtype=CT)
    t = tl.zeros((WIDTH,), dtype=CT)
    first, behind = chunks_of(PTR, b, M, N, CHUNK)
    for start in range(first, behind, CHUNKS):
        slot = start + tl.arange(0, CHUNKS)[:, None]
        at_slot = slot * D + d[None, :]
        there = (slot < behind) & here[None, :]
        pm = tl.load(PM + at_slot, mask=there, other=LOW)
        new = tl.maximum(m, tl.max(pm, axis=0))
        e = tl.exp2((pm - new[None, :]) * c2[None, :])
        old = tl.exp2((m - new) * c2)
        s = s * old + tl.sum(tl.load(PS + at_slot, mask=there, other=0.0) * e, axis=0)
        if LAST:
            t = t * old + tl.sum(tl.load(PT + at_slot, mask=there, other=0.0) * e, axis=0)
        m = new
    m = tl.where(s == 0.0, 0.0, m)
    s = tl.where(s == 0.0, 1.0, s)
    at = b * D + d
    if FIRST:
        tl.store(TOP + at, m * sign_of(scale), mask=here)
        m = tl.zeros((WIDTH,), dtype=CT)
    at_k = tl.cast(k, tl.int64) * B * D + at
    tl.store(MAXIMA + at_k, m, mask=here)
    tl.store(SUMS + at_k, s, mask=here)
    if LAST:
        mean = t / s
        tl.store(OUT + at, tl.load(TOP + at, mask=here, other=0.0) + mean, mask=here)
        tl.store(HEAD + at, mean, mask=here)


@triton.jit
def sums_of_rows(PM, PS, PTR, b, c2, M, N, CHUNK: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr):
    """Return the maximum and the sum of exponentials of R + v of a set from those of its chunks."""
    first, behind = chunks_of(PTR, b, M, N, CHUNK)
    m = tl.full((128,), LOW * 0.5, dtype=CT)
    s = tl.zeros((128,), dtype=CT)
    for start in range(first, behind, 128):
        slot = start + tl.arange(0, 128)
        pm = tl.load(PM + slot, mask=slot < behind, other=LOW)
        new = tl.maximum(m, pm)
        e = tl.exp2((pm - new) * c2)
        s = s * tl.exp2((m - new) * c2) + tl.load(PS + slot, mask=slot < behind, other=0.0) * e
        m = new
    most = tl.max(m)
    total = tl.sum(s * tl.exp2((m - most) * c2))
    return most, tl.where(total == 0.0, 1.0, total)


@triton.jit(do_not_specialize=VARYING)
def plan_pass(
    X, PTR, ORDER, PRESENT, WEIGHTS, SCALE, LOGQ, TOP, HEAD, U, ROWS, PM, PS, OUT, DOUT, PARTIAL, K, M, N, B,
    CHUNK: tl.constexpr, STEP: tl.constexpr, D: tl.constexpr, R: tl.constexpr, C: tl.constexpr, W: tl.constexpr,
    BL: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    """Write the plan to OUT, the softmax of each row times its mass; backward the sum of P dP of a chunk."""
    slot, b, begin, end, is_first = chunk_of(PTR, B, M, N, CHUNK)
    d = columns(C, BL)
    here = d < D
    scale = scale_of(SCALE, d, here, STEP, CT)
    top = tl.load(TOP + b * D + d, mask=here, other=0.0)
    last = tl.cast(K - 1, tl.int64)
    u = tl.load(U + (last * B + b) * D + d, mask=here, other=LOW)
    a, a1, a2 = weights_of(WEIGHTS, K, K - 1)
    tau2 = a2 / (a + a2)
    c2 = LOG2E / a
    if DOUT is None:
        largest, total = sums_of_rows(PM, PS, PTR, b, c2, M, N, CHUNK, CT, LOW)
        tl.store(HEAD + b, largest, mask=is_first)
        tl.store(HEAD + B + b, total, mask=is_first)
    else:
        largest = tl.load(HEAD + b)
        total = tl.load(HEAD + B + b)
    moment = tl.zeros((1, 1, W, BL), dtype=CT)
    for start in range(begin, end, R * W):
        row, inside, live = rows_at(ORDER, PRESENT, start, end, M, R, W)
        y = (entries(X, row, live, d, here, D, CT) - top) * scale + u
        e = tl.exp2((y - max_d(y)) * c2)
        r = tl.load(ROWS + last * M + row, mask=live, other=0.0)
        w = r + tau2 * (a * log_q_of(LOGQ, row, live, CT) - r)
        p = tl.where(live, e * (tl.exp2((w - largest) * c2) / (sum_d(e) * total)), 0.0)
        if DOUT is None:
            tl.store(OUT + row * D + d, p, mask=inside & here)
        else:
            moment += sum_rc(p * entries(DOUT, row, live, d, here, D, CT))
    if DOUT is not None:
        tl.store(PARTIAL + slot, tl.sum(moment))
