"""The transport problem of each set of a batch, with its solutions, certificates and statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from uotpool import backends, checks, coefficients
from uotpool.backends.call import Call
from uotpool.coefficients import NAMES, Coefficients, Value
from uotpool.inputs import as_sets, in_layout_of, log_priors
from uotpool.sets import Sets
from uotpool.solvers import REGULARIZERS, Solver, as_solver, certificate
from uotpool.solvers.base import SolverInput, StepCoefficients

Number = float | Sequence[float] | Tensor
DEFAULT_SOLVER = as_solver("sinkhorn")  # torch.compile of torch 2.4 could not make one in a call


class PlanStats(NamedTuple):
    """Statistics of a plan from `Problem.stats`, one value per set in float64, 0 for an empty set.

    Attributes:
        mass: sum of P.
        feature_deviation: L1 distance of P's feature marginal (normalised to mass 1) from p0.
        sample_deviation: L1 distance of P's sample marginal (normalised to mass 1) from q0.
        divergence: mean over the features of KL(p(n|d) | uniform), in nats. 0 is mean pooling, log N is max
            pooling (one sample per feature). Features that are constant in a set
            count too, though all plans pool them to the same value.
    """

    mass: Tensor
    feature_deviation: Tensor
    sample_deviation: Tensor
    divergence: Tensor


class Problem:
    r"""Unbalanced optimal transport between the samples and the features of each set.

    .. math::
        \min_{P \ge 0,\ \sum P = 1}\ & -\langle t X, P\rangle + \alpha_0 R(P) \\
        & + \alpha_1 KL(\sum_n P \,|\, p_0) + \alpha_2 KL(\sum_d P \,|\, q_0)

    with t the scale and R the regularizer of the solver: entropic, sum P (log P - 1), or quadratic, sum P^2.
    Arguments are checked here, and again by `pool` and `plan` where they depend on the solver.

    Args:
        X: samples as rows, floating: (B, N, D), or (M, D) with `index` or `ptr`; (N, D) alone is one set.
        alpha0: coefficient of R, > 0: a number, one for each step of the solver, or a tensor of these.
        alpha1: coefficient of the KL of the feature marginal, >= 0 (0: that marginal is free).
        alpha2: coefficient of the KL of the sample marginal, >= 0.
        rho: step size of Bregman ADMM, > 0, which needs one. alpha0 + alpha1 alpha2 / (alpha1 + alpha2) is a
            start for the entropic one.
        p0: prior over features, positive, (D,) or (B, D). Default: uniform.
        q0: prior over samples, (B, N) or (M,). A sample of prior 0 is absent. Default: uniform. Any other prior
            below 1e-31 (1e-292 in float64), here and in p0, counts as that one, without gradient.
        scale: t, a number or one per feature, (D,), of any sign. 0 leaves a feature out of what decides the
            plan. Default: 1.
        index: set of each row, (M,), in any order.
        ptr: offsets of the sets, (B + 1,), for rows that lie set by set.
        dim_size: number of sets B; keeps trailing empty sets, and saves a wait on a GPU with `index`.
        mask: True where a sample is present, (B, N) or (M,). What padding holds is never read.

    Example:
        >>> X = torch.tensor([[[0.0, 1.0], [2.0, 1.0], [4.0, 4.0]]])  # three samples
        >>> problem = Problem(X, alpha0=1.0, alpha1=1.0, alpha2=1.0)
        >>> P = problem.plan(Sinkhorn(K=4))
        >>> P
        tensor([[[0.0326, 0.0920],
                 [0.1473, 0.0563],
                 [0.3296, 0.3423]]])
        >>> problem.gap(P) < 1e-4  # how far its objective is from the optimum
        tensor([True])
    """

    def __init__(
        self,
        X: Tensor,
        *,
        alpha0: Number,
        alpha1: Number,
        alpha2: Number,
        rho: Number | None = None,
        p0: Tensor | None = None,
        q0: Tensor | None = None,
        scale: Number | None = None,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        mask: Tensor | None = None,
    ) -> None:
        rows, sets = as_sets(X, index, ptr, dim_size, mask)
        log_p0, log_q0, present = log_priors(rows, sets, p0, q0)
        checked = [
            None if value is None and name in ("rho", "scale") else _value(name, value, rows)
            for name, value in zip(NAMES, (alpha0, alpha1, alpha2, rho, scale), strict=True)
        ]
        call = Call(rows, present, log_p0, log_q0, Coefficients(*checked), DEFAULT_SOLVER)  # type: ignore[arg-type]
        # The priors before their conversion to the dtype of X: certificates are computed in float64.
        self._priors: tuple[Sets, Tensor | None, Tensor | None] | None = (sets, p0, q0)
        self.X, self._call = X, call

    @classmethod
    def _of_call(cls, X: Tensor, call: Call) -> Problem:
        """Return the problem of a layer's call."""
        problem = cls.__new__(cls)
        problem.X, problem._call, problem._priors = X, call.prepared(), None
        return problem

    @property
    def sets(self) -> Sets:
        """How the rows of X are grouped."""
        return self._call.sets

    def pool(
        self,
        solver: Solver | str = DEFAULT_SOLVER,
        *,
        reduce: Literal["mean", "sum"] = "mean",
        impl: str = "auto",
    ) -> Tensor:
        r"""Return the pooled vectors, (B, D): :math:`y_d = \sum_n X_{nd} P_{nd} / \sum_m P_{md}`.

        An empty set pools to zeros.

        Args:
            solver: "sinkhorn", "badmm-e", "badmm-q", or an object such as `Sinkhorn(K=4)`.
            reduce: "mean" is the formula above, a weighted mean; "sum" is N times that, with N the number of
                samples of the set.
            impl: "auto", "cpu" or "triton" (the fused kernels), or "reference"; see `explain_impl`.
        """
        checks.one_of("reduce", reduce, ("mean", "sum"))
        call = self._for(solver)
        y = backends.choose(call.X, call.solver, impl).solve(call)
        return (y * call.sets.squeeze(call.sizes(y)) if reduce == "sum" else y).to(self.X.dtype)

    def plan(self, solver: Solver | str = DEFAULT_SOLVER, *, impl: str = "auto") -> Tensor:
        """Return P in the layout of X, in at least float32, of mass 1 in each set, 0 at absent samples.

        Args:
            solver, impl: as in `pool`.
        """
        call = self._for(solver)
        return in_layout_of(self.X, backends.choose(call.X, call.solver, impl).solve(call, plan=True))

    def gap(self, P: Tensor, regularizer: str = "entropic") -> Tensor:
        r"""Return an upper bound on how far the objective of a plan is from the optimum (duality gap).

        With :math:`Y = t X - \alpha_1 \log(\sum_n P / p_0) - \alpha_2 \log(\sum_d P / q_0)`,

        .. math::
            \text{entropic: } & \alpha_0 KL(P \,|\, Q), \\
            & Q = \text{softmax}(Y / \alpha_0) \\
            \text{quadratic: } & \alpha_0 \sum (P - Q)^2 + 2 (P - Q)(Q - Y / 2\alpha_0), \\
            & Q = \text{proj}_\Delta(Y / 2\alpha_0)

        Both are >= 0, and 0 exactly at the optimum. A marginal of zero under a positive prior gives infinity.
        That includes a float32 plan whose rows underflow, so use a plan of X in float64 there.

        Args:
            P: plan in the layout of X, >= 0. It is first normalised to mass 1.
            regularizer: "entropic" or "quadratic".

        Returns:
            (B,), in float64, as it measures small differences; 0 for an empty set.
        """
        problem, plan = self._with_plan(P, regularizer)
        return certificate.gap(problem, plan.log(), regularizer).reshape(self.sets.num_sets)

    def objective(self, P: Tensor, regularizer: str = "entropic") -> Tensor:
        """Return the value of the problem at a plan of mass 1, (B,), float64, 0 for an empty set.

        Args:
            P: plan in the layout of X, >= 0.
            regularizer: "entropic" or "quadratic".
        """
        problem, plan = self._with_plan(P, regularizer)
        return certificate.objective(problem, plan, regularizer).reshape(self.sets.num_sets)

    def stats(self, P: Tensor) -> PlanStats:
        """Measure how far a plan is from mean pooling, and how far its marginals are from the priors.

        Args:
            P: plan in the layout of X, >= 0.
        """
        sets = self.sets
        rows = sets.fill_absent(self._checked_plan(P), 0.0)
        log_p0, log_q0 = sets.log_priors(rows, *self._double_priors())
        p, q = sets.sum_n(rows), rows.sum(-1, keepdim=True)
        mass = sets.sum_n(q)
        tiny = torch.finfo(rows.dtype).tiny
        count = sets.count(rows)
        nonempty = (count > 0).to(rows.dtype)
        total = mass.clamp_min(tiny)
        deviation_p = (p / total - log_p0.softmax(-1)).abs().sum(-1, keepdim=True) * nonempty
        deviation_q = sets.sum_n((q / sets.to_rows(total) - sets.softmax_n(log_q0)).abs())
        conditional = rows / sets.to_rows(p.clamp_min(tiny))
        entropy = -sets.sum_n(torch.special.xlogy(conditional, conditional))
        divergence = (count.clamp_min(1.0).log() - entropy).mean(-1, keepdim=True) * nonempty
        return PlanStats(*(s.reshape(sets.num_sets) for s in (mass, deviation_p, deviation_q, divergence)))

    def _for(self, solver: Solver | str) -> Call:
        """Return the call for a solver; refuse coefficients that it does not take."""
        solver, values = as_solver(solver), self._call.coefficients
        if solver.uses_rho != (values.rho is not None):
            accepted = "a step size > 0, as Bregman ADMM needs one" if solver.uses_rho else f"None for {solver}"
            raise ValueError(f"rho: expected {accepted}, got {'None' if solver.uses_rho else 'one'}")
        for name, value in zip(NAMES[:4], values[:4], strict=True):
            if value is not None:
                coefficients.check_length(name, value, solver.K, one_value=solver.converges)
        return self._call._replace(solver=solver)

    def _double_priors(self) -> tuple[Tensor | None, Tensor | None]:
        """Return log p0 and log q0 in float64."""
        if self._priors is None:
            log_p0, log_q0 = self._call.log_p0, self._call.log_q0
            return (None if log_p0 is None else log_p0.double()), (None if log_q0 is None else log_q0.double())
        sets, p0, q0 = self._priors
        return log_priors(self._call.X.double(), sets, p0, q0)[:2]

    def _with_plan(self, P: Tensor, regularizer: str) -> tuple[SolverInput, Tensor]:
        """Return the problem and the rows of a plan, in float64."""
        checks.one_of("regularizer", regularizer, REGULARIZERS)
        rows = self._checked_plan(P)
        call = self._call._replace(X=self._call.X.double())
        for name, value in zip(NAMES[:3], call.coefficients[:3], strict=True):
            coefficients.check_length(name, value, 1, one_value=True)
        alphas = StepCoefficients(*(call.coefficients.values(name, call.X) for name in NAMES[:3]))
        X = call.scaled_X()
        log_p0, log_q0 = call.sets.log_priors(X, *self._double_priors())
        return SolverInput(X, call.sets, log_p0, log_q0, alphas), rows

    def _checked_plan(self, P: Tensor) -> Tensor:
        """Return the rows of a plan in float64."""
        checks.floating("P", P, "a floating tensor of the shape of X")
        checks.same_device("P", P, self.X)
        if P.shape != self.X.shape:
            checks.fail("P", f"the shape of X, {tuple(self.X.shape)}", P)
        rows = P.values() if P.is_nested else P
        if checks.values_checked(rows):
            checks.plan_values(self.sets.fill_absent(rows, 0.0))
        return rows.double()


def uot_pool(
    X: Tensor,
    alpha0: Number,
    alpha1: Number,
    alpha2: Number,
    rho: Number | None = None,
    *,
    solver: Solver | str = DEFAULT_SOLVER,
    reduce: Literal["mean", "sum"] = "mean",
    impl: str = "auto",
    **problem: Any,
) -> Tensor:
    """Pool each set by its transport plan: `Problem(X, ...).pool(solver)` in one line.

    Args:
        X, alpha0, alpha1, alpha2, rho: as in `Problem`.
        solver, reduce, impl: as in `Problem.pool`.
        **problem: p0, q0, scale, index, ptr, dim_size and mask, as in `Problem`.

    Example:
        >>> X = torch.tensor([[[0.0, 1.0], [2.0, 1.0], [4.0, 4.0]]])  # three samples
        >>> uot_pool(X, alpha0=1e6, alpha1=1e6, alpha2=1e6).round(decimals=3)  # the mean
        tensor([[2., 2.]])
        >>> uot_pool(X, alpha0=0.01, alpha1=10.0, alpha2=0.0).round(decimals=3)  # the maximum
        tensor([[4., 4.]])
    """
    posed = Problem(X, alpha0=alpha0, alpha1=alpha1, alpha2=alpha2, rho=rho, **problem)
    return posed.pool(solver, reduce=reduce, impl=impl)


def _value(name: str, value: Any, rows: Tensor) -> Value:
    """Return a checked coefficient: numbers as floats, a tensor with the dtype and device of the rows."""
    is_scale, positive, D = name == "scale", name in coefficients.POSITIVE, rows.shape[-1]
    count = f"{D}, one for each feature" if is_scale else "one for each step"
    if not isinstance(value, Tensor):
        checked = coefficients.fixed(name, value, rows.dtype)
        if is_scale and coefficients.length(checked) not in (1, D):
            checks.fail(name, f"a number, or {count}", value)
        return checked
    bound = "of any sign" if is_scale else "> 0" if positive else ">= 0"
    accepted = f"a number {bound}, or a 1-d floating tensor of one or {count}"
    checks.floating(name, value, accepted)
    has_values = not value.is_meta or rows.is_meta
    if value.dim() > 1 or not has_values or (value.numel() not in (1, D) if is_scale else value.numel() == 0):
        checks.fail(name, accepted, value)
    if is_scale:
        checks.same_device(name, value, rows)
    checks.coefficient_values(name, value, rows.dtype, positive=positive, signed=is_scale)
    return value.to(device=rows.device, dtype=rows.dtype).reshape(-1)
