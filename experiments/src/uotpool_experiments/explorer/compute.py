"""Compute the numbers that the page shows from its settings."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from uotpool import duality_gap, objective, plan_stats, resolve_impl, suggest_rho, uot_plan, uot_pool
from uotpool.solvers import SOLVERS
from uotpool_experiments.figures.problems import LABELS, short

MOST_MODULES = 64  # on the slider
# Bounds on the work for the optimum: entries of X (and some overhead) times modules, about 30 ms of
# the fused kernels, and the number of modules without the kernels. Newton steps (K="converged")
# would take seconds where alpha0 is small.
MOST_UPDATES, OVERHEAD, MOST_UNFUSED = 2**22, 128, 256
MASS_TOLERANCE = 1e-6
UNDEFINED = math.nan


class Weights(NamedTuple):
    alpha0: float
    alpha1: float
    alpha2: float


@dataclass(frozen=True)
class Settings:
    """What a person has chosen."""

    weights: Weights
    solver: str = "sinkhorn"
    formulation: str = "exact"
    K: int | None = None  # None: as many as the optimum needs
    rho: float | None = None  # None: the suggested one
    p0: str = "uniform"
    q0: str = "uniform"


class Preset(NamedTuple):
    """Weights and priors of a case of Proposition 1."""

    weights: Weights
    q0: str = "uniform"


# These are meant for features with a spread near 1. For attention, alpha1 and alpha2 are large
# against alpha0: equal weights give the square root of the attention
# (docs/published-algorithms.md).
PRESETS = {
    "mean": Preset(Weights(1e4, 1e4, 1e4)),
    "max": Preset(Weights(1e-4, 1e4, 0.0)),
    "attention": Preset(Weights(1e2, 1e6, 1e6), q0="norms"),
}
PRIORS = ("uniform", "norms")


class Note(NamedTuple):
    """Something a person should know about what is shown."""

    kind: str  # "info" or "warning"
    text: str


@dataclass
class Result:
    """Everything that the page shows; NaN where there is nothing to show."""

    X: Tensor
    P: Tensor  # as the algorithm left it
    shares: Tensor  # p(n|d)
    pooled: Tensor
    others: dict[str, Tensor]  # mean, max and attention pooling of the same X
    p0: Tensor
    q0: Tensor
    p: Tensor  # the marginals of the plan at mass 1
    q: Tensor
    mass: float
    K: int
    rho: float | None
    objective: float = UNDEFINED
    gap: float = UNDEFINED
    divergence: float = UNDEFINED
    notes: list[Note] = field(default_factory=list)

    @property
    def distances(self) -> dict[str, float]:
        """Return the largest difference in a feature between the pooled vector and each other pooling."""
        return {name: float((self.pooled - other).abs().max()) for name, other in self.others.items()}


def prior(X: Tensor, kind: str, axis: int) -> Tensor:
    """Return a prior over the samples (axis 0) or features (axis 1) of X: uniform, or softmax of
    standardised norms.
    """
    norms = X.norm(dim=1 - axis)
    centred = norms - norms.mean()
    spread = centred.square().mean().sqrt()
    # Where all norms are equal up to rounding, the prior is uniform.
    if kind == "uniform" or not bool(spread > 1e-9 * norms.mean()):
        return torch.full_like(norms, 1 / len(norms))
    return (centred / spread).softmax(0)


def explore(X: Tensor, settings: Settings) -> Result:
    """Solve for X, (N, D) of float64, and measure the plan."""
    p0, q0 = prior(X, settings.p0, 1), prior(X, settings.q0, 0)
    P, K, rho = _plan(X, settings, p0, q0)
    mass = float(P.sum())
    usable = bool(P.isfinite().all()) and mass > 0
    unit = P / mass if usable else torch.full_like(P, UNDEFINED)
    p, q = unit.sum(0), unit.sum(1)
    lost = p <= 0
    pooled = (X * unit).sum(0) / p
    if not usable or bool(lost.any()):  # mass was lost to underflow or overflow, but log P may still have it
        pooled = uot_pool(X[None], *settings.weights, rho, p0=p0, q0=q0[None], K=K, **_algorithm(settings))[0]
    attention = prior(X, "norms", 0)
    others = {"mean": X.mean(0), "max": X.max(0).values, "attention": attention @ X}
    result = Result(X, P, unit / p, pooled, others, p0, q0, p, q, mass, K, rho)
    if usable:
        at_plan: Any = (X[None], unit[None], *settings.weights)
        given: dict[str, Any] = {"p0": p0, "q0": q0[None], "regularizer": SOLVERS[settings.solver].regularizer}
        result.objective = float(objective(*at_plan, **given))
        result.gap = float(duality_gap(*at_plan, **given))
        result.divergence = float(plan_stats(unit[None]).divergence)
    result.notes = _notes(result, settings, usable, int(lost.sum()))
    return result


def _algorithm(settings: Settings) -> dict[str, Any]:
    solver = settings.solver
    if settings.K is None and solver == "badmm-e":
        solver = "sinkhorn"  # it reaches the same optimum sooner
    return {"solver": solver, "formulation": settings.formulation}


def _plan(X: Tensor, settings: Settings, p0: Tensor, q0: Tensor) -> tuple[Tensor, int, float | None]:
    """Return P, and the modules and the step that made it."""
    if settings.K is None and settings.formulation != "exact":
        raise ValueError(
            'K: expected a number with formulation="paper" (it leads to no optimum), got the optimum'
        )
    algorithm = _algorithm(settings)
    rho = None
    if algorithm["solver"] != "sinkhorn":
        given = None if settings.K is None else settings.rho
        spread = float(X.std(correction=0)) or 1.0
        rho = suggest_rho(algorithm["solver"], *settings.weights, spread=spread) if given is None else given

    def solve(K: int) -> Tensor:
        return uot_plan(X[None], *settings.weights, rho, p0=p0, q0=q0[None], K=K, **algorithm)[0]

    if settings.K is not None:
        return solve(settings.K), settings.K, rho
    K = MOST_MODULES
    P = solve(K)
    gap = duality_gap(
        X[None],
        P[None],
        *settings.weights,
        p0=p0,
        q0=q0[None],
        regularizer=SOLVERS[settings.solver].regularizer,
    )
    if float(gap) > _small(X, settings.weights):
        fused = resolve_impl(X, algorithm["solver"]) == "cpu"
        K = MOST_UPDATES // (X.numel() + OVERHEAD) if fused else MOST_UNFUSED
        P = solve(K)
    return P, K, rho


def _small(X: Tensor, weights: Weights) -> float:
    """Return the largest gap that counts as none: a millionth of the range of X, and rounding."""
    return 1e-6 * float(X.max() - X.min()) + 1e-14 * sum(weights)


def _notes(result: Result, settings: Settings, usable: bool, lost: int) -> list[Note]:
    notes = []
    name = LABELS[settings.solver]
    published = settings.formulation == "paper"
    which = f"The published {name}" if published else name
    if not usable:
        broken = int((~result.P.isfinite()).sum())
        what = (
            f"NaN or infinity in {broken} of {result.P.numel()} entries of P" if broken else "a plan of mass 0"
        )
        text = f"{which} gave {what} after {result.K} modules: there is no plan to show."
        if bool(result.pooled.isfinite().all()):
            text += " The pooled vector is computed from logarithms."
        return [Note("warning", text)]
    if abs(result.mass - 1) > MASS_TOLERANCE:
        text = (
            f"{which} gave a plan of mass {number(result.mass)}, not 1. Objective, gap and marginals are those "
            "of the plan divided by its mass."
        )
        notes.append(Note("warning", text))
    if lost:
        text = (
            f"{lost} of {result.P.shape[1]} features have so little mass that it is 0 here; "
            "the pooled vector is computed from logarithms."
        )
        notes.append(Note("info", text))
    if settings.K is None and result.gap > _small(result.X, settings.weights):
        text = (
            f"After {result.K} modules the optimum is not reached; the duality gap says how far it can be. "
            "Sinkhorn is slow where α₀ is small against α₁ and α₂, BADMM-Q where the set is large."
        )
        notes.append(Note("warning", text))
    if math.isinf(result.gap):
        notes.append(Note("info", "The gap is infinite: a marginal is 0 where its prior is not."))
    if published and result.K > 0:
        if settings.solver != "sinkhorn":
            text = "In the published Bregman ADMM α₁ and α₂ have no effect: its marginals stay at the priors."
            notes.append(Note("info", text))
        elif settings.weights.alpha0 != 1:
            text = (
                "The published Sinkhorn solves the problem only for α₀ = 1; elsewhere it leads to another plan."
            )
            notes.append(Note("info", text))
    return notes


def number(value: float) -> str:
    """Write a number with three digits for a person; NaN is "none"."""
    if math.isnan(value):
        return "none"
    if math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.4g}"
    return short(value).replace(".0e", "e")
