"""The algorithms in plain torch: one file and one small dataclass each, for any layout and any derivative."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from uotpool import checks
from uotpool.solvers import published
from uotpool.solvers.badmm import BregmanADMM
from uotpool.solvers.base import REGULARIZERS, Solver
from uotpool.solvers.newton import ConvergenceWarning, Newton
from uotpool.solvers.sinkhorn import Sinkhorn

# Short names, each with the defaults of its class.
BY_NAME: dict[str, Solver] = {
    "sinkhorn": Sinkhorn(),
    "badmm-e": BregmanADMM("entropic"),
    "badmm-q": BregmanADMM("quadratic"),
}
_KINDS: tuple[type[Solver], ...] = (Sinkhorn, BregmanADMM, Newton, published.Sinkhorn, published.BregmanADMM)

__all__ = [
    "BY_NAME",
    "REGULARIZERS",
    "BregmanADMM",
    "ConvergenceWarning",
    "Newton",
    "Sinkhorn",
    "Solver",
    "as_solver",
    "from_config",
    "published",
]


def as_solver(solver: Solver | str) -> Solver:
    """Return the solver of a short name, or the solver itself."""
    if isinstance(solver, Solver):
        return solver
    if not isinstance(solver, str) or solver not in BY_NAME:
        kinds = "a solver such as Sinkhorn(K=4), BregmanADMM() or Newton()"
        checks.fail("solver", f"one of {', '.join(map(repr, BY_NAME))}, or {kinds}", solver)
    return BY_NAME[solver]


def from_config(config: Mapping[str, Any] | str) -> Solver:
    """Return the solver that `Solver.config` described, or that has this short name."""
    if not isinstance(config, Mapping):
        return as_solver(config)
    kinds = {kind.__name__ if kind.is_exact else f"published.{kind.__name__}": kind for kind in _KINDS}
    options = dict(config)
    name = options.pop("name", None)
    checks.one_of("solver", name, tuple(kinds))
    return kinds[name](**options)
