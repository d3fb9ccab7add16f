"""The arguments of a backend: checked tensors and numbers, from a layer or a `Problem`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from uotpool.coefficients import Coefficients
from uotpool.sets import Sets
from uotpool.solvers.base import Solver, SolverInput, StepCoefficients


class Call(NamedTuple):
    """The sets of a batch with priors, coefficients and the solver. Nothing here is checked again.

    Attributes:
        X: samples as rows in the layout of `sets`, contiguous, at least float32, 0 in absent rows; see `raw`.
        sets: which rows belong to which set.
        log_p0: log prior over features, (D,) or (B, D); None: uniform.
        log_q0: log prior over samples, shape v of `sets`; None: uniform.
        coefficients: the plan is that of `scale` X, and X itself is pooled by it.
        solver: the algorithm.
        raw: whether X may be of half precision and hold anything in absent rows, for a backend that reads
            both.
    """

    X: Tensor
    sets: Sets
    log_p0: Tensor | None
    log_q0: Tensor | None
    coefficients: Coefficients
    solver: Solver
    raw: bool = False

    def dtype(self) -> torch.dtype:
        """Return the dtype of the computation, at least float32."""
        return self.X.dtype if self.X.dtype.itemsize >= 4 else torch.float32

    def sizes(self, like: Tensor) -> Tensor:
        """Return the number of samples of each set as s of `sets`, in the dtype of `like`."""
        # X may be of half precision, in which large numbers are rounded.
        return self.sets.count(self.X.detach()[..., :1].to(like.dtype))

    def prepared(self) -> Call:
        """Return the call with X in at least float32 and zeros in absent rows."""
        if not self.raw:
            return self
        return self._replace(X=self.sets.fill_absent(self.X.to(self.dtype()), 0.0), raw=False)

    def scaled_X(self) -> Tensor:
        """Return scale * X, from which the plan is computed. X is prepared."""
        if self.coefficients.scale is None:
            return self.X
        return self.coefficients.values("scale", self.X) * self.X

    def to_solve(self) -> SolverInput:
        """Return the problem as the solvers in plain torch get it. X is prepared."""
        X, c, K = self.scaled_X(), self.coefficients, max(self.solver.K, 1)
        names = ("alpha0", "alpha1", "alpha2", *(() if c.rho is None else ("rho",)))
        steps = StepCoefficients(*[c.values(name, self.X).expand(K) for name in names])
        return SolverInput(X, self.sets, *self.sets.log_priors(X, self.log_p0, self.log_q0), steps)
