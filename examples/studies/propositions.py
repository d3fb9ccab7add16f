"""Propositions 1 and 2: how near each solver's plan is to that of mean, max, attention and mixed pooling.

L1 distance of plans of mass 1 (0 to 2) and largest error of the pooled output, 10 x 5 input as in Figure 2a.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from uotpool_experiments.figures.plans import true_plans

from examples.studies.common import SOLVERS, problem, table
from uotpool import MixedMeanMax, uot_plan, uot_pool

X, _, ATTENTION = problem(1, 10, 5, seed=2)
TRUTH = true_plans(X, ATTENTION)
# As published, then as they should be: attention needs alpha1, alpha2 >> alpha0.
SETTINGS = (
    ("mean", (1e4, 1e4, 1e4), (1.0, 1e4)),
    ("max", (1e-2, 1e4, 1e-2), (1e-2, 1.0)),
    ("max", (1e-3, 1e4, 1e-3), (1e-3, 1.0)),
    ("max", (1e-4, 1e4, 0.0), (1e-4, 1.0)),
    ("attention", (1e4, 1e4, 1e4), (1.0, 1e4)),
    ("attention", (1e2, 1e6, 1e6), (1.0, 1e6)),
)


def pooled(P: Tensor) -> Tensor:
    return (X * P).sum(1) / P.sum(1)


def proposition_1() -> None:
    rows = []
    for name, weights, rhos in SETTINGS:
        truth = TRUTH[name]
        q0 = ATTENTION if name == "attention" else None
        for solver in SOLVERS:
            for formulation in ("exact", "paper"):
                for rho in (None,) if solver == "sinkhorn" else rhos:
                    errors: list[object] = []
                    for K in (4, 8, 64):
                        how: dict[str, Any] = {"q0": q0, "solver": solver, "formulation": formulation, "K": K}
                        P = uot_plan(X, *weights, rho, **how)
                        y = uot_pool(X, *weights, rho, **how)
                        off = float((P - truth).abs().sum())
                        errors += [off, float((y - pooled(truth)).abs().max())]
                    alphas = ", ".join(f"{w:g}" for w in weights)
                    rows.append([name, alphas, solver, formulation, "" if rho is None else f"{rho:g}", *errors])
    columns = [f"K={K} {m}" for K in (4, 8, 64) for m in ("plan", "output")]
    table(["pooling", "alpha0, alpha1, alpha2", "solver", "formulation", "rho", *columns], rows)


def square_root() -> None:
    """Equal weights: the sample marginal is q0^(alpha2 / (alpha0 + alpha2)), the square root."""
    P = uot_plan(X, 1e4, 1e4, 1e4, q0=ATTENTION, K=64)
    root = ATTENTION.sqrt() / ATTENTION.sqrt().sum(-1, keepdim=True)
    from_a, from_root = (float((P.sum(2) - a).abs().max()) for a in (ATTENTION, root))
    print("\nequal weights of 1e4, exact Sinkhorn: distance of the sample marginal")
    print(f"from a_X {from_a:.1e}, from sqrt(a_X) (normalised) {from_root:.1e}\n")


def optimum_of_max() -> None:
    """Why max is not reached: at these weights the optimum itself is that far away."""
    rows = []
    for a in (1e-2, 1e-3, 1e-4):
        P = uot_plan(X, a, 1e4, a, K="converged")
        rows.append(
            [f"{a:g}", float((P - TRUTH["max"]).abs().sum()), float((pooled(P) - X.amax(1)).abs().max())]
        )
    table(["alpha0 = alpha2 (alpha1 = 1e4)", "optimum: plan", "optimum: output"], rows)


def proposition_2() -> None:
    print()
    rows = []
    for gated in (False, True):
        pool = MixedMeanMax(5, gated=gated).double()
        omega = pool.omega(X.mean(1))[:, None]
        direct = omega * X.mean(1) + (1 - omega) * X.amax(1)
        rows.append(["gated" if gated else "mixed", float((pool(X) - direct).detach().abs().max())])
    table(["mean-max pooling from three UOT poolings", "largest error"], rows)


def main(figures: Path) -> None:
    torch.manual_seed(0)
    proposition_1()
    square_root()
    optimum_of_max()
    proposition_2()
