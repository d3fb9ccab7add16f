"""Derivatives: against finite differences, against each other, and which ones are zero by construction."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from tests import tolerances as tol
from tests.cases import FORMULATIONS, SOLVERS, module_weights, problem, step
from tests.spelling import uot_plan, uot_pool

# What calls K modules of the exact formulation. K="converged" is the reference's alone.
each_implementation = pytest.mark.usefixtures("every_implementation")


def leaves(B, N, D, seed=0):
    X, p0, q0 = problem(B, N, D, seed)
    return X.requires_grad_(), p0.requires_grad_(), q0.requires_grad_()


def unit(p):
    """Project back on the simplex, so that finite differences stay priors."""
    return p / p.sum(-1, keepdim=True)


SCALE = torch.tensor([0.7, -1.5, 0.0], dtype=torch.float64)  # the derivative where it is 0, too


def of_everything(call, solver, formulation, impl="auto"):
    """Return the call as a function of X, p0, q0, the scale and the coefficients, and where to check it."""

    def run(X, p0, q0, scale, *weights):
        how = {"solver": solver, "formulation": formulation, "impl": impl}
        return call(X, *weights, p0=unit(p0), q0=unit(q0), scale=scale, **how)

    return run


@pytest.mark.parametrize(
    ("formulation", "implementation"), [("exact", "auto"), ("exact", "reference"), ("paper", "auto")]
)
@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("solver", SOLVERS)
def test_gradcheck(solver, K, formulation, implementation):
    weights = [w for w in module_weights(solver, K) if w is not None]
    for call, sizes in ((uot_pool, (2, 4, 3)), (uot_plan, (1, 3, 3))):
        inputs = (*leaves(*sizes), SCALE.clone().requires_grad_(), *weights)
        assert gradcheck(of_everything(call, solver, formulation, implementation), inputs)


@pytest.mark.parametrize("formulation", FORMULATIONS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_gradgradcheck_of_the_unrolled_reference(solver, formulation):
    weights = [w for w in module_weights(solver, 2) if w is not None]
    inputs = (*leaves(1, 3, 3), SCALE.clone().requires_grad_(), *weights)
    assert gradgradcheck(of_everything(uot_pool, solver, formulation, "reference"), inputs, fast_mode=True)


@pytest.mark.parametrize("weights", [(0.5, 1.0, 1.0), (0.05, 1.0, 0.3), (0.3, 5.0, 0.0), (0.3, 0.0, 1.0)])
@pytest.mark.parametrize("solver", ["sinkhorn", "badmm-q"])
def test_gradcheck_of_the_optimum(solver, weights):
    """Implicit gradients against finite differences of the solution.

    The first weights entry by entry; the others in random directions, which takes a hundredth of the solutions.
    """
    entries = weights == (0.5, 1.0, 1.0)
    alphas = [torch.tensor(a, dtype=torch.float64, requires_grad=a > 0) for a in weights]

    def pool(X, p0, q0, scale, *alphas):
        how = {"solver": solver, "K": "converged", "tol": 1e-13}
        return uot_pool(X, *alphas, p0=unit(p0), q0=unit(q0), scale=scale, **how)

    inputs = (*leaves(1, 4, 3), SCALE.clone().requires_grad_(), *alphas)
    assert gradcheck(pool, inputs, eps=1e-5, atol=tol.F32, rtol=tol.IMPLICIT, fast_mode=not entries)


@pytest.mark.parametrize(
    ("solver", "weights"),
    [
        ("sinkhorn", (0.5, 1.0, 0.0)),
        ("sinkhorn", (0.5, 0.0, 1.0)),
        ("sinkhorn", (0.5, 0.0, 0.0)),
        ("badmm-q", (0.5, 1.0, 0.0)),  # alpha1 = 0 empties features here, and there is no derivative
    ],
)
def test_gradient_of_the_optimum_by_a_weight_of_zero(solver, weights):
    """One-sided: the weight cannot be negative."""
    X, p0, q0 = problem(2, 6, 4)
    how = {"p0": p0, "q0": q0, "solver": solver, "K": "converged", "tol": 1e-14}
    for i in (1, 2):
        if weights[i]:
            continue
        alphas = [torch.tensor(a, dtype=torch.float64) for a in weights]
        alphas[i].requires_grad_()
        y = uot_pool(X, *alphas, **how)
        (implicit,) = torch.autograd.grad(y.square().sum(), alphas[i])
        ahead = [(1e-6 if j == i else a) for j, a in enumerate(weights)]
        finite = (uot_pool(X, *ahead, **how).square().sum() - y.detach().square().sum()) / 1e-6
        assert torch.allclose(implicit, finite, rtol=10 * tol.IMPLICIT, atol=tol.IMPLICIT)


@pytest.mark.parametrize("solver", ["sinkhorn", "badmm-e"])
def test_implicit_gradient_equals_unrolled(solver):
    weights = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in (0.4, 1.2, 0.8)]
    inputs = (*leaves(3, 9, 5), *weights)
    cotangent = torch.randn(3, 5, dtype=torch.float64)

    def grads(rho, **how):
        X, p0, q0, *alphas = inputs
        y = uot_pool(X, *alphas, rho, p0=p0, q0=q0, solver=solver, **how)
        return torch.autograd.grad((y * cotangent).sum(), inputs)

    for implicit, unrolled in zip(grads(None, K="converged"), grads(step(solver), K=400), strict=True):
        assert torch.allclose(implicit, unrolled, rtol=0, atol=tol.OPTIMUM)


def test_second_derivative_of_the_optimum_says_so():
    X = problem(1, 4, 3).X.requires_grad_()
    y = uot_pool(X, 0.5, 1.0, 1.0, K="converged")
    with pytest.raises(RuntimeError, match=r"^Newton: "):
        torch.autograd.grad(y.sum(), X, create_graph=True)


def weight_gradients(solver, formulation, K):
    X, p0, q0 = problem(3, 7, 5, seed=1)
    weights = module_weights(solver, K, seed=5)
    y = uot_pool(X, *weights, p0=p0, q0=q0, solver=solver, formulation=formulation)
    learned = [w for w in weights if w is not None]
    loss = (y * torch.randn(y.shape, generator=torch.Generator().manual_seed(3), dtype=y.dtype)).sum()
    grads = torch.autograd.grad(loss, learned, allow_unused=True)
    names = ("alpha0", "alpha1", "alpha2", "rho")[: len(learned)]
    return {n: torch.zeros(K) if g is None else g for n, g in zip(names, grads, strict=True)}


# Steps of the published solvers whose coefficient never gets a gradient; exactly solved ones have none.
PAPER_ZEROS = {
    "sinkhorn": {"alpha1": slice(-1, None)},  # the last a is a constant for each feature: eq. 4 divides it out
    "badmm-e": {
        "alpha0": slice(-1, None),
        "alpha1": slice(None),
        "alpha2": slice(None),
    },  # P^(K) precedes S^(K)
    "badmm-q": {"alpha1": slice(None), "alpha2": slice(None)},
}


@each_implementation
@pytest.mark.parametrize("K", [1, 2, 4])
@pytest.mark.parametrize("formulation", FORMULATIONS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_dead_weights(solver, formulation, K):
    for name, g in weight_gradients(solver, formulation, K).items():
        dead = torch.zeros(K, dtype=torch.bool)
        if formulation == "paper" and name in PAPER_ZEROS[solver]:
            dead[PAPER_ZEROS[solver][name]] = True
        assert (g.abs()[dead] <= tol.STRUCTURAL_ZERO).all(), (name, g)
        assert (g.abs()[~dead] > tol.STRUCTURAL_ZERO).all(), (name, g)
