"""Random problems over all solvers, layouts, precisions and weights, and what must hold of each of them.

`python -m tests.fuzz 10000` runs that many (seeds 0, 1, ...) and prints what failed; a part of them runs in the
tests.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import torch
from torch import Tensor

import uotpool
from tests import tolerances as tol
from tests.cases import SOLVERS
from tests.kernels.harness import WEIGHTS, Problem, Weights, dense, masked, ragged, solved

# Every weight of every module is drawn from these decades by itself.
GRIDS = {"promised": (-5, 4), "beyond": (-8, 8)}
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
        return f"{self.solver} {self.grid} {self.dtype} plan={self.plan} {shape} {layout} {weights}"


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
    return Case(solver, grid, dtype, plan, problem._replace(X=X), own)


def failures(case: Case) -> list[str]:
    """What does not hold: finite everywhere, mass 1, a mean of the samples, the kernels as good as torch."""
    wrong: list[str] = []
    results: dict[str, dict[str, Tensor]] = {}
    own = [None if w is None else w.to(case.dtype) for w in case.weights]
    for impl in ("cpu", "reference"):
        results[impl] = solved(case.problem.to(case.dtype), own, case.solver, plan=case.plan, impl=impl)
        spoilt = [name for name, t in results[impl].items() if not t.isfinite().all()]
        wrong += [f"{impl}: {name} is not finite" for name in spoilt]
        wrong += [f"{impl}: {what}" for what in wrong_values(case, results[impl]["value"])]
    if wrong or case.grid != "promised":
        return wrong
    truth = solved(case.problem, case.weights, case.solver, plan=case.plan, impl="reference")
    single = results["reference"]
    if case.dtype == torch.float64:
        own = [None if w is None else w.float() for w in case.weights]
        single = solved(case.problem.to(torch.float32), own, case.solver, plan=case.plan, impl="reference")
    # How much of a number's rounding the reference makes: some weights magnify it without bound.
    magnified = max(errors(case, single, truth).values()) / torch.finfo(torch.float32).eps
    if magnified > tol.FUZZ_LOST:
        return wrong
    assert case.weights[0] is not None
    ratio = float(case.problem.X.abs().max() / case.weights[0].min())  # the largest exponent, which rounds too
    for name, error in errors(case, results["cpu"], truth).items():
        times = tol.FUZZ_TIMES_WEIGHTS if name in WEIGHTS else tol.FUZZ_TIMES
        eps = torch.finfo(case.dtype).eps
        bound = max(eps * max(times * magnified, tol.FUZZ), tol.kernel(name, eps, ratio))
        if not error <= bound:
            wrong.append(f"{name}: off by {error:.1e} of its scale, at most {bound:.1e} is allowed")
    return wrong


def wrong_values(case: Case, value: Tensor) -> list[str]:
    p = case.problem
    flat = p.X.reshape(-1, p.X.shape[-1]).to(value.dtype)
    per_set = torch.zeros(p.num_sets).index_add(0, p.set_of, p.present.float()) > 0
    wrong = []
    if case.plan:
        rows = value.reshape(-1, value.shape[-1]).double()
        mass = torch.zeros(p.num_sets, dtype=torch.float64).index_add(0, p.set_of, rows.sum(-1))
        off = float((mass - per_set.double()).abs().max())
        if off > tol.MASS_F32:
            wrong.append(f"a mass of {float(mass[(mass - per_set.double()).abs().argmax()]):.3g}")
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
    that much; one of X by its own size and, through the plan, by the range over alpha0.
    """
    X = case.problem.X
    width = max(float(X.max() - X.min()), 1e-3) if X.numel() else 1.0
    size = 1.0 if case.plan else width
    assert case.weights[0] is not None
    scales = {"value": size, "X": 1.0 + size / float(case.weights[0][-1])}
    found = {}
    for name, w in want.items():
        weight = case.weights[WEIGHTS.index(name)] if name in WEIGHTS else None
        by_logarithm = 1.0 if weight is None else weight
        if w.numel():
            error, most = (float((t * by_logarithm).abs().max()) for t in (got[name].double() - w, w))
            found[name] = error / max(scales.get(name, size), most)
    return found


def main(count: int) -> int:
    uotpool.check(False)  # priors that underflow to 0 are among what is drawn
    failed = 0
    for seed in range(count):
        case = draw(seed)
        found = failures(case)
        if found:
            failed += 1
            print(f"seed {seed}: {case.describe()}: {found}", flush=True)
    print(f"{count} cases, {failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(min(1, main(int(sys.argv[1]))))
