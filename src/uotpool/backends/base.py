"""The base class of a backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from uotpool.backends.call import Call
from uotpool.solvers.base import Solver


class Backend(ABC):
    """One implementation of the solvers. `backends.BACKENDS` has an object of each."""

    name: ClassVar[str]
    reads_raw: ClassVar[bool] = False  # whether it reads half precision, and padding, directly
    is_trusted: ClassVar[bool] = True  # else `impl="auto"` asks `distrust`

    @abstractmethod
    def unavailable(self) -> str:
        """Return why this backend cannot be used on this machine; "" if it can."""

    @abstractmethod
    def why_not(self, X: Tensor, solver: Solver) -> str:
        """Return why this backend does not take this X and solver; "" if it does."""

    def distrust(self, X: Tensor) -> str:
        """Return why `impl="auto"` does not use this backend though it takes X; "" if it does."""
        return ""

    def is_relevant(self, X: Tensor) -> bool:
        """Whether `explain_impl` mentions this backend: a user may expect it for this X."""
        return True

    @abstractmethod
    def solve(self, call: Call, *, plan: bool = False) -> Tensor:
        """Return X pooled by its plan, (B, D), or the plan in the shape of X, 0 at absent rows."""
