"""The input of a solver: one transport problem per set of a batch."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from uotpool.sets import Sets

# `weight_of`, `by_parameter` and `scales_of` have twins in csrc/learned.cpp, these numbers in csrc/uotpool.h.
# Weights of the form SOFTPLUS stay above this: alpha0 and rho are divided by, and softplus reaches 0.
FLOOR = 1e-6
# Adam moves a parameter by about its learning rate per step. Scales, and weights that are learned through their
# logarithm, have to travel over orders of magnitude within a few hundred steps, so they are RATE times as fast.
RATE = 10.0
# A weight of the form LOG stays between 1 / LOG_LIMIT and LOG_LIMIT, so that no step makes it infinite.
LOG_LIMIT = 1e6
_LIMIT = math.log(LOG_LIMIT)

VALUE, SOFTPLUS, LOG = "value", "softplus", "log"  # forms: what a parameter is to its weight


def weight_of(raw: Tensor, form: str) -> Tensor:
    """Return the weight of a parameter, in at least float32.

    Args:
        raw: the parameter.
        form: VALUE: the weight itself. SOFTPLUS: softplus(raw) + FLOOR. LOG: exp(RATE * raw) within its limits.
    """
    if raw.dtype.itemsize < 4:
        raw = raw.float()
    if form == SOFTPLUS:
        return functional.softplus(raw).add_(FLOOR)  # in place: its derivative needs `raw` alone
    return (RATE * raw).clamp(-_LIMIT, _LIMIT).exp() if form == LOG else raw


def by_parameter(by_weight: Tensor, raw: Tensor, form: str) -> Tensor:
    """Return the derivative by a parameter from that by its weight: what autograd has for `weight_of`."""
    if form == SOFTPLUS:
        return torch.ops.aten.softplus_backward(by_weight, raw, 1.0, 20.0)  # torch's own constants
    if form == LOG:
        return by_weight * weight_of(raw, LOG) * RATE * ((RATE * raw).abs() <= _LIMIT)
    return by_weight


class LearnedWeights(NamedTuple):
    """Weights as the parameters that they are made of, for a backend that can take these itself.

    Attributes:
        raw: one parameter per weight of the solver, (K,) each, or (1,) if all modules share it, in the dtype
            and on the device of X.
        forms: what each is to its weight.
        K: number of modules.
    """

    raw: tuple[Tensor, ...]
    forms: tuple[str, ...]
    K: int

    def rows(self) -> Tensor:
        """Return the weights as `Problem.weights` has them."""
        # All of one form at once: on a GPU each step is a launch.
        made = {}
        for form in dict.fromkeys(self.forms):
            own = [r.expand(self.K) for r, f in zip(self.raw, self.forms, strict=True) if f == form]
            made[form] = weight_of(torch.stack(own), form)
        if len(made) == 1:
            return made[self.forms[0]]
        rows = {form: list(of_form.unbind()) for form, of_form in made.items()}
        return torch.stack([rows[form].pop(0) for form in self.forms])


class LearnedScale(NamedTuple):
    """Scales, RATE * raw, as the parameter that they are made of, for a backend that can take it itself.

    Attributes:
        raw: one number per feature, (D,), in the dtype and on the device of X.
    """

    raw: Tensor


def scales_of(scale: Tensor | LearnedScale | None) -> Tensor | None:
    """Return the scales, whatever they were given as."""
    return scale.raw * RATE if isinstance(scale, LearnedScale) else scale


class Weights(NamedTuple):
    """alpha0, alpha1, alpha2 and, for Bregman ADMM, rho: one (K,) tensor each."""

    alpha0: Tensor
    alpha1: Tensor
    alpha2: Tensor
    rho: Tensor | None = None

    def num_modules(self) -> int:
        """Return K. It is no property: torch.compile of torch 2.4 to 2.8 knows none of a named tuple."""
        return self.alpha0.shape[0]


class Problem(NamedTuple):
    """The sets of a batch with their priors and weights; `inputs` builds one from what a user passes.

    Attributes:
        X: samples as rows in the layout of `sets`, contiguous, at least float32. Absent rows hold
            zeros. But see `as_is`.
        sets: which rows belong to which set.
        log_p0: log prior over features, (D,) or (B, D); None: uniform.
        log_q0: log prior over samples, shape v of `sets`; None: uniform.
        weights: one row per weight of the solver, one column per module; or the parameters behind them.
        scale: s, one number, () or (1,), or one per feature, (D,), of any sign. The plan is that of s X, and X
            itself is pooled by this plan; or the parameter behind it. None: 1.
        as_is: whether X is as the user gave it, for a backend that reads it so: perhaps of half precision, and
            with anything in absent rows.
    """

    X: Tensor
    sets: Sets
    log_p0: Tensor | None
    log_q0: Tensor | None
    weights: Tensor | LearnedWeights
    scale: Tensor | LearnedScale | None = None
    as_is: bool = False

    def num_modules(self) -> int:
        """Return K."""
        weights = self.weights
        return weights.K if isinstance(weights, LearnedWeights) else weights.shape[1]

    def sizes(self, like: Tensor) -> Tensor:
        """Return the number of samples of each set as s of `sets`, in the dtype of `like`."""
        # X may be of half precision, in which large numbers are rounded.
        return self.sets.count(self.X.detach()[..., :1].to(like.dtype))

    def weight_rows(self) -> Tensor:
        """Return the weights as rows of one tensor, whatever they were given as."""
        weights = self.weights
        return weights.rows() if isinstance(weights, LearnedWeights) else weights

    def scales(self) -> Tensor | None:
        """Return the scales as `scales_of` does."""
        return scales_of(self.scale)

    def widened(self) -> Problem:
        """Return the problem with X in at least float32 and zeros in absent rows."""
        X = self.X if self.X.dtype.itemsize >= 4 else self.X.float()
        return self._replace(X=self.sets.fill_absent(X, 0.0), as_is=False)

    def scaled(self) -> Problem:
        """Return the problem with the same plan and the scale multiplied into X."""
        scales = self.scales()
        return self if scales is None else self._replace(X=scales * self.X, scale=None)

    def to_solve(self) -> SolverInput:
        """Return the problem in the shapes that the readable solvers compute with."""
        X, sets, log_p0, log_q0, *_ = self.scaled()
        return SolverInput(X, sets, *sets.log_priors(X, log_p0, log_q0), Weights(*self.weight_rows().unbind()))


class SolverInput(NamedTuple):
    """A problem with no defaults left: priors in the shapes of `sets`, weights by name.

    Attributes:
        X: samples as rows; absent rows hold finite filler.
        sets: which rows belong to which set.
        log_p0: shape u of `sets`.
        log_q0: shape v of `sets`.
        w: the weights.
    """

    X: Tensor
    sets: Sets
    log_p0: Tensor
    log_q0: Tensor
    w: Weights

    def double(self) -> SolverInput:
        """Return the problem in float64."""
        w = Weights(*[None if t is None else t.double() for t in self.w])  # type: ignore[arg-type]
        return SolverInput(self.X.double(), self.sets, self.log_p0.double(), self.log_q0.double(), w)

    def start(self) -> Tensor:
        """Return log P before the first module.

        It is the same for all solvers: mean pooling for uniform priors.
        """
        log_P = self.sets.to_rows(self.log_p0) + self.log_q0
        return log_P - self.sets.to_rows(self.sets.logsumexp_all(log_P))

    def zero_potentials(self) -> tuple[Tensor, Tensor]:
        """Return u = 0 and v = 0."""
        return torch.zeros_like(self.log_p0), torch.zeros_like(self.log_q0)
