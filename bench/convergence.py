"""How near the optimum the solvers get: the paper's Figure 3a, gaps over random problems, and POT's answer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import ot
import torch
from torch import Tensor
from uotpool_experiments.figures.convergence import CURVES
from uotpool_experiments.figures.problems import Problem
from uotpool_experiments.solvers import FORMULATIONS, SOLVERS

from bench.problems import log_uniform_weights, problem
from bench.rows import PART, Finding, spread
from bench.session import Session
from bench.steps import suggested
from tests.spelling import REGULARIZER, duality_gap, objective, uot_plan, uot_pool

Weights = tuple[float, float, float]
SIZE, QUICK_SIZE = (3, 500, 100), (2, 30, 10)  # the paper's samples and features; it has 50 sets
MODULES = tuple(2**e for e in range(9))
# alpha0 = 1, where the published Sinkhorn is right; a smaller one; and large weights of the marginals.
WEIGHTS: tuple[Weights, ...] = ((1.0, 1.0, 1.0), (0.1, 1.0, 1.0), (0.1, 10.0, 10.0))
SHAPES = ((12, 6), (30, 9), (5, 20), (1, 4), (7, 1))
LARGEST = "largest gap of all: 4 sets of each of 5 shapes, several seeds"
MEDIAN = "median gap of 20 problems 12 x 6, weights 0.1 .. 10, rho = 1"
AGAINST_POT = "pooled output against POT's optimum of free mass: largest difference"


def measure(session: Session) -> list[Finding]:
    torch.set_num_threads(1)
    seeds = 1 if session.quick else 6
    rows = [row for w in session.track(WEIGHTS, "convergence") for row in _curves(session, w)]
    return rows + _largest_gaps(seeds, 30 if session.quick else 3000) + _median_gaps() + [_against_pot(seeds)]


def summary(rows: Sequence[Finding]) -> list[Finding]:
    """Return the curves at a few numbers of modules."""
    shown = (4, 16, 256)
    curves = [row for row in rows if row[PART] == CURVES and row["K"] in shown]
    medians = [row for row in rows if row[PART] == MEDIAN]
    others = [row for row in rows if row[PART] not in (CURVES, MEDIAN)]
    return spread(curves, "K", "objective", "gap") + others + spread(medians, "K", "gap")


def _curves(session: Session, weights: Weights) -> list[Finding]:
    size, modules = (QUICK_SIZE, MODULES[:5]) if session.quick else (SIZE, MODULES)
    X = problem(*size).X
    best = {r: _optimum(X, weights, r) for r in ("entropic", "quadratic")}
    rows: list[Finding] = []
    for formulation in FORMULATIONS:
        for solver in SOLVERS:
            about: Finding = {PART: CURVES, "size": " x ".join(map(str, size))}
            about |= dict(zip(("alpha0", "alpha1", "alpha2"), weights, strict=True))
            about |= {"solver": solver, "formulation": formulation}
            for K in modules:
                above, gap = _distances(X, weights, solver, formulation, K, best[REGULARIZER[solver]])
                rows.append(about | {"K": K, "objective": above, "gap": gap})
    return rows


def _optimum(X: Tensor, weights: Weights, regularizer: str) -> Tensor:
    solver = "badmm-q" if regularizer == "quadratic" else "sinkhorn"
    P = uot_plan(X, *weights, solver=solver, K="converged", tol=1e-11)  # 1e-12 is beyond some machines
    return objective(X, P, *weights, regularizer=regularizer)


def _distances(
    X: Tensor, weights: Weights, solver: str, formulation: str, K: int, best: Tensor
) -> tuple[float, float]:
    """Return medians over the sets of objective above optimum and of gap, infinite where a set has no plan."""
    regularizer = REGULARIZER[solver]
    rho = None if solver == "sinkhorn" else suggested(solver, *weights, spread=float(X.std()))
    P = uot_plan(X, *weights, rho, solver=solver, formulation=formulation, K=K)
    mass = P.sum((1, 2), keepdim=True)
    if not bool((mass.isfinite() & (mass > 0)).all()):
        return math.inf, math.inf
    P = P / mass  # the published ones have another
    above = objective(X, P, *weights, regularizer=regularizer) - best
    return float(above.median()), float(duality_gap(X, P, *weights, regularizer=regularizer).median())


def _gaps(case: Problem, w: Weights, solver: str, **how: object) -> Tensor:
    P = uot_plan(case.X, *w, p0=case.p0, q0=case.q0, solver=solver, **how)  # type: ignore[arg-type]
    return duality_gap(case.X, P, *w, p0=case.p0, q0=case.q0, regularizer=REGULARIZER[solver])


def _largest_gaps(seeds: int, modules: int) -> list[Finding]:
    rows: list[Finding] = []
    for solver in SOLVERS:
        entropic = solver == "sinkhorn"
        how = {"K": "converged"} if entropic else {"rho": 1.0, "K": modules}
        # The weights of the slow solvers are nearer to 1, and there are half as many problems.
        power, count = (2, seeds) if entropic else (1, math.ceil(seeds / 2))
        found = [
            float(_gaps(problem(4, *shape, seed), log_uniform_weights(-power, power), solver, **how).max())
            for shape in SHAPES
            for seed in range(count)
        ]
        weights = f"1e-{power} .. 1e{power}"
        rows.append({PART: LARGEST, "solver": solver, "weights": weights} | how | {"gap": max(found)})
    return rows


def _median_gaps() -> list[Finding]:
    rows: list[Finding] = []
    for solver in SOLVERS:
        step = {} if solver == "sinkhorn" else {"rho": 1.0}
        for K in (4, 16, 100):
            values = [
                _gaps(problem(1, 12, 6, seed), log_uniform_weights(-1, 1), solver, K=K, **step)
                for seed in range(20)
            ]
            rows.append({PART: MEDIAN, "solver": solver, "K": K, "gap": float(torch.cat(values).median())})
    return rows


def pot_pool(X: Tensor, p0: Tensor, q0: Tensor, w: Sequence[float]) -> Tensor:
    """Return the pooled output (D,) of one set (N, D) from POT's solution of eq. 3, whose mass is free."""
    P = ot.unbalanced.sinkhorn_unbalanced(
        q0,
        p0,
        -X,
        reg=w[0],
        reg_m=(w[2], w[1]),
        method="sinkhorn_stabilized",
        reg_type="kl",
        c=torch.ones_like(X),  # KL against 1 is our R, up to a constant
        numItermax=200_000,
        stopThr=1e-15,
    )
    return (X * P).sum(0) / P.sum(0)


def _against_pot(seeds: int) -> Finding:
    worst = 0.0
    for seed in range(seeds):
        X, p0, q0 = problem(1, 12, 6, seed)
        w = log_uniform_weights(-0.7, 0.7)
        y = uot_pool(X, *w, p0=p0, q0=q0, K="converged")[0]
        worst = max(worst, float((pot_pool(X[0], p0[0], q0[0], w) - y).abs().max()))
    return {PART: AGAINST_POT, "solver": "sinkhorn", "problems": seeds, "difference": worst}
