"""Which implementation solves a problem, and the call to it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from uotpool import checks
from uotpool.kernels import library, ops, windows
from uotpool.layout import Sets, log_priors_as
from uotpool.solvers import REGULARIZER, converged, solve
from uotpool.solvers.weights import Weights

SOLVERS = tuple(REGULARIZER)
REGULARIZERS = tuple(dict.fromkeys(REGULARIZER.values()))
FORMULATIONS = ("exact", "paper")
READOUTS = ("conditional", "authors")
IMPLEMENTATIONS = ("auto", "reference", "cpu")


class Rule(NamedTuple):
    """How to solve: everything but the numbers."""

    solver: str
    formulation: str = "exact"
    converged: bool = False
    tol: float | None = None
    max_iter: int | None = None
    impl: str = "auto"
    readout: str = "conditional"

    def validate(self) -> None:
        checks.one_of("solver", self.solver, SOLVERS)
        checks.one_of("formulation", self.formulation, FORMULATIONS)
        checks.one_of("impl", self.impl, IMPLEMENTATIONS)
        _present(self.impl)
        checks.one_of("readout", self.readout, READOUTS)
        if self.readout == "authors" and self.formulation != "paper":
            raise ValueError(
                'readout: "authors" (what the published runs put out) goes with formulation="paper" only, '
                f"got formulation={self.formulation!r}"
            )
        if self.converged and self.formulation == "paper":
            raise ValueError(
                'K: "converged" goes with formulation="exact" only (the published iterations do not lead to '
                f"the optimum), got formulation={self.formulation!r}"
            )
        if self.impl == "cpu" and (self.converged or self.formulation != "exact"):
            setting = 'K="converged"' if self.converged else f"formulation={self.formulation!r}"
            raise ValueError(
                f'impl: "cpu" has the K modules of formulation="exact" only, got {setting}; '
                'use "auto" or "reference"'
            )
        for name, value in (("tol", self.tol), ("max_iter", self.max_iter)):
            if value is not None and not self.converged:
                checks.fail(name, 'None unless K="converged"', value)
        if self.tol is not None:
            checks.number("tol", self.tol, positive=True)
        if self.max_iter is not None:
            checks.count("max_iter", self.max_iter, 1)


def available() -> dict[str, str]:
    """Every implementation with "" if it can be used here, else the reason why not."""
    return {"reference": "", "cpu": library.missing()}


def resolve_impl(X: Tensor, solver: str, impl: str = "auto") -> str:
    """The implementation that a call with this X runs.

    The fused kernels, "cpu", are for the K modules of the exact formulation. Everything else always runs in the
    reference: `formulation="paper"`, `K="converged"`, K = 0, what asks for more than first derivatives in
    reverse (`torch.func`, forward mode), `torch.jit.trace` and ONNX export.

    Args:
        X: input; its device decides.
        solver: "sinkhorn", "badmm-e" or "badmm-q".
        impl: "auto" takes the fastest that is there and may fall back to "reference"; a named one that is
            missing raises and says why.
    """
    checks.tensor("X", X, "a tensor")
    checks.one_of("solver", solver, SOLVERS)
    checks.one_of("impl", impl, IMPLEMENTATIONS)
    _present(impl)
    if impl == "auto":
        return "cpu" if not library.missing() and ops.handles(X) else "reference"
    if impl == "cpu" and X.device.type != "cpu":
        checks.fail("X", 'a tensor on the CPU for impl="cpu"', X)
    return impl


def _present(impl: str) -> None:
    missing = available().get(impl, "")
    if missing:
        raise ValueError(f"impl: {impl!r} cannot be used: {missing}; use impl='auto' or 'reference'")


def _fused(X: Tensor, weights: Tensor, rule: Rule) -> bool:
    """Whether the CPU kernels solve this; raises if they were asked for and cannot."""
    if rule.impl == "reference" or rule.converged or rule.formulation != "exact":
        return False
    if not 1 <= weights.shape[1] <= ops.MOST_MODULES:
        return False
    if rule.impl == "cpu":
        if not ops.handles(X):
            where = "outside torch.func, forward-mode AD, torch.jit.trace and ONNX export"
            checks.fail("X", f'for impl="cpu" a tensor on the CPU {where}', X)
        return True
    return not library.missing() and ops.handles(X)


def pool_windows(
    X: Tensor, weights: Tensor, rule: Rule, scale: Tensor | None, *geometry: tuple[int, int]
) -> Tensor | None:
    """The windows of images (B, C, H, W) pooled by the kernel for them; None where there is none.

    Args:
        X: images.
        weights: as from `inputs.resolve_weights`.
        rule: how to solve; Sinkhorn alone has such a kernel.
        scale: as in `pool`.
        *geometry: kernel_size, stride, padding and output_size, as of `kernels.windows.pool`.
    """
    if rule.solver != "sinkhorn" or not _fused(X, weights, rule):
        return None
    return windows.pool(X, weights, scale, *geometry)


def log_plan(
    X: Tensor, sets: Sets, log_p0: Tensor | None, log_q0: Tensor | None, weights: Tensor, rule: Rule
) -> Tensor:
    """The reference: log P in the shape of X, with finite filler at absent rows."""
    w = Weights(*weights.unbind())
    log_p0, log_q0 = log_priors_as(X, sets, log_p0, log_q0)
    if rule.converged:
        quadratic = REGULARIZER[rule.solver] == "quadratic"
        # Its loops end when the values say so, which no graph can hold. Not as a decorator: that would import
        # the compiler with the package.
        run = torch.compiler.disable(converged.solve) if torch.compiler.is_compiling() else converged.solve
        return run(X, sets, log_p0, log_q0, w, quadratic=quadratic, tol=rule.tol, max_iter=rule.max_iter)
    return solve(X, sets, log_p0, log_q0, w, rule.solver, rule.formulation)


# An entry of X that is not finite makes all of its set NaN, as in the kernels; the algorithms would just leave
# -inf out. What comes of the reference is multiplied by 1 for each set, or by NaN: that spoils derivatives too.


def plan(
    X: Tensor,
    sets: Sets,
    log_p0: Tensor | None,
    log_q0: Tensor | None,
    weights: Tensor,
    rule: Rule,
    scale: Tensor | None = None,
) -> Tensor:
    """P in the shape of X, of X or of scale * X.

    Priors and weights are as from `inputs.log_priors` and `inputs.resolve_weights`.
    """
    X = X if scale is None else scale * X
    if _fused(X, weights, rule):
        return ops.solve(X, sets, log_p0, log_q0, weights, rule.solver, plan=True)
    given = X.detach()
    one = 1.0 + sets.sum_n(0.0 * given.amax(-1, keepdim=True) + 0.0 * given.amin(-1, keepdim=True))  # s
    log_P = log_plan(X, sets, log_p0, log_q0, weights, rule) * sets.spread(one)
    return sets.hide(log_P, -torch.inf).exp()


def pool(
    X: Tensor,
    sets: Sets,
    log_p0: Tensor | None,
    log_q0: Tensor | None,
    weights: Tensor,
    rule: Rule,
    scale: Tensor | None = None,
) -> Tensor:
    """(B, D): X pooled by its plan, or by that of scale * X."""
    if _fused(X, weights, rule):
        if scale is None:
            return ops.solve(X, sets, log_p0, log_q0, weights, rule.solver)
        if not torch.compiler.is_compiling():
            return _pool_scaled(X, sets, log_p0, log_q0, weights, rule, scale)
    log_P = log_plan(X if scale is None else scale * X, sets, log_p0, log_q0, weights, rule)
    if rule.readout == "authors":
        share = X.shape[-1] * sets.hide(log_P, -torch.inf).exp()
    else:
        share = sets.softmax_n(log_P)  # eq. 4, from log P up to a constant for each feature
    y = sets.squeeze(sets.sum_n(X * share))  # of such a feature NaN already: -inf has a share of 0
    return y * (1.0 + (0.0 * y.detach()).sum(-1, keepdim=True))


def _pool_scaled(
    X: Tensor,
    sets: Sets,
    log_p0: Tensor | None,
    log_q0: Tensor | None,
    weights: Tensor,
    rule: Rule,
    scale: Tensor,
) -> Tensor:
    """X pooled by the plan of scale * X: the kernels pool what the plan is of, so they only give the plan.

    A set in which the mass of a feature is lost to underflow is solved again in the log domain.
    """
    P = plan(X, sets, log_p0, log_q0, weights, rule, scale)
    mass = sets.sum_n(P)  # u
    least = torch.finfo(X.dtype).tiny / torch.finfo(X.dtype).eps  # above, the shares have all their digits
    lost = ~(mass.detach() > least).all(-1, keepdim=True)  # s; also a set that is empty, or has NaN
    y = sets.squeeze(sets.sum_n(X * P) / torch.where(lost, 1.0, mass))
    if not bool(lost.any()):
        return y
    again = pool(X, sets, log_p0, log_q0, weights, rule._replace(impl="reference"), scale)
    return torch.where(sets.squeeze(lost), again, y)
