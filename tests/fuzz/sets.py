"""Small sets: all solvers of K modules, layouts, precisions, priors, and weights of each module."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests import tolerances as tol
from tests.backends.harness import WEIGHTS, Problem, Weights, dense, masked, ragged, solved
from tests.cases import SOLVERS
from tests.fuzz.found import Found

# Every weight of every module is drawn from these decades by itself.
GRIDS = {"promised": (-5, 4), "beyond": (-8, 8)}
MANY_ROWS = 1000
SPREADS = {"unit": (1.0, 0.0), "signed": (6.0, -3.0), "large": (1e3, 0.0)}


class Case(NamedTuple):
    solver: str
    grid: str
    dtype: torch.dtype
    plan: bool
    problem: Problem  # in float64, of numbers that float32 has
    weights: Weights

    def describe(self) -> str:
        shape, layout = tuple(self.problem.X.shape), sorted(self.problem.layout)
        weights = [None if w is None else [f"{x:.0e}" for x in w] for w in self.weights]
        scale = None if self.problem.scale is None else [f"{x:.0e}" for x in self.problem.scale.reshape(-1)]
        how = f"{self.solver} {self.grid} {self.dtype} plan={self.plan} {shape} {layout} scale={scale}"
        return f"{how} {weights}"


def draw(seed: int) -> Case:
    """The case of this number; every second one is within what is promised."""
    grid = tuple(GRIDS)[seed % 2]
    g = torch.Generator().manual_seed(seed)

    def choose(options: Any) -> Any:
        return options[int(torch.randint(len(options), (1,), generator=g))]

    def size(most: int) -> int:
        return 1 + int(torch.randint(most, (1,), generator=g))

    solver, dtype, plan = choose(SOLVERS), choose((torch.float32, torch.float64)), choose((False, True))
    layout, K = choose(("dense", "mask", "ptr", "index")), size(8)
    priors = {"p0": choose(("each", "shared", "uniform")), "q0": choose((False, True))}
    B, N, D = size(3), size(16), size(12)
    if layout == "dense":
        problem = dense(B, N, D, seed, **priors)
    elif layout == "mask":
        problem = masked(B, N, D, seed, **priors)
    else:
        problem = ragged(layout, [size(N) for _ in range(B)], D, seed, **priors)
    if choose((False, False, True)):  # priors down to the smallest number, and below
        p0, q0 = (None if t is None else 30 * t for t in (problem.p0, problem.q0))
        problem = problem._replace(p0=p0, q0=q0)
    times, plus = SPREADS[choose(tuple(SPREADS))]
    low, high = GRIDS[grid]
    decades = torch.randint(low, high + 1, (4, K), generator=g)
    if choose((False, True)):  # each weight the same in all modules
        decades = decades[:, :1].expand(4, K)
    weights = (10.0 ** decades.double()).float().double()
    own = [*weights[:3], None if solver == "sinkhorn" else weights[3]]
    X = (times * problem.X + plus).float().double()
    return Case(solver, grid, dtype, plan, problem._replace(X=X, scale=draw_scale(seed, D)), own)


def draw_scale(seed: int, D: int) -> Tensor | None:
    """Draw one for two of five cases: a number, or one per feature, of any decade and sign, some of them 0."""
    if seed % 5 not in (0, 3):
        return None
    g = torch.Generator().manual_seed(seed + 2**32)
    decades = torch.randint(-5, 5, (D,), generator=g)
    signs = torch.randint(-2, 3, (D,), generator=g).sign()
    scale = (signs * 10.0 ** decades.double()).float().double()
    return scale[0] if seed % 5 == 0 else scale


def check(case: Case) -> Found:
    """Check that results are finite, of mass 1, means of the samples, and as exact as those of torch."""
    found = Found()
    results: dict[str, dict[str, Tensor]] = {}
    own = [None if w is None else w.to(case.dtype) for w in case.weights]
    for impl in ("cpu", "reference"):
        results[impl] = solved(case.problem.to(case.dtype), own, case.solver, plan=case.plan, impl=impl)
        spoilt = [name for name, t in results[impl].items() if not t.isfinite().all()]
        found.wrong += [f"{impl}: {name} is not finite" for name in spoilt]
        found.wrong += [f"{impl}: {what}" for what in wrong_values(case, results[impl]["value"])]
    if found.wrong or case.grid != "promised":
        return found
    smallest = min(float(w.min()) for w in (case.weights[0], case.weights[3]) if w is not None)
    exponent = float(plan_of(case.problem).abs().max()) / smallest
    found.compare_all(case.dtype, results, partial(in_units, case), partial(errors, case), exponent)
    return found


def plan_of(problem: Problem) -> Tensor:
    """Return what the plan is of: X, or scale X."""
    return problem.X if problem.scale is None else problem.scale * problem.X


def in_units(case: Case, unit: float) -> dict[str, Tensor]:
    """The reference in float64 with X and all weights times `unit`; the results brought back to those of 1."""
    problem = case.problem._replace(X=unit * case.problem.X)
    weights = [None if w is None else unit * w for w in case.weights]
    results = solved(problem, weights, case.solver, plan=case.plan, impl="reference")
    of_value = 1.0 if case.plan else unit  # a plan has no unit
    return {
        name: t * ((unit if name == "X" or name in WEIGHTS else 1.0) / of_value) for name, t in results.items()
    }


def wrong_values(case: Case, value: Tensor) -> list[str]:
    p = case.problem
    flat = p.X.reshape(-1, p.X.shape[-1]).to(value.dtype)
    per_set = torch.zeros(p.num_sets).index_add(0, p.set_of, p.present.float()) > 0
    wrong = []
    if case.plan:
        rows = value.reshape(-1, value.shape[-1]).double()
        mass = torch.zeros(p.num_sets, dtype=torch.float64).index_add(0, p.set_of, rows.sum(-1))
        off = float((mass - per_set.double()).abs().max())
        if off > (tol.MASS_F32 if len(rows) < MANY_ROWS else tol.MASS_F32_LARGE):
            wrong.append(f"a mass that is off by {off:.1e}")
        if float(value.min()) < 0:
            wrong.append("a negative plan")
        return wrong
    for b in range(p.num_sets):
        mine = flat[(p.set_of == b) & p.present]
        if len(mine) == 0:
            continue
        slack = tol.F32 * float(mine.max() - mine.min() + mine.abs().max())
        if bool((value[b] > mine.amax(0) + slack).any() or (value[b] < mine.amin(0) - slack).any()):
            wrong.append("an output that is no mean of the samples")
    return wrong


def errors(case: Case, got: dict[str, Tensor], want: dict[str, Tensor]) -> dict[str, float]:
    """Largest error of each result in units of its natural scale.

    The output is within the range of X, so a change of a weight by a factor, or of a prior, moves it by about
    that much; one of X by its own size and, through the plan, by the range over alpha0, and one of a scale by
    the range of X over alpha0.
    """
    X = case.problem.X
    width = max(float(X.max() - X.min()), 1e-3) if X.numel() else 1.0
    size = 1.0 if case.plan else width
    assert case.weights[0] is not None
    alpha0, most_scale = float(case.weights[0][-1]), 1.0
    if case.problem.scale is not None:
        most_scale = float(case.problem.scale.abs().max())
    scales = {"value": size, "X": 1.0 + size * most_scale / alpha0, "scale": size * max(1.0, width / alpha0)}
    found = {}
    for name, w in want.items():
        weight = case.weights[WEIGHTS.index(name)] if name in WEIGHTS else None
        by_logarithm = 1.0 if weight is None else weight
        if w.numel():
            error, most = (float((t * by_logarithm).abs().max()) for t in (got[name].double() - w, w))
            found[name] = error / max(scales.get(name, size), most)
    return found
