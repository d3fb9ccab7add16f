"""What the check of a case found, and the bound that all families compare by."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests import tolerances as tol

WEIGHTS = ("alpha0", "alpha1", "alpha2", "rho", "weights")


@dataclass
class Found:
    wrong: list[str] = field(default_factory=list)
    compared: int = 0
    skipped: int = 0  # where rounding may be off by so much that nothing could fail

    def compare(self, name: str, error: float, bound: float) -> None:
        """An error in units of the result's natural scale; a bound of the size of that scale says nothing."""
        if bound > tol.FUZZ_CAP:
            self.skipped += 1
            return
        self.compared += 1
        if not error <= bound:
            self.wrong.append(f"{name}: off by {error:.1e} of its scale, at most {bound:.1e} is allowed")


def bound(name: str, eps: float, magnified: float, exponent: float) -> float:
    """Largest error of a result in units of its natural scale.

    Args:
        name: of the result.
        eps: rounding of a number.
        magnified: how many of those the reference is off by.
        exponent: the largest, which is rounded as any number, and whose error is one of the plan.
    """
    times = tol.FUZZ_TIMES_WEIGHTS if name in WEIGHTS else tol.FUZZ_TIMES
    return eps * max(times * magnified, tol.FUZZ, tol.FUZZ_EXPONENT * exponent)
