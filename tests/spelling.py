"""Problems and layers from short words, for tables of cases: a solver's name, K, "exact" or "paper"."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from uotpool import BregmanADMM, Learned, Newton, Problem, Sinkhorn, UOTPooling, published
from uotpool.solvers import Solver

NAMES = ("alpha0", "alpha1", "alpha2")
REGULARIZER = {"sinkhorn": "entropic", "badmm-e": "entropic", "badmm-q": "quadratic"}


def solver_of(
    solver: str,
    K: Any = 4,
    formulation: str = "exact",
    readout: str = "conditional",
    tol: float | None = None,
    max_iter: int | None = None,
) -> Solver:
    regularizer: Any = REGULARIZER[solver]
    if K == "converged":
        return Newton(regularizer, tol, **({} if max_iter is None else {"max_iter": max_iter}))
    if formulation == "paper":
        output: Any = "code" if readout == "authors" else "equation"
        if solver == "sinkhorn":
            return published.Sinkhorn(K, output)
        return published.BregmanADMM(regularizer, K, output)
    return Sinkhorn(K) if solver == "sinkhorn" else BregmanADMM(regularizer, K)


def _posed(
    X: Tensor,
    alpha0: Any,
    alpha1: Any,
    alpha2: Any,
    rho: Any = None,
    *,
    solver: str = "sinkhorn",
    K: Any = None,
    formulation: str = "exact",
    readout: str = "conditional",
    tol: float | None = None,
    max_iter: int | None = None,
    **problem: Any,
) -> tuple[Problem, Solver]:
    """Return the problem and its solver, of as many steps as a coefficient has values, or 4."""
    if K is None:
        several = (v for v in (alpha0, alpha1, alpha2, rho) if isinstance(v, (list, tuple, Tensor)))
        K = next((len(v) for v in several if not isinstance(v, Tensor) or v.dim() == 1), 4)
    algorithm = solver_of(solver, K, formulation, readout, tol, max_iter)
    return Problem(X, alpha0=alpha0, alpha1=alpha1, alpha2=alpha2, rho=rho, **problem), algorithm


def uot_pool(*args: Any, readout: str = "conditional", impl: str = "auto", **words: Any) -> Tensor:
    problem, algorithm = _posed(*args, readout=readout, **words)
    return problem.pool(algorithm, reduce="sum" if readout == "sum" else "mean", impl=impl)


def uot_plan(*args: Any, impl: str = "auto", **words: Any) -> Tensor:
    problem, algorithm = _posed(*args, **words)
    return problem.plan(algorithm, impl=impl)


def duality_gap(X: Tensor, P: Tensor, *alphas: Any, regularizer: str = "entropic", **problem: Any) -> Tensor:
    return Problem(X, **dict(zip(NAMES, alphas, strict=True)), **problem).gap(P, regularizer)


def objective(X: Tensor, P: Tensor, *alphas: Any, regularizer: str = "entropic", **problem: Any) -> Tensor:
    return Problem(X, **dict(zip(NAMES, alphas, strict=True)), **problem).objective(P, regularizer)


def plan_stats(P: Tensor, **problem: Any) -> Any:
    return Problem(P, alpha0=1.0, alpha1=1.0, alpha2=1.0, **problem).stats(P)


def coefficient(value: Any, name: str, init: dict[str, Any], shared: bool = False) -> Any:
    """Return what a layer takes: None is softplus for each step, "log" the exponential for all."""
    if value is None:
        return Learned(init.get(name), "softplus", per_step=not shared)
    return Learned(init.get(name)) if isinstance(value, str) and value == "log" else value


def make_layer(
    dim: int,
    *,
    solver: str = "sinkhorn",
    K: Any = 4,
    scale: Any = "feature",
    formulation: str = "exact",
    shared: bool = False,
    alpha0: Any = 1.0,
    alpha1: Any = "log",
    alpha2: Any = "log",
    rho: Any = "log",
    init: dict[str, Any] | None = None,
    start: str | None = None,
    readout: str = "conditional",
    tol: float | None = None,
    max_iter: int | None = None,
    **options: Any,
) -> UOTPooling:
    """Make a `UOTPooling` from the words of a table of cases."""
    algorithm = solver_of(solver, K, formulation, readout, tol, max_iter)
    shared = shared or K == "converged"
    given = {"alpha0": alpha0, "alpha1": alpha1, "alpha2": alpha2}
    if algorithm.uses_rho:
        given["rho"] = rho
    arguments: dict[str, Any] = {
        name: coefficient(value, name, init or {}, shared) for name, value in given.items()
    }
    begin = Learned(0.0 if start == "mean" else 1.0)
    arguments |= {"scale": 1.0 if scale is None and start is None else begin}
    arguments |= {name: value for name, value in options.items() if not _is_uniform(value)}
    return UOTPooling(dim, algorithm, reduce="sum" if readout == "sum" else "mean", **arguments)


def _is_uniform(prior: Any) -> bool:
    return isinstance(prior, str) and prior == "uniform"


def classic(dim: int, **options: Any) -> UOTPooling:
    """Make the layer of the paper, solved exactly: all coefficients by softplus for each step, no scale."""
    return make_layer(dim, **CLASSIC | options)


# The layer of 0.1 and of the paper, solved exactly.
CLASSIC: dict[str, Any] = dict.fromkeys(("alpha0", "alpha1", "alpha2", "rho", "scale"))
