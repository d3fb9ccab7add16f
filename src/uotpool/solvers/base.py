"""The base class of the solvers, and the form in which they get a problem."""

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
MAX_MAGNIFIED = 256.0  # the largest error of a potential in float32, in units of its rounding; as in csrc/


class StepCoefficients(NamedTuple):
    """alpha0, alpha1, alpha2 and, for Bregman ADMM, rho: one (K,) tensor each."""

    alpha0: Tensor
    alpha1: Tensor
    alpha2: Tensor
    rho: Tensor | None = None

    def num_steps(self) -> int:
        """Return K. torch.compile of torch 2.4 to 2.8 fails on properties of a named tuple."""
        return self.alpha0.shape[0]


class SolverInput(NamedTuple):
    """A problem with all defaults filled in, as the solvers get it.

    Attributes:
        X: samples as rows, times their scale; absent rows hold finite filler.
        sets: which rows belong to which set.
        log_p0: shape u of `sets`.
        log_q0: shape v of `sets`.
        c: the coefficients.
    """

    X: Tensor
    sets: Sets
    log_p0: Tensor
    log_q0: Tensor
    c: StepCoefficients

    def start(self) -> Tensor:
        """Return log P before the first step: mean pooling for uniform priors, for all solvers."""
        log_P = self.sets.to_rows(self.log_p0) + self.log_q0
        return log_P - self.sets.to_rows(self.sets.logsumexp_all(log_P))

    def double(self) -> SolverInput:
        """Return the problem in float64."""
        c = StepCoefficients(*[None if t is None else t.double() for t in self.c])  # type: ignore[arg-type]
        return SolverInput(self.X.double(), self.sets, self.log_p0.double(), self.log_q0.double(), c)

    def zero_potentials(self) -> tuple[Tensor, Tensor]:
        """Return u = 0 and v = 0."""
        return torch.zeros_like(self.log_p0), torch.zeros_like(self.log_q0)


@dataclass(frozen=True)
class Solver(ABC):
    """One algorithm with its options. Options are plain numbers, so solvers compare, hash and go into JSON."""

    # Without annotations, since annotated attributes of a dataclass are fields.
    regularizer = ENTROPIC  # the R of its problem
    output = "equation"  # "code": D sum_n X P, see `published`
    uses_rho = False
    is_exact = True  # whether its fixed point is the optimum
    kernel = ""  # what the fused kernels call it; "" where they have none
    K = 1  # number of unrolled steps; 1 for a solver that converges, whose coefficients have one value

    @property
    def converges(self) -> bool:
        """Whether `solve` iterates up to the optimum, so that each coefficient has one value."""
        return False

    @abstractmethod
    def solve(self, problem: SolverInput) -> Tensor:
        """Return log P after the steps (at least 1) in the shape of X, with finite filler at absent rows."""

    def units(self, alpha0: float, alpha1: float, alpha2: float, rho: float) -> tuple[float, float] | None:
        """Return the divisor of the exponents of a step, and the unit of the potentials that it hands on.

        None where the rounding of float32 is hardly magnified. csrc/ has the same.
        """
        return None

    def beyond_float32(self, steps: Iterable[Sequence[float]]) -> bool:
        """Whether a step divides potentials by a number that is too small for the rounding of float32.

        Args:
            steps: alpha0, alpha1, alpha2 and rho of each step; any number where there is no rho.
        """
        largest = 0.0
        for coefficients in steps:
            units = self.units(*coefficients)
            if units is None:
                return False
            divisor, unit = units
            if largest > MAX_MAGNIFIED * divisor:
                return True
            largest = max(largest, unit)
        return False

    def config(self) -> dict[str, Any]:
        """Return the name of the algorithm and its options, fit for JSON; `solvers.from_config` reads it."""
        return {"name": f"{'' if self.is_exact else 'published.'}{type(self).__name__}", **asdict(self)}


def check_steps(K: object) -> None:
    checks.count("K", K, 0, high=MAX_K)
