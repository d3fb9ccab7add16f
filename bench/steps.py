"""A rule for the step size of Bregman ADMM, near the best one at K = 4 to 16 coefficients of 1e-2 to 1e2."""

from __future__ import annotations


def suggested(solver: str, alpha0: float, alpha1: float, alpha2: float, *, spread: float = 1.0) -> float:
    """Return rho for "badmm-e" or "badmm-q".

    With m the harmonic mean of alpha1 and alpha2, it is min(alpha0 + spread, m) for "badmm-e" and min(spread,
    m / 2) for "badmm-q", but at least spread / 10.

    Args:
        solver: its name.
        alpha0, alpha1, alpha2: the coefficients.
        spread: standard deviation of the entries of X. With a larger rho the plan moves by less than X / rho a
            step and stays near the priors; with a much smaller one it overshoots.
    """
    mean = 2 * alpha1 * alpha2 / (alpha1 + alpha2) if alpha1 + alpha2 > 0 else 0.0
    step = min(alpha0 + spread, mean) if solver == "badmm-e" else min(spread, mean / 2)
    return max(step, spread / 10)
