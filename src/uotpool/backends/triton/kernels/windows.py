"""Sinkhorn for windows of images with uniform priors: X is read once and stays in registers for all modules.

A tile has the shape (N, G, P, Q) with N positions of a window (padded to a power of two). In planes of channels
(NCHW) Q are windows, which Triton puts on the lanes of a warp, and the channels are g P + p. With channels last
(NHWC) Q are the channels, G is 1 and P are windows. So neighbours in memory are on neighbouring lanes, and
positions stay in one thread as far as there are threads enough for the rest.

The formulas are those of `passes` for log p0 = log q0 = 0: a constant in a uniform prior cancels. Of a module
only R is kept, (K, positions, windows): v, L and u follow from it and from X. The way back goes through the
modules from the last to the first and adds up g, the derivative by Z = scale X, in registers. Where windows
overlap, each has its own part of dX in memory, and a second launch adds up those of an entry in their order.
"""

import triton
import triton.language as tl

from uotpool.backends.triton.kernels.tiles import LN2, LOG2E, log2, scale_of, sign_of, weights_of

# Images vary in size: a launch does not compile anew for it.
VARYING = ["T", "H", "W", "OH", "OW"]


@triton.jit
def sum_c(y, NHWC: tl.constexpr):
    """Return the sums over channels."""
    return tl.sum(tl.sum(y, axis=1, keep_dims=True), axis=3 if NHWC else 2, keep_dims=True)


@triton.jit
def max_c(y, NHWC: tl.constexpr):
    """Return the maxima over channels."""
    return tl.max(tl.max(y, axis=1, keep_dims=True), axis=3 if NHWC else 2, keep_dims=True)


@triton.jit
def sum_windows(y, NHWC: tl.constexpr):
    """Return the sums over the windows of a tile."""
    return tl.sum(y, axis=2 if NHWC else 3, keep_dims=True)


@triton.jit
def tile_of(
    NHWC: tl.constexpr, N: tl.constexpr, G: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, INDEX: tl.constexpr
):
    """Return the positions, channels and windows of a tile.

    Channels have the shape of the output, so that what is loaded for them has the layout of a tile. In planes
    of channels the term that is always 0 carries the hint that they are no neighbours.
    """
    n = tl.arange(0, N).to(INDEX)[:, None, None, None]
    g = tl.arange(0, G)[None, :, None, None]
    p = tl.arange(0, P)[None, None, :, None]
    q = tl.arange(0, Q)[None, None, None, :]
    first = tl.program_id(0).to(INDEX)
    if NHWC:
        return n, g * Q + q + p * 0, first * P + p
    else:
        t = first * Q + q
        return n, tl.max_contiguous(g * P + p + (t < 0).to(tl.int32), [1, 1, 1, 1]), t


@triton.jit
def places(
    n, c, t, T, H, W, OH, OW,
    C: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, NHWC: tl.constexpr,
):  # fmt: skip
    """Return where a tile is in X and in the output, which positions are inside, and which channels exist.

    Triton is told of no neighbours along positions and windows, and of four at most along channels. Otherwise
    it would put positions on the lanes, or take another layout for half precision or for the output than for X,
    and change the layout of tiles in the loop over modules.
    """
    b = t // (OH * OW)
    i = (t // OW) % OH
    j = t % OW
    h = i * SH - PH + n // KW
    w = j * SW - PW + n % KW
    here = (t < T) & (n < KH * KW) & (h >= 0) & (h < H) & (w >= 0) & (w < W)
    if NHWC:
        at = tl.max_contiguous(((b * H + h) * W + w) * C + c, [1, 1, 1, 4 if C >= 4 else 1])
        out = tl.max_contiguous(t * C + c, [1, 1, 1, 4 if C >= 4 else 1])
    else:
        at = tl.max_contiguous(((b * C + c) * H + h) * W + w, [1, 1, 1, 1])
        out = tl.max_contiguous(((b * C + c) * OH + i) * OW + j, [1, 1, 1, 1])
    return at, out, here, c < C


@triton.jit
def load_tile(
    X, SCALE, at, here, valid, c,
    NHWC: tl.constexpr, STEP: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr,
):  # fmt: skip
    """Return X less its tops, the tops, the scale of each channel, scale top less its maximum, and 0 or NaN.

    The last is NaN for a window with an entry that is not finite. A window without positions has tops of 0.
    """
    entry = tl.load(X + at, mask=here & valid, other=0.0).to(CT)
    scale = scale_of(SCALE, c, valid, STEP, CT)
    sign = sign_of(scale)
    top = tl.max(tl.where(here & valid, entry * sign, LOW), axis=0, keep_dims=True)
    top = tl.where(top == LOW, 0.0, top) * sign
    product = scale.to(tl.float64) * top.to(tl.float64)
    most = max_c(tl.where(valid, product, LOW), NHWC)
    centred = tl.where(valid, product - most, 0.0).to(CT)
    spoilt = sum_c(tl.sum(entry * 0.0, axis=0, keep_dims=True), NHWC)
    return tl.where(here & valid, entry - top, 0.0), top, scale, centred, spoilt


@triton.jit
def column_sums(z, v, a):
    """Return maxima of z + v over positions, sums of exponentials relative to them, and these."""
    y = z + v
    m = tl.max(y, axis=0, keep_dims=True)
    e = tl.exp2((y - m) * (LOG2E / a))
    return m, tl.sum(e, axis=0, keep_dims=True), e


@triton.jit
def potential(m, s, centred, a, a1, valid, NHWC: tl.constexpr, LOW: tl.constexpr, FAST: tl.constexpr):
    """Return L of a module, and u less its maximum over channels."""
    share = 1 / (a + a1)
    log_sum = m + (a * LN2) * log2(s, FAST)
    u = tl.where(valid, (a * share) * centred - (a1 * share) * log_sum, LOW)
    return log_sum, u - max_c(u, NHWC)


@triton.jit
def row_potential(r, a, a2, here, LOW: tl.constexpr):
    """Return v from R of a module; LOW where no position is."""
    return tl.where(here, (-a2 / (a + a2)) * r, LOW)


@triton.jit(do_not_specialize=VARYING)
def forward_windows(
    X, WEIGHTS, SCALE, ROWS, OUT,
    K, T, H, W, OH, OW,
    STEP: tl.constexpr, C: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, NHWC: tl.constexpr, N: tl.constexpr, G: tl.constexpr, P: tl.constexpr,
    Q: tl.constexpr, INDEX: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Pool the windows of a tile. ROWS, None or (K, positions, T), gets R for the way back."""
    n, c, t = tile_of(NHWC, N, G, P, Q, INDEX)
    at, out, here, valid = places(n, c, t, T, H, W, OH, OW, C, KH, KW, SH, SW, PH, PW, NHWC)
    x, top, scale, centred, spoilt = load_tile(X, SCALE, at, here, valid, c, NHWC, STEP, CT, LOW)
    centred += spoilt
    z = x * scale
    v = tl.where(here, tl.zeros(here.shape, dtype=CT), LOW)
    a, a1, a2 = weights_of(WEIGHTS, K, 0)
    for k in range(0, K):
        a, a1, a2 = weights_of(WEIGHTS, K, k)
        m, s, e = column_sums(z, v, a)
        log_sum, u = potential(m, s, centred, a, a1, valid, NHWC, LOW, FAST)
        y = z + u
        most = max_c(y, NHWC)
        r = most + (a * LN2) * log2(sum_c(tl.exp2((y - most) * (LOG2E / a)), NHWC), FAST)
        if ROWS is not None:
            tl.store(ROWS + (tl.cast(k, INDEX) * (KH * KW) + n) * T + t, r, mask=(t < T) & (n < KH * KW))
        v = row_potential(r, a, a2, here, LOW)
    m, s, e = column_sums(z, v, a)
    y = top + tl.sum(e * x, axis=0, keep_dims=True) / s
    some = tl.max(here.to(tl.int32), axis=0, keep_dims=True) > 0
    tl.store(OUT + out, tl.where(some, y, 0.0), mask=(t < T) & valid)


@triton.jit(do_not_specialize=VARYING)
def backward_windows(
    X, WEIGHTS, SCALE, ROWS, DOUT, DX, DS, PARTS,
    K, T, H, W, OH, OW,
    OVERLAP: tl.constexpr, STEP: tl.constexpr, C: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, NHWC: tl.constexpr, N: tl.constexpr,
    G: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, INDEX: tl.constexpr, CT: tl.constexpr,
    LOW: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Do the way back of the windows of a tile.

    DX is dX, or with OVERLAP the parts of each position of the windows, each in the format of the output. PARTS
    (programs, 3, K) and DS (programs, C) get the parts of the derivatives by weights and scales.
    """
    n, c, t = tile_of(NHWC, N, G, P, Q, INDEX)
    at, out, here, valid = places(n, c, t, T, H, W, OH, OW, C, KH, KW, SH, SW, PH, PW, NHWC)
    x, top, scale, centred, spoilt = load_tile(X, SCALE, at, here, valid, c, NHWC, STEP, CT, LOW)
    z = x * scale
    parts = PARTS + tl.program_id(0).to(tl.int64) * 3 * K
    rows = n * T + t
    a, a1, a2 = weights_of(WEIGHTS, K, K - 1)
    r = tl.load(ROWS + tl.cast(K - 1, INDEX) * (KH * KW) * T + rows, mask=here, other=-LOW)
    v = row_potential(r, a, a2, here, LOW)
    m, s, e = column_sums(z, v, a)
    mean = tl.sum(e * x, axis=0, keep_dims=True) / s
    dy = tl.load(DOUT + out, mask=(t < T) & valid, other=0.0).to(CT) / s
    e *= dy
    g = e * ((x - mean) * (1 / a))
    dx = e + g * scale
    ds = tl.zeros(top.shape, dtype=CT)
    if DS is not None:
        ds = tl.sum(g * x, axis=0, keep_dims=True)
    # The sums over a pooled channel are 0 but for rounding, which cancels if u has it too.
    du = tl.sum(g, axis=0, keep_dims=True)
    dv = sum_c(g, NHWC)
    da = tl.sum(g * (z + v - m))
    for i in range(0, K):
        k = K - 1 - i
        a, a1, a2 = weights_of(WEIGHTS, K, k)
        share1 = 1 / (a + a1)
        share2 = 1 / (a + a2)
        before, b1, b2 = weights_of(WEIGHTS, K, tl.maximum(k - 1, 0))
        r_before = tl.load(
            ROWS + tl.cast(tl.maximum(k - 1, 0), INDEX) * (KH * KW) * T + rows, mask=here, other=0.0
        )
        v = tl.where(
            k > 0, row_potential(r_before, before, b2, here, LOW), row_potential(r * 0.0, a, a2, here, LOW)
        )
        m, s, e = column_sums(z, v, a)
        log_sum, u = potential(m, s, centred, a, a1, valid, NHWC, LOW, FAST)
        # The rows of the module: dR = -tau2 dv. A rounded R would scale its softmax, so we divide by its sum.
        y = z + u - r
        of_row = tl.exp2(y * (LOG2E / a))
        total = sum_c(of_row, NHWC)
        g = of_row * ((-a2 * share2) * dv / tl.where(here, total, 1.0))
        du += tl.sum(g, axis=0, keep_dims=True)
        da += tl.sum(g * y)
        dtau2 = -tl.sum(tl.where(here, dv * r, 0.0)) * share2 * share2
        # Its columns: dL = -tau1 du.
        dl = tl.where(valid, (-a1 * share1) * du, 0.0)
        e *= dl / s
        dv = sum_c(e, NHWC)
        da += tl.sum(e * (z + v - m))
        dtau1 = -tl.sum(tl.where(valid, du * (log_sum + centred), 0.0)) * share1 * share1
        g += e
        dx += g * scale
        if DS is not None:
            ds += tl.sum(g * x, axis=0, keep_dims=True) + (a * share1) * du * top
        da = LN2 * tl.sum(dl * log2(s, FAST)) - da / a
        tl.store(parts + k, da - dtau1 * a1 - dtau2 * a2)
        tl.store(parts + K + k, dtau1 * a)
        tl.store(parts + 2 * K + k, dtau2 * a)
        da = a * 0.0
        du = tl.zeros(top.shape, dtype=CT)
        r = r_before
    if DX is not None:
        if OVERLAP:
            tl.store(DX + n * T * C + out, dx, mask=here & valid)
        else:
            tl.store(DX + at, dx, mask=here & valid)
    if DS is not None:
        if NHWC:
            channel = tl.arange(0, Q)[None, None, None, :]
        else:
            channel = tl.arange(0, G)[None, :, None, None] * P + tl.arange(0, P)[None, None, :, None]
        by_scale = DS + tl.program_id(0).to(tl.int64) * C + channel
        tl.store(by_scale, sum_windows(ds, NHWC), mask=channel < C)


@triton.jit(do_not_specialize=["E", *VARYING])
def fold_windows(
    PARTS, DX, E, T, H, W, OH, OW,
    C: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, NHWC: tl.constexpr, BLOCK: tl.constexpr, INDEX: tl.constexpr,
    CT: tl.constexpr,
):  # fmt: skip
    """Add up the parts of dX that the windows of an entry have, in the order of the windows.

    Of the E entries of dX a program has BLOCK. PARTS has those of position (0, 0) of all windows first.
    """
    entry = tl.program_id(0).to(INDEX) * BLOCK + tl.arange(0, BLOCK)
    if NHWC:
        c = entry % C
        pixel = entry // C
        w = pixel % W
        h = (pixel // W) % H
        b = pixel // (W * H)
    else:
        w = entry % W
        h = (entry // W) % H
        plane = entry // (W * H)
        c = plane % C
        b = plane // C
    total = tl.zeros((BLOCK,), dtype=CT)
    for back in range((KH - 1) // SH, -1, -1):
        i = (h + PH) // SH - back
        y = h + PH - i * SH
        for left in range((KW - 1) // SW, -1, -1):
            j = (w + PW) // SW - left
            x = w + PW - j * SW
            there = (entry < E) & (i >= 0) & (i < OH) & (y < KH) & (j >= 0) & (j < OW) & (x < KW)
            if NHWC:
                out = ((b * OH + i) * OW + j) * C + c
            else:
                out = ((b * C + c) * OH + i) * OW + j
            total += tl.load(PARTS + (y * KW + x) * T * C + out, mask=there, other=0.0)
    tl.store(DX + entry, total, mask=entry < E)
