"""The optimum itself, `Newton`: certified by its duality gap, its derivatives by Euler's identity."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from tests import tolerances as tol
from tests.backends.harness import WEIGHTS, newton, priors_of, randn, solved
from tests.cases import REGULARIZER
from tests.fuzz import sets
from tests.fuzz.found import Found
from uotpool import ConvergenceWarning, Problem
from uotpool.solvers import Solver

MAX_ITER = 50
# Within the decades that are promised here, and up to this range of X / alpha0, the entropic problem is solved
# without a warning.
MOST_EXPONENT = 1e4
GRIDS = {"promised": (-2, 2), "beyond": (-5, 4)}


class Case(NamedTuple):
    sets: sets.Case  # of one module
    certified: bool

    def describe(self) -> str:
        return f"converged {self.sets.describe()}"


def draw(seed: int) -> Case:
    """Sets as of `sets`, one value for each weight; no scale, as `identities` do not hold with several."""
    drawn = sets.draw(seed)
    drawn = drawn._replace(problem=drawn.problem._replace(scale=None))
    g = torch.Generator().manual_seed(seed)
    grid = tuple(GRIDS)[int(torch.randint(2, (1,), generator=g))]
    low, high = GRIDS[grid]
    decades = torch.randint(low, high + 1, (3, 1), generator=g)
    weights = [*(10.0 ** decades.double()).float().double(), None]
    return Case(drawn._replace(grid=grid, weights=weights), grid == "promised")


def check(case: Case) -> Found:
    """Finite, of mass 1, a mean of the samples; and a small gap and the right derivatives, or a warning.

    The quadratic problem is not always solved in MAX_ITER steps, and not in 200; what must not be is silence.
    """
    found, c = Found(), case.sets
    own = [None if w is None else w.to(c.dtype) for w in c.weights]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        solver = newton(c.solver, max_iter=MAX_ITER)
        results = solved(c.problem.to(c.dtype), own, solver, plan=c.plan)
        gap, rounding = certified_gap(c, solver)
    found.wrong += [f"{name} is not finite" for name, t in results.items() if not t.isfinite().all()]
    found.wrong += sets.wrong_values(c, results["value"])
    warned = [w for w in caught if issubclass(w.category, ConvergenceWarning)]
    found.wrong += [f"a warning: {w.message}" for w in caught if w not in warned]
    if warned:
        found.skipped += 2
        assert own[0] is not None
        exponent = float(c.problem.X.max() - c.problem.X.min()) / float(own[0].min())
        if case.certified and REGULARIZER[c.solver] == "entropic" and exponent <= MOST_EXPONENT:
            found.wrong.append(f"a warning: {warned[0].message}")
    if found.wrong or warned:
        return found
    if gap > rounding:
        found.wrong.append(f"a gap of {gap:.1e} without a warning, at most {rounding:.1e} is allowed")
    if case.certified:
        for name, error in identities(c, results).items():
            found.compare(name, error, tol.CONVERGED[str(c.dtype).removeprefix("torch.")])
    return found


def certified_gap(c: sets.Case, solver: Solver) -> tuple[float, float]:
    """Return the largest gap of the plan in float64, and the gap that rounding alone may cause.

    The gap is infinite where a marginal underflows, which says nothing.
    """
    p = c.problem
    alpha0, alpha1, alpha2 = alphas = [w for w in c.weights if w is not None]
    posed = Problem(p.X, alpha0=alpha0, alpha1=alpha1, alpha2=alpha2, **priors_of(p, p.p0, p.q0), **p.layout)
    gaps = posed.gap(posed.plan(solver), REGULARIZER[c.solver])
    size = float(p.X.max() - p.X.min()) + sum(map(float, alphas))
    rounding = tol.GAP_ROUNDING * torch.finfo(torch.float64).eps * size
    return float(gaps[gaps.isfinite()].amax()) if bool(gaps.isfinite().any()) else 0.0, max(1e-12, rounding)


def identities(c: sets.Case, results: dict[str, Tensor]) -> dict[str, float]:
    """Return the residuals of two identities, in units of their terms.

    A constant added to X is added to the pooled output, and changes no plan. A factor on X and on all
    weights multiplies the pooled output, and changes no plan either (Euler's identity).
    """
    value, dX = results["value"].double(), results["X"].double()
    cotangent = randn(*value.shape, seed=11)
    there = torch.zeros(c.problem.num_sets).index_add(0, c.problem.set_of, c.problem.present.float()) > 0
    shifted = torch.zeros(()) if c.plan else cotangent[there].sum()
    grown = torch.zeros(()) if c.plan else (cotangent * value).sum()
    by_X = torch.where(c.problem.present.reshape(*dX.shape[:-1], 1), c.problem.X, 0.0) * dX
    by_weights = [w * results[n].double() for n, w in zip(WEIGHTS, c.weights, strict=True) if w is not None]
    terms = [by_X.flatten(), *by_weights, -grown.reshape(1).double()]
    every = torch.cat(terms)
    size = max(1.0, float(every.abs().sum()))
    return {
        "shift": abs(float(dX.sum() - shifted)) / max(1.0, float(dX.abs().sum())),
        "factor": abs(float(every.sum())) / size,
    }
