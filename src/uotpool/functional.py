"""The public functions. Each validates, lays out its input, and calls the implementation that it chooses."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from uotpool import backends, checks
from uotpool.inputs import (
    Modules,
    Weight,
    as_sets,
    computed,
    in_layout_of,
    log_priors,
    resolve_scale,
    resolve_weights,
)
from uotpool.problem import Problem, SolverInput
from uotpool.solvers import REGULARIZERS, SOLVERS, certificate


def uot_plan(
    X: Tensor,
    alpha0: Weight,
    alpha1: Weight,
    alpha2: Weight,
    rho: Weight | None = None,
    *,
    p0: Tensor | None = None,
    q0: Tensor | None = None,
    index: Tensor | None = None,
    ptr: Tensor | None = None,
    dim_size: int | None = None,
    mask: Tensor | None = None,
    scale: float | Tensor | None = None,
    solver: str = "sinkhorn",
    K: Modules = None,
    tol: float | None = None,
    max_iter: int | None = None,
    formulation: str = "exact",
    impl: str = "auto",
) -> Tensor:
    r"""Compute the transport plan of each set.

    .. math::
        \min_{P \ge 0,\ \sum P = 1}\ & -\langle X, P\rangle + \alpha_0 R(P) \\
        & + \alpha_1 KL(\sum_n P \,|\, p_0) + \alpha_2 KL(\sum_d P \,|\, q_0)

    with R entropic, sum P (log P - 1), for the solvers "sinkhorn" and "badmm-e", and quadratic, sum
    P^2, for "badmm-q".

    Args:
        X: samples as rows, floating: (B, N, D), or (M, D) with `index` or `ptr`; (N, D) alone is
            one set.
        alpha0: weight of R, > 0: a number, or one value per module. The last one forms the plan.
        alpha1: weight of the feature marginal's KL, >= 0 (0: that marginal is free).
        alpha2: weight of the sample marginal's KL, >= 0.
        rho: step of Bregman ADMM, > 0. Only for "badmm-e" and "badmm-q", and needed there unless
            `K="converged"`; `suggest_rho` suggests one.
        p0: prior over features, positive, (D,) or (B, D). Default: uniform.
        q0: prior over samples, (B, N) or (M,). A sample of prior 0 is absent. Default: uniform. Any
            other prior below 1e-31 (1e-292 in float64), here and in p0, counts as that one, without
            gradient.
        index: set of each row, (M,), in any order.
        ptr: offsets of the sets, (B + 1,), for rows that lie set by set.
        dim_size: number of sets B; keeps trailing empty sets, and saves a wait on a GPU with
            `index`.
        mask: True (or 1) where a sample is present, (B, N) or (M,). What padding holds is never
            read.
        scale: the plan is that of `scale` X in place of X: a number, or a tensor of shape (), (1,) or (D,), one
            value per feature, of any sign. 0 leaves a feature out of what decides the plan, below 0 its small
            values attract mass. Default: 1.
        solver: "sinkhorn", "badmm-e" or "badmm-q".
        K: number of modules; default: the length of the weights, 4 if all are numbers. "converged"
            gives the optimum to a duality gap of `tol`, differentiated implicitly, from one value
            per weight and no `rho`.
        tol: largest duality gap with `K="converged"`; default 1e-12 in float64, 1e-6 in float32.
        max_iter: most Newton steps with `K="converged"` (default 200); a `ConvergenceWarning` if
            too few.
        formulation: "exact", or "paper" for the algorithms as published, which solve another
            problem.
        impl: "auto", "cpu" or "triton" (the fused kernels), or "reference"; see `resolve_impl`.

    Returns:
        P in the layout and dtype of X, mass 1 in each set (exact formulation), 0 at absent samples.

    Example:
        >>> X = torch.tensor([[[0.0, 1.0], [2.0, 1.0], [4.0, 4.0]]])  # three samples
        >>> uot_plan(X, alpha0=1.0, alpha1=1.0, alpha2=1.0)
        tensor([[[0.0326, 0.0920],
                 [0.1473, 0.0563],
                 [0.3296, 0.3423]]])
    """
    options = backends.solver_options(solver, K, formulation, tol, max_iter, impl)
    problem = _problem(
        X, (index, ptr, dim_size, mask), (p0, q0), (K, alpha0, alpha1, alpha2, rho), scale, options
    )
    return in_layout_of(X, backends.plan(problem, options).to(X.dtype))


def uot_pool(
    X: Tensor,
    alpha0: Weight,
    alpha1: Weight,
    alpha2: Weight,
    rho: Weight | None = None,
    *,
    p0: Tensor | None = None,
    q0: Tensor | None = None,
    index: Tensor | None = None,
    ptr: Tensor | None = None,
    dim_size: int | None = None,
    mask: Tensor | None = None,
    scale: float | Tensor | None = None,
    solver: str = "sinkhorn",
    K: Modules = None,
    tol: float | None = None,
    max_iter: int | None = None,
    formulation: str = "exact",
    impl: str = "auto",
    readout: str = "conditional",
) -> Tensor:
    r"""Pool each set by its transport plan, :math:`y_d = \sum_n X_{nd}\, P_{nd} / \sum_m P_{md}`.

    Args:
        X, alpha0, alpha1, alpha2, rho, p0, q0, index, ptr, dim_size, mask: as in `uot_plan`.
        scale: as in `uot_plan`. P is the plan of `scale` X, and X itself is pooled. The samples' weights for a
            feature of scale 0 do not depend on its values.
        solver, K, tol, max_iter, formulation, impl: as in `uot_plan`.
        readout: "conditional" is the formula above (the paper's eq. 4), a weighted mean of the samples.
            "sum" is N times that, with N the number of samples that are present (their prior is not
            0), so that the output sees the size of a set: a set that is there twice pools to twice
            as much. "authors" is D sum_n X P, the output of the authors' runs; only with
            `formulation="paper"`.

    Returns:
        (B, D) in the dtype of X; zeros for an empty set.

    Example:
        >>> X = torch.tensor([[[0.0, 1.0], [2.0, 1.0], [4.0, 4.0]]])  # three samples
        >>> uot_pool(X, alpha0=1e6, alpha1=1e6, alpha2=1e6).round(decimals=3)  # the mean
        tensor([[2., 2.]])
        >>> uot_pool(X, alpha0=0.01, alpha1=10.0, alpha2=0.0).round(decimals=3)  # the maximum
        tensor([[4., 4.]])
    """
    options = backends.solver_options(solver, K, formulation, tol, max_iter, impl, readout)
    problem = _problem(
        X, (index, ptr, dim_size, mask), (p0, q0), (K, alpha0, alpha1, alpha2, rho), scale, options
    )
    return backends.pool(problem, options).to(X.dtype)


def _problem(
    X: Tensor,
    layout: tuple[Any, ...],
    priors: tuple[Tensor | None, Tensor | None],
    weights: tuple[Any, ...],
    scale: float | Tensor | None,
    options: backends.SolverOptions,
) -> Problem:
    """Validate what a user passes, and lay X out as the backend of the call reads it."""
    as_is = isinstance(X, Tensor) and backends.reads_as_is(X, options)
    index, ptr, dim_size, mask = layout
    rows, sets = as_sets(X, index, ptr, dim_size, mask, as_is=as_is)
    like = computed(rows)
    log_p0, log_q0, sets = log_priors(like, sets, *priors)
    rows_of_weights = resolve_weights(like, options.solver, *weights)
    return Problem(rows, sets, log_p0, log_q0, rows_of_weights, resolve_scale(like, scale), as_is)


def duality_gap(
    X: Tensor,
    P: Tensor,
    alpha0: float | Tensor,
    alpha1: float | Tensor,
    alpha2: float | Tensor,
    *,
    p0: Tensor | None = None,
    q0: Tensor | None = None,
    index: Tensor | None = None,
    ptr: Tensor | None = None,
    dim_size: int | None = None,
    mask: Tensor | None = None,
    scale: float | Tensor | None = None,
    regularizer: str = "entropic",
) -> Tensor:
    r"""Certify how far the objective of a plan, from any solver, is from the optimum.

    With :math:`Y = X - \alpha_1 \log(\sum_n P / p_0) - \alpha_2 \log(\sum_d P / q_0)`,

    .. math::
        \text{entropic: } & \alpha_0 KL(P \,|\, Q), \\
        & Q = \text{softmax}(Y / \alpha_0) \\
        \text{quadratic: } & \alpha_0 \sum (P - Q)^2 + 2 (P - Q)(Q - Y / 2\alpha_0), \\
        & Q = \text{proj}_\Delta(Y / 2\alpha_0)

    Both are >= 0, and 0 exactly at the optimum. A marginal of zero under a positive prior gives
    infinity. That includes a float32 plan whose rows underflow, though its logarithm may be
    optimal: certify in float64.

    Args:
        X, p0, q0, index, ptr, dim_size, mask, scale: as in `uot_plan`.
        P: plan in the layout of X, >= 0. It is first normalised to mass 1.
        alpha0, alpha1, alpha2: one value each.
        regularizer: "entropic" or "quadratic".

    Returns:
        (B,), in float64, as it measures small differences; 0 for an empty set.

    Example:
        >>> X = torch.tensor([[[0.0, 1.0], [2.0, 1.0], [4.0, 4.0]]])
        >>> uniform = torch.full_like(X, 1 / 6)
        >>> duality_gap(X, uniform, 1.0, 1.0, 1.0)
        tensor([1.0206], dtype=torch.float64)
        >>> duality_gap(X, uot_plan(X, 1.0, 1.0, 1.0, K="converged"), 1.0, 1.0, 1.0) < 1e-6
        tensor([True])
    """
    layout = {"index": index, "ptr": ptr, "dim_size": dim_size, "mask": mask}
    problem, P = _with_plan(X, P, (alpha0, alpha1, alpha2), regularizer, p0, q0, scale, **layout)
    return certificate.gap(problem, P.log(), regularizer).reshape(problem.sets.num_sets)


def objective(
    X: Tensor,
    P: Tensor,
    alpha0: float | Tensor,
    alpha1: float | Tensor,
    alpha2: float | Tensor,
    *,
    p0: Tensor | None = None,
    q0: Tensor | None = None,
    index: Tensor | None = None,
    ptr: Tensor | None = None,
    dim_size: int | None = None,
    mask: Tensor | None = None,
    scale: float | Tensor | None = None,
    regularizer: str = "entropic",
) -> Tensor:
    r"""Compute the value of the problem at a plan of mass 1, which is what `uot_plan` minimises.

    Args:
        X, p0, q0, index, ptr, dim_size, mask, scale: as in `uot_plan`.
        P: plan in the layout of X, >= 0.
        alpha0, alpha1, alpha2: one value each.
        regularizer: "entropic" or "quadratic".

    Returns:
        (B,), float64. 0 for an empty set.

    Example:
        >>> X = torch.tensor([[[0.0, 1.0], [2.0, 1.0], [4.0, 4.0]]])
        >>> objective(X, uot_plan(X, 1.0, 1.0, 1.0, K="converged"), 1.0, 1.0, 1.0)
        tensor([-5.3901], dtype=torch.float64)
        >>> objective(X, torch.full_like(X, 1 / 6), 1.0, 1.0, 1.0)
        tensor([-4.7918], dtype=torch.float64)
    """
    layout = {"index": index, "ptr": ptr, "dim_size": dim_size, "mask": mask}
    problem, P = _with_plan(X, P, (alpha0, alpha1, alpha2), regularizer, p0, q0, scale, **layout)
    return certificate.objective(problem, P, regularizer).reshape(problem.sets.num_sets)


def _with_plan(
    X: Tensor,
    P: Tensor,
    alphas: tuple[float | Tensor, ...],
    regularizer: str,
    p0: Tensor | None,
    q0: Tensor | None,
    scale: float | Tensor | None,
    **layout: Any,
) -> tuple[SolverInput, Tensor]:
    """Return the problem of a given plan, and the plan, both in float64."""
    checks.one_of("regularizer", regularizer, REGULARIZERS)
    checks.tensor("X", X, "a floating tensor")
    checks.floating("P", P, "a floating tensor of the shape of X")
    checks.same_device("P", P, X)
    if P.shape != X.shape:
        checks.fail("P", f"the shape of X, {tuple(X.shape)}", P)
    rows, sets = as_sets(X, **layout, dtype=torch.float64)
    if P.is_nested:
        P = P.values()
    if checks.values_checked(P):
        checks.plan_values(sets.fill_absent(P, 0.0))
    log_p0, log_q0, sets = log_priors(rows, sets, p0, q0)
    alpha0, alpha1, alpha2 = alphas
    weights = resolve_weights(rows, SOLVERS["sinkhorn"], "converged", alpha0, alpha1, alpha2, None)
    problem = Problem(rows, sets, log_p0, log_q0, weights, resolve_scale(rows, scale))
    return problem.to_solve(), P.double()


class PlanStats(NamedTuple):
    """What a plan does, one value per set in float64, 0 for an empty set; `plan_stats` makes it.

    Attributes:
        mass: sum of P.
        feature_deviation: L1 distance of P's feature marginal (normalised to mass 1) from p0.
        sample_deviation: L1 distance of P's sample marginal (normalised to mass 1) from q0.
        divergence: mean over the features of KL(p(n|d) | uniform), in nats. 0 is mean pooling, log
            N is max pooling (one sample per feature). Features that are constant in a set count
            too, though their weights change nothing.
    """

    mass: Tensor
    feature_deviation: Tensor
    sample_deviation: Tensor
    divergence: Tensor


def plan_stats(
    P: Tensor,
    *,
    p0: Tensor | None = None,
    q0: Tensor | None = None,
    index: Tensor | None = None,
    ptr: Tensor | None = None,
    dim_size: int | None = None,
    mask: Tensor | None = None,
) -> PlanStats:
    """Measure how far a plan is from mean pooling, and how far its marginals are from the priors.

    Args:
        P: plan, in any layout of `uot_plan`.
        p0, q0, index, ptr, dim_size, mask: as in `uot_plan`.

    Returns:
        Its mass, the deviations of its marginals from the priors, and its divergence from mean
        pooling, as `PlanStats` of tensors (B,).

    Example:
        >>> X = torch.tensor([[[0.0, 1.0], [2.0, 1.0], [4.0, 4.0]]])
        >>> plan_stats(uot_plan(X, 0.01, 10.0, 0.0)).divergence  # log 3: max pooling
        tensor([1.0986], dtype=torch.float64)
    """
    P, sets = as_sets(P, index, ptr, dim_size, mask, torch.float64, name="P")
    if checks.values_checked(P):
        checks.plan_values(P)
    given_p0, given_q0, sets = log_priors(P, sets, p0, q0)
    log_p0, log_q0 = sets.log_priors(P, given_p0, given_q0)
    P = sets.fill_absent(P, 0.0)
    p, q = sets.sum_n(P), P.sum(-1, keepdim=True)
    mass = sets.sum_n(q)
    tiny = torch.finfo(P.dtype).tiny
    count = sets.count(P)
    there = (count > 0).to(P.dtype)
    unit = mass.clamp_min(tiny)
    off_p = (p / unit - log_p0.softmax(-1)).abs().sum(-1, keepdim=True) * there
    off_q = sets.sum_n((q / sets.to_rows(unit) - sets.softmax_n(log_q0)).abs())
    conditional = P / sets.to_rows(p.clamp_min(tiny))
    entropy = -sets.sum_n(torch.special.xlogy(conditional, conditional))
    divergence = (count.clamp_min(1.0).log() - entropy).mean(-1, keepdim=True) * there
    return PlanStats(*(s.reshape(sets.num_sets) for s in (mass, off_p, off_q, divergence)))


def suggest_rho(solver: str, alpha0: float, alpha1: float, alpha2: float, *, spread: float = 1.0) -> float:
    """Suggest a step for Bregman ADMM that is near the best one at K = 4 to 16 over weights of 1e-2 to 1e2.

    With m the harmonic mean of alpha1 and alpha2, the step is min(alpha0 + spread, m) for "badmm-e"
    and min(spread, m / 2) for "badmm-q", but at least spread / 10. `docs/settings.md` has the
    evidence.

    Args:
        solver: "badmm-e" or "badmm-q".
        alpha0, alpha1, alpha2: the weights, a number or a tensor of one.
        spread: standard deviation of the entries of X. With a larger rho the plan moves by less
            than X / rho per step and stays near the priors; with a much smaller one it overshoots.

    Example:
        >>> suggest_rho("badmm-e", alpha0=1.0, alpha1=0.7, alpha2=0.7)
        0.7
    """
    checks.one_of("solver", solver, tuple(name for name, known in SOLVERS.items() if known.needs_rho))
    numbers = (float(x.detach()) if isinstance(x, Tensor) else x for x in (alpha0, alpha1, alpha2, spread))
    alpha0, alpha1, alpha2, spread = numbers
    alpha0 = checks.number("alpha0", alpha0, positive=True)
    alpha1, alpha2 = (
        checks.number("alpha1", alpha1, positive=False),
        checks.number("alpha2", alpha2, positive=False),
    )
    spread = checks.number("spread", spread, positive=True)
    mean = 2 * alpha1 * alpha2 / (alpha1 + alpha2) if alpha1 + alpha2 > 0 else 0.0
    step = min(alpha0 + spread, mean) if solver == "badmm-e" else min(spread, mean / 2)
    return max(step, spread / 10)
