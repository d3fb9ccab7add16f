"""The paper's Figure 2b: mass and NaN over alpha0 x (alpha1 = alpha2) in 1e-5 .. 1e4, float32, K = 4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from uotpool_experiments.figures.stability import DECADES

from examples.studies.common import SOLVERS, problem, table
from uotpool import uot_plan, uot_pool


def main(figures: Path) -> None:
    unit = problem(1, 10, 5, seed=1).X.float()
    inputs = {"[0, 1]": unit, "signed": torch.randn_like(unit), "[0, 1000]": 1e3 * unit}
    rows = []
    for solver in SOLVERS:
        for formulation in ("exact", "paper"):
            for name, X in inputs.items():
                broken = off = bad_gradient = 0
                worst = 0.0
                for alpha0 in DECADES:
                    for alpha in DECADES:
                        weights = (alpha0, alpha, alpha, None if solver == "sinkhorn" else 1.0)
                        how: dict[str, Any] = {"solver": solver, "formulation": formulation, "K": 4}
                        x = X.clone().requires_grad_()
                        (dX,) = torch.autograd.grad(uot_pool(x, *weights, **how).sum(), x)
                        P = uot_plan(X, *weights, **how)
                        finite = bool(P.isfinite().all())
                        distance = abs(float(P.sum()) - 1) if finite else 0.0
                        broken += not finite
                        off += finite and distance > 1e-3
                        worst = max(worst, distance)
                        bad_gradient += not bool(dX.isfinite().all())
                rows.append([solver, formulation, name, broken, off, worst, bad_gradient])
    header = ["solver", "formulation", "X", "cells with NaN or inf", "mass off by > 1e-3", "largest |mass - 1|"]
    table([*header, "gradients with NaN or inf"], rows)
