"""Propositions 1 and 2: how near each solver's plan is to that of mean, max, attention and mixed pooling.

L1 distance of plans of mass 1 (0 to 2) and largest error of the pooled output, 10 x 5 input as in Figure 2a.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from uotpool_experiments.figures import plans
from uotpool_experiments.figures.problems import Problem
from uotpool_experiments.solvers import FORMULATIONS, SOLVERS

from bench.problems import problem
from bench.rows import PART, Finding, spread
from bench.session import Session
from tests.spelling import uot_plan, uot_pool
from uotpool import UOTPooling

# Those of Figure 2a, then max with weights nearer to the limit.
SETTINGS = (
    *plans.SETTINGS,
    ("max", (1e-3, 1e4, 1e-3), (1e-3, 1.0)),
    ("max", (1e-4, 1e4, 0.0), (1e-4, 1.0)),
)
MODULES = (4, 8, 64)
FIRST = "Proposition 1: distance of the plan and of the pooled output from those of a pooling"
ROOT_OF_ATTENTION = "equal weights of 1e4, exact Sinkhorn: distance of the sample marginal"
OPTIMUM_OF_MAX = "max pooling, alpha0 = alpha2, alpha1 = 1e4: distance of the optimum itself"
SECOND = "Proposition 2: mean-max pooling from three UOT poolings"


def measure(session: Session) -> list[Finding]:
    case = problem(1, plans.N, plans.D, plans.FIRST)
    rows = [row for setting in session.track(SETTINGS, "propositions") for row in _distances(case, *setting)]
    return [*rows, _square_root(case), *_optimum_of_max(case), *_mixed(case)]


def summary(rows: Sequence[Finding]) -> list[Finding]:
    """Return one line for all numbers of modules."""
    first = [row for row in rows if row[PART] == FIRST]
    return spread(first, "K", "plan", "output") + [row for row in rows if row[PART] != FIRST]


def _pooled(X: Tensor, P: Tensor) -> Tensor:
    return (X * P).sum(1) / P.sum(1)


def _distances(
    case: Problem, name: str, weights: tuple[float, float, float], rhos: Sequence[float]
) -> list[Finding]:
    X = case.X
    truth = plans.true_plans(X, case.q0)[name]
    about: Finding = {PART: FIRST, "pooling": name}
    about |= dict(zip(("alpha0", "alpha1", "alpha2"), weights, strict=True))
    rows: list[Finding] = []
    for solver in SOLVERS:
        for formulation in FORMULATIONS:
            for rho in (None,) if solver == "sinkhorn" else rhos:
                for K in MODULES:
                    how: dict[str, Any] = {"solver": solver, "formulation": formulation, "K": K}
                    how["q0"] = case.q0 if name == "attention" else None
                    P, y = uot_plan(X, *weights, rho, **how), uot_pool(X, *weights, rho, **how)
                    found: Finding = {"solver": solver, "formulation": formulation}
                    found |= {"rho": "" if rho is None else rho, "K": K}
                    found["plan"] = float((P - truth).abs().sum())
                    found["output"] = float((y - _pooled(X, truth)).abs().max())
                    rows.append(about | found)
    return rows


def _square_root(case: Problem) -> Finding:
    """Measure equal weights, where the sample marginal q0^(alpha2 / (alpha0 + alpha2)) is the square root."""
    attention = case.q0
    P = uot_plan(case.X, 1e4, 1e4, 1e4, q0=attention, K=64)
    root = attention.sqrt() / attention.sqrt().sum(-1, keepdim=True)
    from_a, from_root = (float((P.sum(2) - a).abs().max()) for a in (attention, root))
    return {PART: ROOT_OF_ATTENTION, "from a_X": from_a, "from sqrt(a_X), normalised": from_root}


def _optimum_of_max(case: Problem) -> list[Finding]:
    """Show why max is not reached: at these weights the optimum itself is that far away."""
    X, rows = case.X, []
    truth = plans.true_plans(X, case.q0)["max"]
    for a in (1e-2, 1e-3, 1e-4):
        P = uot_plan(X, a, 1e4, a, K="converged")
        row: Finding = {PART: OPTIMUM_OF_MAX, "alpha0": a, "plan": float((P - truth).abs().sum())}
        rows.append(row | {"output": float((_pooled(X, P) - X.amax(1)).abs().max())})
    return rows


def _mixed(case: Problem) -> list[Finding]:
    """Pool the two pooled vectors as attention does, with the sample prior [omega, 1 - omega]."""
    X = case.X
    mean, top = (kind(X.shape[2]).double()(X) for kind in (UOTPooling.mean, UOTPooling.max))
    omega = torch.full((len(X), 1), 0.3, dtype=X.dtype)
    q0 = torch.cat([omega, 1 - omega], dim=1)
    y = uot_pool(torch.stack([mean, top], dim=1), 1e8, 1e12, 1e12, q0=q0, K=2)
    direct = omega * X.mean(1) + (1 - omega) * X.amax(1)
    return [{PART: SECOND, "pooling": "mixed", "largest error": float((y - direct).abs().max())}]
