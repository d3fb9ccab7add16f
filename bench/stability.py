"""Mass of the plan and NaN over weights of 1e-5 .. 1e4, float32, K = 4: the paper's Figure 2b."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from uotpool_experiments.figures.stability import OFF, UNIT
from uotpool_experiments.solvers import FORMULATIONS, SOLVERS

from bench.problems import problem
from bench.rows import PART, Finding
from bench.session import Session
from tests.spelling import uot_plan, uot_pool

SIZE = (1, 10, 5)  # the paper's
SEED = 1
K = 4
RHO = 1.0
DECADES = tuple(10.0**e for e in range(-5, 5))
GROUP = ("solver", "formulation", "X")


def measure(session: Session) -> list[Finding]:
    unit = problem(*SIZE, SEED).X.float()
    inputs = {UNIT: unit, "signed": torch.randn_like(unit), "[0, 1000]": 1e3 * unit}
    decades = DECADES[::3] if session.quick else DECADES
    cases = [(s, f, name) for s in SOLVERS for f in FORMULATIONS for name in inputs]
    rows: list[Finding] = []
    for solver, formulation, name in session.track(cases, "stability"):
        for alpha0 in decades:
            for alpha in decades:
                about: Finding = {PART: "cells", "solver": solver, "formulation": formulation, "X": name}
                rows.append(about | _cell(inputs[name], alpha0, alpha, solver, formulation))
    return rows


def _cell(X: Tensor, alpha0: float, alpha: float, solver: str, formulation: str) -> Finding:
    """The mass is NaN if an entry of the plan is not finite."""
    weights = (alpha0, alpha, alpha, None if solver == "sinkhorn" else RHO)
    how: dict[str, Any] = {"solver": solver, "formulation": formulation, "K": K}
    P = uot_plan(X, *weights, **how)
    mass = float(P.sum()) if bool(P.isfinite().all()) else math.nan
    leaf = X.clone().requires_grad_()
    (dX,) = torch.autograd.grad(uot_pool(leaf, *weights, **how).sum(), leaf)
    finite = "yes" if bool(dX.isfinite().all()) else "no"
    return {"alpha0": alpha0, "alpha1, alpha2": alpha, "mass": mass, "dX finite": finite}


def summary(rows: Sequence[Finding]) -> list[Finding]:
    """Count the wrong cells of each solver, formulation and X."""
    lines: list[Finding] = []
    for about in dict.fromkeys(tuple(row[name] for name in GROUP) for row in rows):
        own = [row for row in rows if tuple(row[name] for name in GROUP) == about]
        off = [abs(float(row["mass"]) - 1) for row in own]
        finite = [distance for distance in off if math.isfinite(distance)]
        found: Finding = {PART: f"float32, K = {K}, of {len(own)} cells"}
        found |= dict(zip(GROUP, about, strict=True))
        found |= {"plans with NaN or inf": len(off) - len(finite)}
        found |= {f"mass off by > {OFF:g}": sum(distance > OFF for distance in finite)}
        found |= {"largest distance from 1": max(finite, default=math.nan)}
        found |= {"gradients with NaN or inf": sum(row["dX finite"] == "no" for row in own)}
        lines.append(found)
    return lines
