"""Entropic Bregman ADMM: its slopes, and what it does with vectors of columns. `badmm_e` has the formulas."""

import triton
import triton.language as tl

from uotpool.backends.triton.kernels.badmm import module_of, place
from uotpool.backends.triton.kernels.tiles import LOG2E, centred_tops, log2, log_prior_of


@triton.jit
def slopes_of(WEIGHTS, K, j, CT: tl.constexpr):
    """Return az and the ratio of update j, and cP and cS; in float64 until the end, as c az is about 1."""
    c = tl.load(WEIGHTS).to(tl.float64) * 0.0
    az = c
    before = c
    for i in range(0, j):
        a, a1, a2, rho = module_of(WEIGHTS, K, i)
        az = a.to(tl.float64)
        before = rho.to(tl.float64)
        c = (before * c + LOG2E) / (az + before)
    a, a1, a2, rho = module_of(WEIGHTS, K, j)
    last = rho.to(tl.float64)
    c_p = c + (LOG2E - az * c) / last
    c_s = (last * c + LOG2E) / (a.to(tl.float64) + last)
    return az.to(CT), (before / last).to(CT), c_p.to(CT), c_s.to(CT)


@triton.jit
def keep_slopes(SLOPES, ratio, c_p, c_s, K, j):
    """Keep the slopes of update j in SLOPES (3, K + 1)."""
    tl.store(SLOPES + j, c_p)
    tl.store(SLOPES + K + 1 + j, c_s)
    tl.store(SLOPES + 2 * (K + 1) + j, ratio)


@triton.jit
def start_columns(STATES, LOGP, b, p_step, d, here, B, SLOTS, first, D: tl.constexpr, CT: tl.constexpr):
    """Keep u = log mu = log p0 and z1 = 0."""
    log_p = log_prior_of(LOGP, b, p_step, d, here, CT) * LOG2E
    tl.store(place(STATES, 0, SLOTS, B, b, 3 * D) + d, log_p, mask=here & first)
    tl.store(place(STATES, 0, SLOTS, B, b, 3 * D) + D + d, log_p, mask=here & first)
    tl.store(place(STATES, 0, SLOTS, B, b, 3 * D) + 2 * D + d, log_p * 0.0, mask=here & first)


@triton.jit
def update_columns(
    SUMS, STATES, LOGP, b, p_step, d, here, B, SLOTS, scale, top, a, a1, rho, az, j, first,
    D: tl.constexpr, CT: tl.constexpr, LOW: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Do the columns of update j from their maxima and sums, and keep the states after it; return uS."""
    m = tl.load(place(SUMS, j, SLOTS, B, b, 2 * D) + d, mask=here, other=0.0)
    s = tl.load(place(SUMS, j, SLOTS, B, b, 2 * D) + D + d, mask=here, other=1.0)
    u = tl.load(place(STATES, j, SLOTS, B, b, 3 * D) + d, mask=here, other=0.0)
    mu = tl.load(place(STATES, j, SLOTS, B, b, 3 * D) + D + d, mask=here, other=0.0)
    z = tl.load(place(STATES, j, SLOTS, B, b, 3 * D) + 2 * D + d, mask=here, other=0.0)
    log_p = log_prior_of(LOGP, b, p_step, d, here, CT) * LOG2E
    log_sum = rho * (m + log2(s, FAST))
    t = rho * mu + (rho - az) * u + centred_tops(scale, top, here, LOW, CT) * LOG2E + z
    marginal = 0.5 * (t + log_sum)
    u = tl.where(here, (az * u + 0.5 * (t - log_sum)) / (a + rho), LOW)
    u -= tl.max(u)
    mu = tl.where(here, (a1 * log_p + marginal - z) / (a1 + rho), LOW)
    mu -= tl.max(mu)
    tl.store(place(STATES, j + 1, SLOTS, B, b, 3 * D) + d, u, mask=here & first)
    tl.store(place(STATES, j + 1, SLOTS, B, b, 3 * D) + D + d, mu, mask=here & first)
    tl.store(place(STATES, j + 1, SLOTS, B, b, 3 * D) + 2 * D + d, z + rho * mu - marginal, mask=here & first)
    return u


@triton.jit
def reverse_columns(
    SUMS, STATES, LOGP, ADJOINTS, DL, DP, parts, du, centred, b, p_step, d, here, B,
    a, a1, rho, az, K, j,
    D: tl.constexpr, CT: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Do the columns of update j backwards, given the sums of columns du that its rows have.

    ADJOINTS (2, B, 5, D) has those of u, log mu and z1 of the next state, and of log p0 and scale top so far,
    all 0 behind the closing update. DL gets dL over the sums of columns, `parts` (4, K + 1) the parts of the
    derivatives by alpha0, rho, az and alpha1, and with j = 0 DP gets the derivative by log p0.
    """
    m = tl.load(place(SUMS, j, K + 2, B, b, 2 * D) + d, mask=here, other=0.0)
    s = tl.load(place(SUMS, j, K + 2, B, b, 2 * D) + D + d, mask=here, other=1.0)
    u = tl.load(place(STATES, j, K + 2, B, b, 3 * D) + d, mask=here, other=0.0)
    mu = tl.load(place(STATES, j, K + 2, B, b, 3 * D) + D + d, mask=here, other=0.0)
    z = tl.load(place(STATES, j, K + 2, B, b, 3 * D) + 2 * D + d, mask=here, other=0.0)
    u_next = tl.load(place(STATES, j + 1, K + 2, B, b, 3 * D) + d, mask=here, other=0.0)
    mu_next = tl.load(place(STATES, j + 1, K + 2, B, b, 3 * D) + D + d, mask=here, other=0.0)
    log_p = log_prior_of(LOGP, b, p_step, d, here, CT) * LOG2E
    log_sum = m + log2(s, FAST)
    move = 1 / rho
    t = mu + (1 - az * move) * u + (centred * LOG2E + z) * move
    marginal = 0.5 * (t + log_sum)

    known = here & (tl.cast(j, tl.int32) < K)
    by_u = tl.load(place(ADJOINTS, j + 1, 2, B, b, 5 * D) + d, mask=known, other=0.0)
    by_mu = tl.load(place(ADJOINTS, j + 1, 2, B, b, 5 * D) + D + d, mask=known, other=0.0)
    by_z = tl.load(place(ADJOINTS, j + 1, 2, B, b, 5 * D) + 2 * D + d, mask=known, other=0.0)
    by_prior = tl.load(place(ADJOINTS, j + 1, 2, B, b, 5 * D) + 3 * D + d, mask=known, other=0.0)
    by_top = tl.load(place(ADJOINTS, j + 1, 2, B, b, 5 * D) + 4 * D + d, mask=known, other=0.0)

    # z1' = z1 + rho (log mu' - log p),  log mu' = (alpha1 log p0 + rho log p - z1) / (alpha1 + rho)
    by_mu += rho * by_z
    share = by_mu / (a1 + rho)
    by_marginal = rho * (share - by_z)
    drho = tl.sum(share * (marginal - mu_next) + by_z * (mu_next - marginal))
    da1 = tl.sum(share * (log_p - mu_next))
    by_z -= share
    by_prior += a1 * share
    # log p = (t + L) / 2,  uS = (az u + rho (t - L) / 2) / (alpha0 + rho)
    g = tl.where(here, du + by_u, 0.0) / (a + rho)
    da = -tl.sum(g * u_next)
    drho += tl.sum(g * (0.5 * (t - log_sum) - u_next))
    by_t = 0.5 * (by_marginal + rho * g)
    by_sum = 0.5 * (by_marginal - rho * g)
    # rho t = rho log mu + (rho - az) u + scale top + z1
    daz = tl.sum((g - by_t * move) * u)
    drho += tl.sum(by_t * (mu + u - t)) * move
    by_u = az * g + (1 - az * move) * by_t
    by_z += by_t * move
    by_top += by_t * move

    tl.store(place(DL, j, K + 1, B, b, D) + d, by_sum / s, mask=here)
    tl.store(place(ADJOINTS, j, 2, B, b, 5 * D) + d, by_u, mask=here)
    tl.store(place(ADJOINTS, j, 2, B, b, 5 * D) + D + d, by_t, mask=here)
    tl.store(place(ADJOINTS, j, 2, B, b, 5 * D) + 2 * D + d, by_z, mask=here)
    tl.store(place(ADJOINTS, j, 2, B, b, 5 * D) + 3 * D + d, by_prior, mask=here)
    tl.store(place(ADJOINTS, j, 2, B, b, 5 * D) + 4 * D + d, by_top, mask=here)
    if DP is not None:  # the last update that comes here is the first
        tl.store(DP + b * D + d, (by_prior + by_u + by_t) * LOG2E, mask=here)
    tl.store(parts + j, da)
    tl.store(parts + K + 1 + j, drho)
    tl.store(parts + 2 * (K + 1) + j, daz)
    tl.store(parts + 3 * (K + 1) + j, da1)
