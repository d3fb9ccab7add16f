"""The base class of a backend, and the options of a call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from torch import Tensor

from uotpool.problem import Problem
from uotpool.solvers import Solver

READOUTS = ("conditional", "sum", "authors")
Pair = tuple[int, int]


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


class Windows(NamedTuple):
    """The windows of an image; each value is (height, width)."""

    kernel_size: Pair
    stride: Pair
    padding: Pair
    output_size: Pair


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
    def refuses_input(self, X: Tensor, axis: int = -1) -> str:
        """Say what this backend expects of X, here and now, that this X is not; "" if it can take X.

        Args:
            X: input.
            axis: the one of the features.
        """

    def distrusts(self, X: Tensor, axis: int = -1) -> str:
        """Say why `impl="auto"` does not take this backend, which would take X; "" if it does."""
        return ""

    def refuses_windows(self, channels: int, kernel_size: Pair, options: SolverOptions) -> str:
        """Say why windows of this size are gathered before they are solved; "" if a kernel takes them."""
        return "it has no kernel for windows"

    def concerns(self, X: Tensor) -> bool:
        """Say whether a user with this X may expect this backend, so that `explain_impl` mentions it."""
        return True

    @abstractmethod
    def plan(self, problem: Problem, options: SolverOptions) -> Tensor:
        """Return P in the shape of X, 0 at absent rows."""

    @abstractmethod
    def pool(self, problem: Problem, options: SolverOptions) -> Tensor:
        """Pool X by its plan, (B, D)."""

    def pool_windows(
        self, X: Tensor, weights: Tensor, scale: Tensor | None, windows: Windows, options: SolverOptions
    ) -> Tensor:
        """Pool the windows of images (B, C, H, W) without gathering them, where `refuses_windows` is "".

        Args:
            X: images.
            weights: as in `Problem`.
            scale: as in `Problem`.
            windows: the geometry of the windows.
            options: how to solve. Priors are uniform.
        """
        raise NotImplementedError
