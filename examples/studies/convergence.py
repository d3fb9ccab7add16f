"""How near the optimum the solvers get: duality gaps over random priors, weights, shapes, and POT's answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import ot
import torch
from torch import Tensor

from examples.studies.common import REGULARIZER, Problem, problem, table
from uotpool import duality_gap, uot_plan, uot_pool

SHAPES = ((12, 6), (30, 9), (5, 20), (1, 4), (7, 1))


def weights(low: float, high: float) -> tuple[float, float, float]:
    """Log-uniform between two powers of ten, from torch's seed (set by `problem`)."""
    e = torch.rand(3, dtype=torch.float64) * (high - low) + low
    a0, a1, a2 = (10**e).tolist()
    return a0, a1, a2


def gaps(case: Problem, w: tuple[float, float, float], solver: str, **how: object) -> Tensor:
    P = uot_plan(case.X, *w, p0=case.p0, q0=case.q0, solver=solver, **how)  # type: ignore[arg-type]
    return duality_gap(case.X, P, *w, p0=case.p0, q0=case.q0, regularizer=REGULARIZER[solver])


def worst_gaps() -> None:
    rows = []
    worst = 0.0
    for shape in SHAPES:
        for seed in range(6):
            case = problem(4, *shape, seed)
            worst = max(worst, float(gaps(case, weights(-2, 2), "sinkhorn", K="converged").max()))
    rows.append(["entropic, converged", "1e-2 .. 1e2", worst])
    for solver in ("badmm-e", "badmm-q"):
        worst = 0.0
        for shape in SHAPES:
            for seed in range(3):
                case = problem(4, *shape, seed)
                worst = max(worst, float(gaps(case, weights(-1, 1), solver, rho=1.0, K=3000).max()))
        rows.append([f"{solver}, K = 3000, rho = 1", "0.1 .. 10", worst])
    table(["solver", "weights", "largest gap"], rows)


def median_gaps() -> None:
    rows = []
    for solver in ("sinkhorn", "badmm-e", "badmm-q"):
        step = {} if solver == "sinkhorn" else {"rho": 1.0}
        medians = []
        for K in (4, 16, 100):
            values = [gaps(problem(1, 12, 6, seed), weights(-1, 1), solver, K=K, **step) for seed in range(20)]
            medians.append(float(torch.cat(values).median()))
        rows.append([solver, *medians])
    print("\nmedian of 20 problems 12 x 6, weights 0.1 .. 10, rho = 1\n")
    table(["solver", "K = 4", "K = 16", "K = 100"], rows)


def pot_pool(X: Tensor, p0: Tensor, q0: Tensor, w: Sequence[float]) -> Tensor:
    """Pooled output (D,) of one set (N, D) from POT's solution of eq. 3, whose mass is free."""
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


def against_pot() -> None:
    worst = 0.0
    for seed in range(6):
        X, p0, q0 = problem(1, 12, 6, seed)
        w = weights(-0.7, 0.7)
        y = uot_pool(X, *w, p0=p0, q0=q0, K="converged")[0]
        worst = max(worst, float((pot_pool(X[0], p0[0], q0[0], w) - y).abs().max()))
    print(f"\npooled output against POT's free-mass optimum: largest difference {worst:.1e}")


def main(figures: Path) -> None:
    torch.set_num_threads(1)
    worst_gaps()
    median_gaps()
    against_pot()
