"""Finite plans and gradients for every setting of the weights, in float32."""

from __future__ import annotations

import pytest
import torch

from tests import tolerances as tol
from tests.cases import DECADES, SOLVERS
from tests.spelling import uot_plan, uot_pool
from uotpool.sets import DenseSets, logsumexp_d

pytestmark = pytest.mark.usefixtures("every_implementation")

GENERATOR = torch.Generator().manual_seed(0)
UNIT = torch.rand(1, 10, 5, generator=GENERATOR, dtype=torch.float64)
INPUTS = {
    "unit": UNIT,
    "signed": torch.randn(1, 10, 5, generator=GENERATOR, dtype=torch.float64),
    "large": 1e3 * UNIT,
}
COMPARED = {*DECADES[::2], DECADES[-1]}
COTANGENT = torch.randn(1, 5, generator=GENERATOR, dtype=torch.float64)


def solve(X, alpha0, alpha12, solver, dtype):
    """Output, gradients by X and the logarithms of weights and priors, and a function that gives the plan."""
    X = X.detach().clone().to(dtype).requires_grad_()
    logs = [torch.full((4,), a, dtype=dtype).log().requires_grad_() for a in (alpha0, alpha12, alpha12, 1.0)]
    priors = [torch.full(n, 1 / n[-1], dtype=dtype).log().requires_grad_() for n in ((5,), (1, 10))]
    rho = None if solver == "sinkhorn" else logs[3].exp()
    args = [a.exp() for a in logs[:3]]
    how = {"p0": priors[0].exp(), "q0": priors[1].exp(), "solver": solver}
    y = uot_pool(X, *args, rho, **how)
    inputs = [X, *priors, *(logs[:3] if rho is None else logs)]
    gradients = torch.autograd.grad((y * COTANGENT.to(dtype)).sum(), inputs)
    return y, gradients, lambda: uot_plan(X, *args, rho, **how).detach()


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_all_cells_are_finite_with_gradients_like_float64(solver, name):
    """100 cells alpha0 x (alpha1 = alpha2) in 1e-5 .. 1e4. A naive logsumexp fails this.

    The plan and float64 take two solutions more: in every other decade, and in the last one.
    """
    X = INPUTS[name]
    width = float(X.max() - X.min())
    for alpha0 in DECADES:
        for alpha12 in DECADES:
            y, grads, plan = solve(X, alpha0, alpha12, solver, torch.float32)
            assert y.isfinite().all()
            assert all(g.isfinite().all() for g in grads)
            low, high = X.amin(1).float(), X.amax(1).float()  # a weighted mean of the samples
            assert (y >= low - tol.F32 * width).all()
            assert (y <= high + tol.F32 * width).all()
            if not {alpha0, alpha12} <= COMPARED:
                continue
            P = plan()
            assert P.isfinite().all()
            assert abs(float(P.sum()) - 1) <= tol.MASS_F32
            _, wanted, _ = solve(X, alpha0, alpha12, solver, torch.float64)
            for i, (g, h) in enumerate(zip(grads, wanted, strict=True)):
                off, size = float((g.double() - h).abs().max()), float(h.abs().max())
                # A derivative by a log weight or prior may be rounding noise of X instead.
                rounding = torch.finfo(torch.float32).eps * width / alpha0  # of the exponents
                noise = 0.0 if i == 0 else tol.GRADIENT_NOISE_F32 * width * max(1.0, 5 * rounding)
                assert off <= max(100 * size, noise), (alpha0, alpha12, i, off, size)


def test_logsumexp_gradient_near_1e8():
    """Where torch.logsumexp's own gradient goes wrong in float32."""
    Y = 1e8 * torch.rand(3, 50)
    for dim, ours in ((-1, logsumexp_d), (0, lambda Y: DenseSets(1, None).logsumexp_n(Y[None]))):
        Y.requires_grad_().grad = None
        ours(Y).sum().backward()
        assert Y.grad is not None
        assert torch.allclose(Y.grad, Y.detach().double().softmax(dim).float(), atol=tol.F32)
    sums = DenseSets(1, None).logsumexp_n(torch.full((1, 4, 2), -1e30))
    assert torch.allclose(sums, torch.full((1, 1, 2), -1e30))
