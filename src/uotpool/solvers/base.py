"""The description of a solver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from uotpool.problem import SolverInput

ENTROPIC, QUADRATIC = "entropic", "quadratic"
REGULARIZERS = (ENTROPIC, QUADRATIC)
FORMULATIONS = ("exact", "paper")


@dataclass(frozen=True)
class Solver:
    """One algorithm: K unrolled modules from a problem to log P, in readable torch.

    Attributes:
        name: the name of the solver for users.
        regularizer: the R of its problem, one of `REGULARIZERS`.
        weights: names of its weights, in the order of the rows of `Problem.weights`.
        exact: returns log P of mass 1 after K >= 1 modules. Its fixed point is the optimum.
        published: the algorithm as printed in the paper, for reproduction.
    """

    name: str
    regularizer: str
    weights: tuple[str, ...]
    exact: Callable[[SolverInput], Tensor]
    published: Callable[[SolverInput], Tensor]

    @property
    def needs_rho(self) -> bool:
        return "rho" in self.weights

    def solve(self, problem: SolverInput, formulation: str) -> Tensor:
        """Return log P after K modules, in the shape of X, with finite filler at absent rows."""
        if problem.w.num_modules() == 0:
            return problem.start()
        return self.exact(problem) if formulation == "exact" else self.published(problem)
