"""Choose the implementation that solves a problem.

Each backend says whether it takes a call, and if not, why. The first one that takes the call solves it.
"""

from __future__ import annotations

from torch import Tensor

from uotpool import checks
from uotpool.backends.base import Backend
from uotpool.backends.call import Call
from uotpool.backends.cpu.backend import CPU
from uotpool.backends.ops import KERNELS
from uotpool.backends.reference import REFERENCE
from uotpool.backends.triton.backend import TRITON
from uotpool.solvers import Solver, as_solver

# The fastest first; each of the fused ones is for other devices. The reference takes every call.
BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (CPU, TRITON, REFERENCE)}
IMPLEMENTATIONS = ("auto", *BACKENDS)
KERNELS.update({backend.name: backend for backend in (CPU, TRITON)})

__all__ = [
    "BACKENDS",
    "IMPLEMENTATIONS",
    "Backend",
    "Call",
    "available",
    "check_impl",
    "choose",
    "explain_impl",
]


def available() -> dict[str, str]:
    """Return every backend with "" if it can be used here, else with the reason why not."""
    return {name: backend.unavailable() for name, backend in BACKENDS.items()}


def check_impl(impl: str) -> None:
    """Refuse the name of a backend that cannot be used on this machine."""
    checks.one_of("impl", impl, IMPLEMENTATIONS)
    if impl != "auto" and (reason := BACKENDS[impl].unavailable()):
        raise ValueError(f"impl: {impl!r} cannot be used: {reason}; use impl='auto' or 'reference'")


def choose(X: Tensor, solver: Solver, impl: str = "auto") -> Backend:
    """Return the backend for this call; raise if `impl` names one that does not take it."""
    if impl == "auto":
        for backend in BACKENDS.values():
            if not backend.why_not(X, solver) and (backend.is_trusted or not backend.distrust(X)):
                return backend
    check_impl(impl)
    if reason := BACKENDS[impl].why_not(X, solver):
        raise ValueError(f"impl: expected a backend that takes this call, got {impl!r}: it {reason}")
    return BACKENDS[impl]


def explain_impl(X: Tensor, solver: Solver | str = "sinkhorn") -> str:
    """Return the backend that `impl="auto"` takes for such a call, and why faster ones do not take it.

    Args:
        X: input; its device, dtype and number of features decide.
        solver: as in `Problem.pool`.
    """
    checks.tensor("X", X, "a tensor")
    solver = as_solver(solver)
    chosen = choose(X, solver)
    reasons = []
    for backend in BACKENDS.values():
        if backend is chosen:
            break
        if backend.is_relevant(X):
            reasons.append(f"{backend.name} {backend.why_not(X, solver) or backend.distrust(X)}")
    return "; ".join([chosen.name, *reasons])
