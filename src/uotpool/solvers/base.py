"""What every solver is: a frozen dataclass of plain numbers, with `solve` from a problem to log P."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from uotpool import checks
from uotpool.sets import Sets

Regularizer = Literal["entropic", "quadratic"]
ENTROPIC: Regularizer = "entropic"
QUADRATIC: Regularizer = "quadratic"
REGULARIZERS = (ENTROPIC, QUADRATIC)
DEFAULT_K = 4
MAX_K = 2**20
MAX_MAGNIFIED = 256.0  # how many times its rounding a potential may be off by in float32; as in csrc


class Weights(NamedTuple):
    """alpha0, alpha1, alpha2 and, for Bregman ADMM, rho: one (K,) tensor each."""

    alpha0: Tensor
    alpha1: Tensor
    alpha2: Tensor
    rho: Tensor | None = None

    def num_steps(self) -> int:
        """Return K. It is no property: torch.compile of torch 2.4 to 2.8 knows none of a named tuple."""
        return self.alpha0.shape[0]


class SolverInput(NamedTuple):
    """A problem with no defaults left: priors in the shapes of `sets`, coefficients by name.

    Attributes:
        X: samples as rows, times their scale; absent rows hold finite filler.
        sets: which rows belong to which set.
        log_p0: shape u of `sets`.
        log_q0: shape v of `sets`.
        w: the coefficients.
    """

    X: Tensor
    sets: Sets
    log_p0: Tensor
    log_q0: Tensor
    w: Weights

    def start(self) -> Tensor:
        """Return log P before the first step: mean pooling for uniform priors, for all solvers."""
        log_P = self.sets.to_rows(self.log_p0) + self.log_q0
        return log_P - self.sets.to_rows(self.sets.logsumexp_all(log_P))

    def double(self) -> SolverInput:
        """Return the problem in float64."""
        w = Weights(*[None if t is None else t.double() for t in self.w])  # type: ignore[arg-type]
        return SolverInput(self.X.double(), self.sets, self.log_p0.double(), self.log_q0.double(), w)

    def zero_potentials(self) -> tuple[Tensor, Tensor]:
        """Return u = 0 and v = 0."""
        return torch.zeros_like(self.log_p0), torch.zeros_like(self.log_q0)


@dataclass(frozen=True)
class Solver(ABC):
    """One algorithm with its options. Options are plain numbers, so solvers compare, hash and go into JSON."""

    # Without annotations, as these would be fields, and those of a subclass keep the place of the first one.
    regularizer = ENTROPIC  # the R of its problem
    output = "equation"  # "code": D sum_n X P, see `published`
    uses_rho = False
    is_exact = True  # whether its fixed point is the optimum
    kernel = ""  # what the fused kernels call it; "" where they have none
    K = 1  # number of unrolled steps; 1 for a solver that converges, whose coefficients have one value

    @property
    def converges(self) -> bool:
        """Whether this returns the optimum itself, so that coefficients have one value each."""
        return False

    @abstractmethod
    def solve(self, problem: SolverInput) -> Tensor:
        """Return log P after the steps (at least 1) in the shape of X, with finite filler at absent rows."""

    def units(self, alpha0: float, alpha1: float, alpha2: float, rho: float) -> tuple[float, float] | None:
        """Return what a step divides its exponents by, and what the potentials that it leaves are multiples of.

        None where the rounding of float32 is never magnified by more than a few. csrc has the same.
        """
        return None

    def beyond_float32(self, steps: Iterable[Sequence[float]]) -> bool:
        """Whether a step divides what one before left by a number too small for the rounding of float32.

        Args:
            steps: alpha0, alpha1, alpha2 and rho (any number without one) of each step.
        """
        largest = 0.0
        for coefficients in steps:
            units = self.units(*coefficients)
            if units is None:
                return False
            divides, leaves = units
            if largest > MAX_MAGNIFIED * divides:
                return True
            largest = max(largest, leaves)
        return False

    def config(self) -> dict[str, Any]:
        """Return the name of the algorithm and its options, fit for JSON; `solvers.from_config` reads it."""
        return {"name": f"{'' if self.is_exact else 'published.'}{type(self).__name__}", **asdict(self)}


def check_steps(K: object) -> None:
    checks.count("K", K, 0, most=MAX_K)
