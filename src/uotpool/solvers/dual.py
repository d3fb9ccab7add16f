"""The dual of the problem for both regularizers: value, gradient and curvature.

The dual is a smooth convex function of the two potentials, with Y = X + u + v:

    F(u, v) = conj(Y) + alpha1 log sum_d p0 exp(-u / alpha1) + alpha2 log sum_n q0 exp(-v / alpha2)

    entropic   conj(Y) = alpha0 log sum exp(Y / alpha0),                Q = softmax(Y / alpha0)
    quadratic  conj(Y) = max over the simplex of <Y, Q> - alpha0 |Q|^2, Q = projection of Y / (2 alpha0)

with gradient (marg_D(Q) - p_hat, marg_N(Q) - q_hat), where p_hat = softmax(log p0 - u / alpha1).
The curvature of conj is kappa (diag(w) - w w^T / sum w), with w = Q, kappa = 1 / alpha0 (entropic)
or w = [Q > 0], kappa = 1 / (2 alpha0) (quadratic, right almost everywhere).
"""

from __future__ import annotations

import torch
from torch import Tensor

from uotpool.sets import logsumexp_d
from uotpool.solvers.base import QUADRATIC, SolverInput
from uotpool.solvers.certificate import gap
from uotpool.solvers.simplex import project
from uotpool.solvers.sinkhorn import log_plan

Potentials = tuple[Tensor, Tensor]


class Dual:
    """The dual of a problem with one value per coefficient."""

    def __init__(self, problem: SolverInput, regularizer: str) -> None:
        self.problem, self.regularizer = problem, regularizer
        self.X, self.sets, self.log_p0, self.log_q0, c = problem
        self.alpha0, self.alpha1, self.alpha2 = c.alpha0[0], c.alpha1[0], c.alpha2[0]
        self.quadratic = regularizer == QUADRATIC

    def with_alpha0(self, factor: float) -> Dual:
        """Return the dual of an easier problem, in which alpha0 is multiplied by the factor."""
        c = self.problem.c
        return Dual(self.problem._replace(c=c._replace(alpha0=factor * c.alpha0)), self.regularizer)

    def Y(self, u: Tensor, v: Tensor) -> Tensor:
        return self.X + self.sets.to_rows(u) + v

    def plan(self, u: Tensor, v: Tensor) -> Tensor:
        """Return the log of the plan that the potentials give."""
        if not self.quadratic:
            return log_plan(self.X, self.sets, u, v, self.alpha0)
        Y = self.Y(u, v)
        Q = project(Y / (2 * self.alpha0), self.sets)
        # A marginal may be smaller than the rounding of Y, or zero where its coefficient is. We then put
        # it at the largest entry of its row or column, where the exact plan has it, so that p(n|d)
        # and the gap stay defined.
        Y = Y.detach()
        tiny = torch.finfo(Q.dtype).tiny
        target_d = torch.where(self.alpha1 > 0, self.p_hat(u), 0.0).clamp_min(tiny)
        target_n = torch.where(self.alpha2 > 0, self.q_hat(v), 0.0).clamp_min(tiny)
        missing_d = (self.sets.sum_n(Q) == 0).to(Q.dtype) * target_d
        missing_n = (Q.sum(-1, keepdim=True) == 0).to(Q.dtype) * target_n
        top_d = (Y >= self.sets.to_rows(self.sets.max_n(Y))).to(Q.dtype)
        top_n = (Y >= Y.amax(-1, keepdim=True)).to(Q.dtype)
        Q = Q + self.sets.to_rows(missing_d) * top_d + missing_n * top_n
        Q = Q / self.sets.to_rows(self.sets.sum_all(Q).clamp_min(tiny))
        return torch.where(Q > 0, Q.clamp_min(tiny).log(), -torch.inf)

    def marginal_slopes(self, u: Tensor, v: Tensor) -> Potentials:
        """Return -log(marg_D(Q) / p0) and -log(marg_N(Q) / q0): the potentials divided by alpha1 and alpha2."""
        log_Q = self.sets.fill_absent(self.plan(u, v), -torch.inf)
        slope_u = self.log_p0 - self.sets.logsumexp_n(log_Q)
        slope_v = self.log_q0 - log_Q.logsumexp(-1, keepdim=True)
        return slope_u.nan_to_num(0.0, 0.0, 0.0), slope_v.nan_to_num(0.0, 0.0, 0.0)

    def gap(self, log_P: Tensor) -> Tensor:
        return gap(self.problem, log_P, self.regularizer)

    def value(self, u: Tensor, v: Tensor) -> Tensor:
        """Return F(u, v) of each set, as s."""
        Y = self.Y(u, v)
        top = self.sets.max_n(Y.amax(-1, keepdim=True))
        Y = Y - self.sets.to_rows(top)
        if self.quadratic:
            Q = project(Y / (2 * self.alpha0), self.sets)
            Y = torch.where(Q > 0, Y, 0.0)
            conj = self.sets.sum_all(Q * (Y - self.alpha0 * Q))
        else:
            conj = self.alpha0 * self.sets.logsumexp_all(Y / self.alpha0)
        prior_p = self.alpha1 * logsumexp_d(self.log_p_hat(u))
        prior_q = self.alpha2 * self.sets.logsumexp_n(self.log_q_hat(v))
        return top + conj + prior_p + prior_q

    def log_p_hat(self, u: Tensor) -> Tensor:
        """Return the unnormalised log of the feature marginal that u asks for. u = 0 where alpha1 = 0."""
        return self.log_p0 - u / self.alpha1.clamp_min(torch.finfo(u.dtype).tiny)

    def log_q_hat(self, v: Tensor) -> Tensor:
        return self.log_q0 - v / self.alpha2.clamp_min(torch.finfo(v.dtype).tiny)

    def p_hat(self, u: Tensor) -> Tensor:
        return self.log_p_hat(u).softmax(-1)

    def q_hat(self, v: Tensor) -> Tensor:
        return self.sets.softmax_n(self.log_q_hat(v))

    def Q(self, u: Tensor, v: Tensor) -> Tensor:
        """Return the gradient of conj."""
        if self.quadratic:
            return project(self.Y(u, v) / (2 * self.alpha0), self.sets)
        # Absent rows are filled before the exponential: that of the filler may be infinite, and 0
        # times it is NaN in the backward pass.
        return self.sets.fill_absent(self.plan(u, v), -torch.inf).exp()

    def gradient(self, u: Tensor, v: Tensor) -> Potentials:
        """Return the gradient of F, 0 for a potential whose coefficient is 0.

        It is differentiable in X, the priors and the coefficients.
        """
        Q = self.Q(u, v)
        gu = self.sets.sum_n(Q) - self.p_hat(u)
        gv = self.sets.fill_absent(Q.sum(-1, keepdim=True) - self.q_hat(v), 0.0)
        return torch.where(self.alpha1 > 0, gu, 0.0), torch.where(self.alpha2 > 0, gv, 0.0)


class Curvature:
    """The Hessian of F at (u, v), scaled by its own diagonal so that alpha1 = 0 needs no special case."""

    def __init__(self, dual: Dual, u: Tensor, v: Tensor, damping: Tensor | None = None) -> None:
        self.sets = sets = dual.sets
        Q = dual.Q(u, v)
        if dual.quadratic:
            self.w, self.kappa = (Q > 0).to(Q.dtype), 1 / (2 * dual.alpha0)
        else:
            self.w, self.kappa = Q, 1 / dual.alpha0
        self.w_D, self.w_N = sets.sum_n(self.w), sets.fill_absent(self.w.sum(-1, keepdim=True), 0.0)
        self.w_all = sets.sum_n(self.w_N).clamp_min(torch.finfo(Q.dtype).tiny)
        # A damping adds curvature kappa * damping to every potential.
        self.diag_D = self.w_D if damping is None else self.w_D + damping
        self.diag_N = self.w_N if damping is None else self.w_N + sets.to_rows(damping)
        self.p_hat, self.q_hat = dual.p_hat(u), dual.q_hat(v)
        self.inv1, self.inv2 = _inverse(dual.alpha1), _inverse(dual.alpha2)
        # The square roots of the inverse diagonal are 0 where a potential is fixed (coefficient 0, or an
        # absent row).
        self.scale_u = _rsqrt(self.kappa * self.diag_D + self.p_hat * self.inv1) * (dual.alpha1 > 0)
        self.scale_v = _rsqrt(self.kappa * self.diag_N + self.q_hat * self.inv2) * (dual.alpha2 > 0)
        if sets.present is not None:
            self.scale_v = self.scale_v * sets.present

    def _times(self, x: Tensor, y: Tensor) -> Potentials:
        """Return the scaled Hessian times (x, y)."""
        sets = self.sets
        du, dv = self.scale_u * x, self.scale_v * y
        mean = ((self.w_D * du).sum(-1, keepdim=True) + sets.sum_n(self.w_N * dv)) / self.w_all
        u = self.kappa * (self.diag_D * du - self.w_D * mean + sets.sum_n(self.w * dv))
        u = u + self.inv1 * self.p_hat * (du - (self.p_hat * du).sum(-1, keepdim=True))
        v = self.diag_N * dv - self.w_N * sets.to_rows(mean) + (self.w * sets.to_rows(du)).sum(-1, keepdim=True)
        v = self.kappa * v + self.inv2 * self.q_hat * (dv - sets.to_rows(sets.sum_n(self.q_hat * dv)))
        return self.scale_u * u, self.scale_v * v

    def solve(self, gu: Tensor, gv: Tensor, rtol: float, max_iter: int) -> Potentials:
        """Solve Hessian (u, v) = (gu, gv) by conjugate gradients, every set at its own pace.

        A constant in u or in v is in the kernel of the Hessian and orthogonal to every gradient
        that comes here, so the system is consistent; conjugate gradients never leave its range.
        """
        sets = self.sets
        ru, rv = self.scale_u * gu, self.scale_v * gv
        xu, xv = torch.zeros_like(ru), torch.zeros_like(rv)
        du, dv = ru, rv
        norm = self._dot(ru, rv, ru, rv)
        target = rtol * rtol * norm
        tiny = torch.finfo(norm.dtype).tiny
        for _ in range(max_iter):
            busy = norm > target
            if not bool(busy.any()):
                break
            hu, hv = self._times(du, dv)
            curvature = self._dot(du, dv, hu, hv)
            busy = busy & (curvature > 0)
            step = torch.where(busy, norm / curvature.clamp_min(tiny), 0.0)
            xu, xv = xu + step * du, xv + sets.to_rows(step) * dv
            ru, rv = ru - step * hu, rv - sets.to_rows(step) * hv
            last, norm = norm, self._dot(ru, rv, ru, rv)
            norm = torch.where(busy, norm, 0.0)
            ratio = torch.where(busy, norm / last.clamp_min(tiny), 0.0)
            du, dv = ru + ratio * du, rv + sets.to_rows(ratio) * dv
        return self.scale_u * xu, self.scale_v * xv

    def _dot(self, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
        return (a * c).sum(-1, keepdim=True) + self.sets.sum_n(b * d)


def _inverse(alpha: Tensor) -> Tensor:
    return torch.where(alpha > 0, 1 / torch.where(alpha > 0, alpha, 1.0), 0.0)


def _rsqrt(diagonal: Tensor) -> Tensor:
    """Return diagonal^(-1/2), 0 where the diagonal has underflowed, as there is no mass to move."""
    tiny = torch.finfo(diagonal.dtype).tiny
    return torch.where(diagonal > tiny, diagonal.clamp_min(tiny).rsqrt(), 0.0)
