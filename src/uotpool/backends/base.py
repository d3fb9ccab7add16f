"""The base class of a backend, and the options of a call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from torch import Tensor

from uotpool.problem import Problem
from uotpool.solvers import Solver

READOUTS = ("conditional", "sum", "authors")


class SolverOptions(NamedTuple):
    """How to solve a problem, apart from its numbers. `backends.solver_options` makes valid options.

    Attributes:
        solver: the algorithm.
        formulation: "exact", or "paper" for the algorithm as published.
        converged: whether to return the optimum itself instead of K modules.
        tol, max_iter: the limits of `converged`.
        impl: name of a backend, or "auto".
        readout: "conditional", "sum" for the same times the number of samples, or "authors" for what the
            published runs put out. A backend takes "sum" for "conditional": `backends.pool` multiplies.
    """

    solver: Solver
    formulation: str = "exact"
    converged: bool = False
    tol: float | None = None
    max_iter: int | None = None
    impl: str = "auto"
    readout: str = "conditional"


class Backend(ABC):
    """One implementation of the solvers. `backends.BACKENDS` has an object of each."""

    name: ClassVar[str]
    most_modules: ClassVar[float] = float("inf")  # the largest K that it takes
    reads_as_is: ClassVar[bool] = False  # whether X may be of half precision, and hold anything in absent rows

    @abstractmethod
    def unavailable(self) -> str:
        """Say why this backend cannot be used on this machine; "" if it can."""

    @abstractmethod
    def refuses(self, options: SolverOptions) -> str:
        """Say why this backend cannot solve in this way, whatever the numbers are; "" if it can."""

    @abstractmethod
    def refuses_input(self, X: Tensor) -> str:
        """Say what this backend expects of X, here and now, that this X is not; "" if it can take X."""

    def refuses_sets(self, X: Tensor, num_sets: int, options: SolverOptions) -> str:
        """Say which sets this backend expects for these options if not those of X; "" if it takes them."""
        return ""

    def concerns(self, X: Tensor) -> bool:
        """Say whether a user with this X may expect this backend, so that `explain_impl` mentions it."""
        return True

    @abstractmethod
    def plan(self, problem: Problem, options: SolverOptions) -> Tensor:
        """Return P in the shape of X, 0 at absent rows."""

    @abstractmethod
    def pool(self, problem: Problem, options: SolverOptions) -> Tensor:
        """Pool X by its plan, (B, D)."""
