"""The readable implementation in plain torch: one file per algorithm, any layout, any number of derivatives."""

from __future__ import annotations

from uotpool.solvers import badmm, sinkhorn
from uotpool.solvers.base import FORMULATIONS, REGULARIZERS, Solver

SOLVERS = {solver.name: solver for solver in (sinkhorn.SOLVER, badmm.ENTROPIC_SOLVER, badmm.QUADRATIC_SOLVER)}

__all__ = ["FORMULATIONS", "REGULARIZERS", "SOLVERS", "Solver"]
