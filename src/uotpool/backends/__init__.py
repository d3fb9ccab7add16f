"""Choose the implementation that solves a problem.

A backend is one object that says whether it takes a call, and if not, why. The fastest one that
takes the call solves it.
"""

from __future__ import annotations

from torch import Tensor

from uotpool import checks
from uotpool.backends.base import READOUTS, Backend, SolverOptions
from uotpool.backends.cpu.backend import CPU
from uotpool.backends.reference import REFERENCE
from uotpool.backends.triton.backend import TRITON
from uotpool.problem import Problem
from uotpool.solvers import FORMULATIONS, SOLVERS

# The fastest first; each of the fused ones is for other devices.
BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (CPU, TRITON, REFERENCE)}
IMPLEMENTATIONS = ("auto", *BACKENDS)

__all__ = [
    "BACKENDS",
    "IMPLEMENTATIONS",
    "READOUTS",
    "Backend",
    "SolverOptions",
    "available",
    "choose",
    "explain_impl",
    "plan",
    "pool",
    "reads_as_is",
    "resolve_impl",
    "solver_options",
]


def available() -> dict[str, str]:
    """Return every backend with "" if it can be used here, else with the reason why not."""
    return {name: backend.unavailable() for name, backend in BACKENDS.items()}


def solver_options(
    solver: str,
    K: object,
    formulation: str,
    tol: float | None,
    max_iter: int | None,
    impl: str,
    readout: str = "conditional",
) -> SolverOptions:
    """Make valid options from the names that a user passes."""
    converged = checks.converged(K)
    checks.one_of("solver", solver, tuple(SOLVERS))
    checks.one_of("formulation", formulation, FORMULATIONS)
    checks.one_of("impl", impl, IMPLEMENTATIONS)
    checks.one_of("readout", readout, READOUTS)
    if readout == "authors" and formulation != "paper":
        raise ValueError(
            'readout: "authors" (what the published runs put out) goes with formulation="paper" only, '
            f"got formulation={formulation!r}"
        )
    if converged and formulation == "paper":
        raise ValueError(
            'K: "converged" goes with formulation="exact" only (the published iterations do not lead to the '
            f"optimum), got formulation={formulation!r}"
        )
    for name, value in (("tol", tol), ("max_iter", max_iter)):
        if value is not None and not converged:
            checks.fail(name, 'None unless K="converged"', value)
    if tol is not None:
        checks.number("tol", tol, positive=True)
    if max_iter is not None:
        checks.count("max_iter", max_iter, 1)
    options = SolverOptions(SOLVERS[solver], formulation, converged, tol, max_iter, impl, readout)
    _check_named(options)
    return options


def _check_named(options: SolverOptions) -> None:
    """Raise if a backend was asked for by name and cannot be used, or cannot solve in this way."""
    if options.impl == "auto":
        return
    backend = BACKENDS[options.impl]
    if reason := backend.unavailable():
        raise ValueError(f"impl: {options.impl!r} cannot be used: {reason}; use impl='auto' or 'reference'")
    if reason := backend.refuses(options):
        raise ValueError(f'impl: "{options.impl}" {reason}; use "auto" or "reference"')


def choose(X: Tensor, K: int, options: SolverOptions, *, num_sets: int | None = None) -> Backend:
    """Return the backend for this call; raise if one was asked for by name and cannot take X.

    Args:
        X: input.
        K: number of modules.
        options: how to solve.
        num_sets: number of sets; None where it is not known yet, and does not count.
    """
    if K == 0:  # there is nothing to solve
        return REFERENCE
    if options.impl == "auto":
        for backend in BACKENDS.values():  # the reference, which is the last, takes every call
            if backend.unavailable() or backend.refuses(options) or backend.refuses_input(X):
                continue
            if num_sets is not None and backend.refuses_sets(X, num_sets, options):
                continue
            if K <= backend.most_modules:
                return backend
    backend = BACKENDS[options.impl]
    if reason := backend.refuses_input(X):
        checks.fail("X", f'for impl="{options.impl}" {reason}', X)
    if num_sets is not None and (reason := backend.refuses_sets(X, num_sets, options)):
        checks.fail("X", f'for impl="{options.impl}" {reason}', X)
    if K > backend.most_modules:
        checks.fail("K", f'at most {backend.most_modules} modules for impl="{options.impl}"', K)
    return backend


def reads_as_is(X: Tensor, options: SolverOptions) -> bool:
    """Say whether the backend for this X takes it as it is: of half precision, with anything in absent rows."""
    if options.impl != "auto":
        return BACKENDS[options.impl].reads_as_is
    return not X.is_cpu and choose(X, 1, options).reads_as_is


def pool(problem: Problem, options: SolverOptions) -> Tensor:
    """Pool X by its plan, or by the plan of scale * X: (B, D)."""
    backend, problem = _prepared(problem, options)
    y = backend.pool(problem, options)
    return y * problem.sets.squeeze(problem.sizes(y)) if options.readout == "sum" else y


def plan(problem: Problem, options: SolverOptions) -> Tensor:
    """Return the plan of X, or of scale * X, in the shape of X."""
    backend, problem = _prepared(problem, options)
    return backend.plan(problem, options)


def _prepared(problem: Problem, options: SolverOptions) -> tuple[Backend, Problem]:
    """Return the backend, and the problem as this backend reads it."""
    backend = choose(problem.X, problem.num_modules(), options, num_sets=problem.sets.num_sets)
    if problem.as_is and not backend.reads_as_is:  # K = 0, or sets that it does not take
        problem = problem.widened()
    return backend, problem


def resolve_impl(X: Tensor, solver: str, impl: str = "auto") -> str:
    """Return the name of the implementation that a call with this X runs.

    The fused kernels, "cpu" and, for CUDA and ROCm, "triton", are for the K modules of the exact
    formulation ("triton": with at most 1024 features, and for "badmm-q" sets of at most 131072
    entries on average). Everything else always runs in the reference: `formulation="paper"`,
    `K="converged"`, K = 0, derivatives beyond first ones in reverse mode (`torch.func`, forward
    mode), `torch.jit.trace` and ONNX export.
    `explain_impl` says why.

    Args:
        X: input; its device decides.
        solver: "sinkhorn", "badmm-e" or "badmm-q".
        impl: "auto" takes the fastest that is there and may fall back to "reference"; a named one
            that is missing raises and says why.
    """
    checks.tensor("X", X, "a tensor")
    checks.one_of("solver", solver, tuple(SOLVERS))
    checks.one_of("impl", impl, IMPLEMENTATIONS)
    options = SolverOptions(SOLVERS[solver], impl=impl)
    _check_named(options)
    return choose(X, 1, options).name


def explain_impl(
    X: Tensor,
    solver: str = "sinkhorn",
    *,
    formulation: str = "exact",
    converged: bool = False,
    dim_size: int | None = None,
) -> str:
    """Say which implementation `impl="auto"` takes for such a call, and why each faster one does not take it.

    Args:
        X: input.
        solver: "sinkhorn", "badmm-e" or "badmm-q".
        formulation: as in `uot_pool`.
        converged: whether K is "converged".
        dim_size: number of sets, for X of shape (M, D). None: one.
    """
    checks.tensor("X", X, "a tensor")
    checks.one_of("solver", solver, tuple(SOLVERS))
    checks.one_of("formulation", formulation, FORMULATIONS)
    checks.flag("converged", converged)
    if dim_size is not None:
        checks.count("dim_size", dim_size, 1)
    options = SolverOptions(SOLVERS[solver], formulation, converged)
    num_sets = dim_size or (X.shape[0] if X.dim() > 2 else 1)
    chosen = choose(X, 1, options, num_sets=num_sets)
    reasons = []
    for backend in BACKENDS.values():
        if backend is chosen:
            break
        if not backend.concerns(X):
            continue
        if reason := backend.unavailable():
            reasons.append(f"{backend.name} cannot be used: {reason}")
        elif reason := backend.refuses(options):
            reasons.append(f"{backend.name} {reason}")
        else:
            wanted = backend.refuses_input(X) or backend.refuses_sets(X, num_sets, options)
            reasons.append(f"{backend.name} expects {wanted}, got {checks.describe(X)}")
    return "; ".join([chosen.name, *reasons])
