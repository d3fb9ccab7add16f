"""What the check of a case found, and how all families compare the kernels with the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tests import tolerances as tol

WEIGHTS = ("alpha0", "alpha1", "alpha2", "rho", "weights")
UNITS = (3.0, 5.0)  # a float32 number times one of these is a float64 number without rounding
Results = dict[str, Tensor]


@dataclass
class Found:
    wrong: list[str] = field(default_factory=list)
    compared: int = 0
    skipped: int = 0  # where rounding may be off by so much that nothing could fail

    def compare(self, name: str, error: float, bound: float) -> None:
        """Compare an error in units of the result's natural scale; a bound of that size would say nothing."""
        if bound > tol.FUZZ_CAP:
            self.skipped += 1
            return
        self.compared += 1
        if not error <= bound:
            self.wrong.append(f"{name}: off by {error:.1e} of its scale, at most {bound:.1e} is allowed")

    def compare_all(
        self,
        dtype: torch.dtype,
        results: dict[str, Results],
        in_units: Callable[[float], Results],
        errors: Callable[[Results, Results], dict[str, float]],
        exponent: float,
    ) -> None:
        """Compare all results of the kernels with the reference in float64.

        Some weights magnify rounding without bound. In other units the problem is the same and only
        rounding differs, so that the difference shows how much a computation magnifies it. In float32
        more is lost than float64 can foretell.

        Args:
            dtype: the precision of the results.
            results: those of "cpu" and of "reference".
            in_units: the reference in float64 with X and all weights times a unit, in units of 1.
            errors: the errors of results in units of their natural scales.
            exponent: as in `bound`.
        """

        def worst(got: Results) -> float:
            return max(errors(got, truth).values(), default=0.0)

        truth = in_units(1.0)
        eps = torch.finfo(dtype).eps
        magnified = max(worst(in_units(unit)) for unit in UNITS) / torch.finfo(torch.float64).eps
        if dtype == torch.float32:
            magnified = max(magnified, worst(results["reference"]) / eps)
        for name, error in errors(results["cpu"], truth).items():
            self.compare(name, error, bound(name, eps, magnified, exponent))


def bound(name: str, eps: float, magnified: float, exponent: float) -> float:
    """Return the largest error that is allowed in a result, in units of its natural scale.

    Args:
        name: the name of the result.
        eps: the rounding of a number.
        magnified: by how many such roundings the reference is off.
        exponent: the largest exponent. It is rounded like any number, and its error is one of the plan.
    """
    times = tol.FUZZ_TIMES_WEIGHTS if name in WEIGHTS else tol.FUZZ_TIMES
    return eps * max(times * magnified, tol.FUZZ, tol.FUZZ_EXPONENT * exponent)
