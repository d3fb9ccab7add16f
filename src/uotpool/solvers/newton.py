"""Find the optimum by a damped Newton method on the dual, with gradients through the optimality conditions.

Conjugate gradients solve the Newton systems and the adjoint system of the backward pass, so nothing
larger than X is formed, and sets of any sizes go together. The work is done in float64 where the
device has it: float32 is enough for the plan of a float32 input, but not for the way to it.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from uotpool import checks
from uotpool.solvers.base import ENTROPIC, REGULARIZERS, Regularizer, Solver, SolverInput, StepCoefficients
from uotpool.solvers.dual import Curvature, Dual, Potentials
from uotpool.solvers.sinkhorn import sweep

DEFAULT_TOL = {torch.float64: 1e-12, torch.float32: 1e-6}
DEFAULT_MAX_ITER = 200
NEWTON_RTOL = 1e-3  # of the inner solves; Newton then gains three digits of the gradient per step
ADJOINT_RTOL = {torch.float64: 1e-11, torch.float32: 1e-5}
CG_MAX_ITER = 300
DAMPING = 0.1  # of the quadratic problem, times the norm of the gradient, so that it fades out
BACKTRACKS = 20
ENTROPIC_START = (64.0, 16.0, 4.0, 1.0, 1.0)
QUADRATIC_START = tuple(4.0**i for i in range(7, 0, -1))
QUADRATIC_START_ITER = 10


class ConvergenceWarning(RuntimeWarning):
    """`Newton` stopped at `max_iter` with a gap above `tol`."""


@dataclass(frozen=True)
class Newton(Solver):
    """The optimum to within a duality gap, differentiated implicitly, for coefficients of one value each.

    Args:
        regularizer: the R of the problem, "entropic" or "quadratic".
        tol: largest duality gap. Default: 1e-12 for float64, 1e-6 for float32.
        max_iter: maximum number of steps; a `ConvergenceWarning` says that they were too few.
    """

    regularizer: Regularizer = ENTROPIC
    tol: float | None = None
    max_iter: int = DEFAULT_MAX_ITER

    def __post_init__(self) -> None:
        checks.one_of("regularizer", self.regularizer, REGULARIZERS)
        if self.tol is not None:
            checks.number("tol", self.tol, positive=True)
        checks.count("max_iter", self.max_iter, 1)

    @property
    def converges(self) -> bool:
        return True

    def solve(self, problem: SolverInput) -> Tensor:
        """Return log P at the optimum."""
        # The number of steps depends on values, so it cannot be compiled. A decorator would import the compiler
        # with the package.
        run = torch.compiler.disable(solve) if torch.compiler.is_compiling() else solve
        return run(problem, self.regularizer, self.tol, self.max_iter)


def solve(problem: SolverInput, regularizer: str, tol: float | None, max_iter: int) -> Tensor:
    """Return log P at the optimum, differentiated implicitly; each coefficient has one value."""
    X, sets, log_p0, log_q0, c = problem
    tol = DEFAULT_TOL[X.dtype] if tol is None else tol
    dtype = X.dtype if X.device.type == "mps" else torch.float64
    # rho has no part in the optimum.
    x, log_p, log_q, *alphas = (t.to(dtype) for t in (X, log_p0, log_q0, *c[:3]))
    # A constant in X changes nothing. Without it, all digits are left for the differences.
    x = x - sets.to_rows(sets.max_n(x.detach().amax(-1, keepdim=True)))
    dual = Dual(SolverInput(x, sets, log_p, log_q, StepCoefficients(*alphas)), regularizer)
    alpha1, alpha2 = dual.alpha1, dual.alpha2
    with torch.no_grad():
        u, v, gaps = _minimise(dual, tol, max_iter)
        over = gaps > _smallest_gap(dual, tol)
        if bool(over.any()):
            worst = f"a duality gap of {float(gaps.max()):.1e}, above tol={tol:.1e}"
            _warn(f"stopped after max_iter={max_iter} with {worst}; raise max_iter or tol, or the coefficients")
        curvature = Curvature(dual, u, v)
        slope_u, slope_v = dual.marginal_slopes(u, v)
    if torch.is_grad_enabled():
        # A potential whose coefficient is 0 is 0 itself, but its derivative by that coefficient is not.
        free_u, free_v = (torch.where(a > 0, 0.0, a) for a in (alpha1, alpha2))
        u, v = u + free_u * slope_u, v + free_v * slope_v
        du, dv = _Implicit.apply(*dual.gradient(u, v), curvature)
        u, v = u + du, v + dv
    # NaN in X must give NaN, but the active sets of the quadratic problem would pass over it.
    poison = sets.sum_all(X.detach() * 0) + (log_p0.detach() * 0).sum(-1, keepdim=True)
    poison = poison + sets.sum_n(log_q0.detach() * 0)
    return dual.plan(u, v).to(X.dtype) + sets.to_rows(poison)


def _smallest_gap(dual: Dual, tol: float) -> Tensor:
    """Return tol, but at least the rounding of the gap of each set, as s."""
    low = dual.sets.max_n((-dual.X).amax(-1, keepdim=True))  # the range: the maximum of X is 0
    size = low + dual.alpha0 + dual.alpha1 + dual.alpha2
    return (8 * torch.finfo(size.dtype).eps * size).clamp_min(tol)


def _warn(message: str) -> None:
    """Warn at the first line of the stack that is outside of this package and torch."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and _package(frame) in ("uotpool", "torch"):
        frame, level = frame.f_back, level + 1
    warnings.warn(f"uotpool: Newton {message}", ConvergenceWarning, stacklevel=level)


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).split(".")[0]


class _Implicit(torch.autograd.Function):
    """Differentiates (u, v) by the gradient of F at the optimum, where that gradient is zero.

    d(u, v) = -Hessian^-1 d(gradient), so the forward value is 0 and the backward pass is one linear
    solve.
    """

    @staticmethod
    def forward(ctx: Any, gu: Tensor, gv: Tensor, curvature: Curvature) -> Potentials:
        ctx.curvature = curvature
        return torch.zeros_like(gu), torch.zeros_like(gv)

    @staticmethod
    def backward(ctx: Any, du: Tensor, dv: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "Newton: has no second derivative; for one, unroll: Sinkhorn or BregmanADMM with "
                'impl="reference"'
            )
        gu, gv = ctx.curvature.solve(du, dv, ADJOINT_RTOL[du.dtype], CG_MAX_ITER)
        return -gu, -gv, None


def _minimise(dual: Dual, tol: float, max_iter: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return u, v and the gaps (see `_newton`), starting from easier problems with a larger alpha0."""
    u, v = torch.zeros_like(dual.log_p0), torch.zeros_like(dual.log_q0)
    if dual.quadratic:
        # For a large alpha0 every entry is active and F is nearly quadratic. The active set thins out later.
        for factor in QUADRATIC_START:
            easier = dual.with_alpha0(factor)
            u, v, _ = _newton(easier, u, v, 1e-3 * float(easier.alpha0), QUADRATIC_START_ITER)
    else:
        for factor in ENTROPIC_START:
            u, v = sweep(dual.with_alpha0(factor).problem, v, 0)
    return _newton(dual, u, v, tol, max_iter)


def _newton(dual: Dual, u: Tensor, v: Tensor, tol: float, max_iter: int) -> tuple[Tensor, Tensor, Tensor]:
    """Run a damped Newton method on F until the gap of every set is at most tol."""
    sets = dual.sets
    target = _smallest_gap(dual, tol)
    # The coupling of u and v has rank D at most, so without rounding 2 D + 2 steps are enough. The
    # bound must not depend on N, or a large set would change the results of its batch mates.
    cg_iter = min(CG_MAX_ITER, 4 * dual.X.shape[-1] + 20)
    for _ in range(max_iter):
        busy = dual.gap(dual.plan(u, v)) > target
        if not bool(busy.any()):
            break
        gu, gv = dual.gradient(u, v)
        damping = None
        if dual.quadratic:
            # With few active entries, some directions have almost no curvature, and steps are much too long.
            damping = DAMPING * (gu.abs().sum(-1, keepdim=True) + sets.sum_n(gv.abs()))
        du, dv = Curvature(dual, u, v, damping).solve(gu, gv, NEWTON_RTOL, cg_iter)
        slope = (gu * du).sum(-1, keepdim=True) + sets.sum_n(gv * dv)
        t = _line_search(dual, u, v, du, dv, slope, busy)
        new_u, new_v = u - t * du, v - sets.to_rows(t) * dv
        if not dual.quadratic:
            # A sweep never raises F, costs one evaluation, and repairs steps that rounding has spoiled.
            new_u, new_v = sweep(dual.problem, new_v, 0)
        u = torch.where(busy, new_u, u)  # a finished set does not depend on the others of the batch
        v = torch.where(sets.to_rows(busy), new_v, v)
    return u, v, dual.gap(dual.plan(u, v))


def _line_search(
    dual: Dual, u: Tensor, v: Tensor, du: Tensor, dv: Tensor, slope: Tensor, busy: Tensor
) -> Tensor:
    """Return the step of each set by backtracking (Armijo), 0 where no step helps."""
    before = dual.value(u, v)
    # Near the optimum the decrease is below the rounding of F, which we allow for.
    slack = 8 * torch.finfo(u.dtype).eps * before.abs()
    t = busy.to(u.dtype)
    for _ in range(BACKTRACKS):
        after = dual.value(u - t * du, v - dual.sets.to_rows(t) * dv)
        bad = busy & ~(after <= before - 1e-4 * t * slope + slack)
        if not bool(bad.any()):
            return t
        t = torch.where(bad, t / 4, t)
    return torch.where(bad, 0.0, t)
