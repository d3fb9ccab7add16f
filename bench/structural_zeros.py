"""Which weights never get a gradient, on random problems (a zero is at most 1e-12 of the largest)."""

from __future__ import annotations

import torch
from uotpool_experiments.solvers import FORMULATIONS, SOLVERS

from bench.problems import problem
from bench.rows import PART, Finding
from bench.session import Session
from tests.spelling import uot_pool

NAMES = ("alpha0", "alpha1", "alpha2", "rho")


def measure(session: Session) -> list[Finding]:
    rows: list[Finding] = []
    cases = [(f, s, K) for f in FORMULATIONS for s in SOLVERS for K in (1, 2, 4)]
    for formulation, solver, K in session.track(cases, "structural-zeros"):
        zeros = dead(solver, formulation, K)
        row: Finding = {PART: "modules without gradient, by weight", "formulation": formulation}
        row |= {"solver": solver, "K": K}
        row |= {name: ", ".join(map(str, zeros[name])) or "none" if name in zeros else "" for name in NAMES}
        rows.append(row)
    return rows


def dead(solver: str, formulation: str, K: int) -> dict[str, list[int]]:
    """Return the modules, by weight, that have no gradient in any of three problems."""
    alive: dict[str, torch.Tensor] = {}
    for seed in range(3):
        X, p0, q0 = problem(3, 7, 5, seed)
        weights = [torch.rand(K, dtype=torch.float64).add(0.5).requires_grad_() for _ in NAMES]
        names = NAMES[:3] if solver == "sinkhorn" else NAMES
        a0, a1, a2, step = weights
        rho = None if solver == "sinkhorn" else step
        y = uot_pool(X, a0, a1, a2, rho, p0=p0, q0=q0, solver=solver, formulation=formulation)
        grads = torch.autograd.grad(y.sin().sum(), weights[: len(names)], allow_unused=True)
        top = max(float(g.abs().max()) for g in grads if g is not None)
        for name, g in zip(names, grads, strict=True):
            has = torch.zeros(K, dtype=torch.bool) if g is None else g.abs() > 1e-12 * top
            alive[name] = alive.get(name, torch.zeros(K, dtype=torch.bool)) | has
    return {name: [k for k in range(K) if not has[k]] for name, has in alive.items()}
