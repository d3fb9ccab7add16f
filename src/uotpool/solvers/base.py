"""The description of a solver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from uotpool.problem import SolverInput

ENTROPIC, QUADRATIC = "entropic", "quadratic"
REGULARIZERS = (ENTROPIC, QUADRATIC)
FORMULATIONS = ("exact", "paper")
MOST_MAGNIFIED = 256.0  # how many times its rounding a potential may be off by in float32; as in csrc


@dataclass(frozen=True)
class Solver:
    """One algorithm: K unrolled modules from a problem to log P, in readable torch.

    Attributes:
        name: the name of the solver for users.
        regularizer: the R of its problem, one of `REGULARIZERS`.
        weights: names of its weights, in the order of the rows of `Problem.weights`.
        exact: returns log P of mass 1 after K >= 1 modules. Its fixed point is the optimum.
        published: the algorithm as printed in the paper, for reproduction.
        units: from the weights of a module to the number that its exponents are divided by, and the one that
            the potentials which it leaves to later modules are multiples of. csrc has the same.
    """

    name: str
    regularizer: str
    weights: tuple[str, ...]
    exact: Callable[[SolverInput], Tensor]
    published: Callable[[SolverInput], Tensor]
    units: Callable[..., tuple[float, float]]

    @property
    def needs_rho(self) -> bool:
        return "rho" in self.weights

    def solve(self, problem: SolverInput, formulation: str) -> Tensor:
        """Return log P after K modules, in the shape of X, with finite filler at absent rows."""
        if problem.w.num_modules() == 0:
            return problem.start()
        return self.exact(problem) if formulation == "exact" else self.published(problem)

    def beyond_float32(self, weights: Sequence[Sequence[float]]) -> bool:
        """Say whether a module divides what one before left by a number too small for the rounding of float32.

        Args:
            weights: one row per weight, one column per module.
        """
        most = 0.0
        for module in zip(*weights, strict=True):
            divides, leaves = self.units(*module)
            if most > MOST_MAGNIFIED * divides:
                return True
            most = max(most, leaves)
        return False
