"""One problem, solved with all its derivatives by a backend: what the tests of the kernels compare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

import uotpool
from tests import tolerances as tol
from tests.cases import module_weights
from uotpool import BregmanADMM, Newton, Sinkhorn, backends
from uotpool.coefficients import NAMES, Coefficients, transformed
from uotpool.solvers import Solver

WEIGHTS = NAMES[:4]
IDENTITY = ("identity",) * len(NAMES)
Weights = list[Any]  # alpha0, alpha1, alpha2, rho: tensors, numbers to fix them, or None
# Sizes of the sets of a batch in which some are empty.
EMPTY = {"first": [0, 5, 3], "middle": [4, 0, 0, 3], "last": [2, 9, 0], "all": [0, 0], "none": []}
# From X in the unit interval to what is away from it.
INPUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "signed": lambda X: 6 * X - 3,
    "negative": lambda X: -X - 2,
    "offset": lambda X: (X + 1e4).float().double(),
    "large": lambda X: (1e3 * X).float().double(),
}


class Problem(NamedTuple):
    """Samples in some layout. Priors are logits, made distributions on the way, or None: uniform."""

    X: Tensor
    layout: dict[str, Any]
    set_of: Tensor  # of each row, flat
    present: Tensor  # bool, flat
    num_sets: int
    p0: Tensor | None
    q0: Tensor | None
    scale: Tensor | None = None  # (), (1,) or (D,)

    def to(self, dtype: torch.dtype) -> Problem:
        given = (self.X, self.p0, self.q0, self.scale)
        X, p0, q0, scale = (None if t is None else t.to(dtype) for t in given)
        assert X is not None
        return self._replace(X=X, p0=p0, q0=q0, scale=scale)


# What is drawn are float32 numbers in float64: one solution in float64 serves both precisions.


def randn(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).double()


def rand(*size: int, seed: int = 0) -> Tensor:
    return torch.rand(*size, generator=torch.Generator().manual_seed(seed)).double()


def dense(B: int, N: int, D: int, seed: int = 0, *, p0: str = "each", q0: bool = True) -> Problem:
    """X in [0, 1]; `p0` is of "each" set, "shared" or "uniform"."""
    feature = {"each": randn(B, D, seed=seed + 1), "shared": randn(D, seed=seed + 1), "uniform": None}[p0]
    sample = randn(B, N, seed=seed + 2) if q0 else None
    set_of = torch.arange(B).repeat_interleave(N)
    there = torch.ones(B * N, dtype=torch.bool)
    return Problem(rand(B, N, D, seed=seed), {}, set_of, there, B, feature, sample)


def masked(B: int, N: int, D: int, seed: int = 0, **priors: Any) -> Problem:
    """Holes anywhere; the last set has no sample but where it is the only one."""
    problem = dense(B, N, D, seed, **priors)
    mask = rand(B, N, seed=seed + 3) < 0.7
    mask[:, 0] = True
    mask[1:][-1:] = False
    return problem._replace(layout={"mask": mask}, present=mask.flatten())


def ragged(kind: str, sizes: list[int], D: int, seed: int = 0, **priors: Any) -> Problem:
    """Sets of these sizes by "ptr", by "index" in a random order of the rows, or by "sorted" index."""
    base = dense(1, sum(sizes), D, seed, **priors)
    set_of = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes, dtype=torch.int64))
    if kind == "index":
        set_of = set_of[torch.randperm(len(set_of), generator=torch.Generator().manual_seed(seed))]
    layout: dict[str, Any] = {"index": set_of, "dim_size": len(sizes)}
    if kind == "ptr":
        layout = {"ptr": torch.tensor([0, *sizes]).cumsum(0)}
    p0 = base.p0
    if p0 is not None and p0.dim() == 2:
        p0 = randn(len(sizes), D, seed=seed + 1)
    q0 = None if base.q0 is None else base.q0[0]
    return Problem(base.X[0], layout, set_of, base.present, len(sizes), p0, q0)


def sizes_like(B: int, N: int) -> list[int]:
    """B sizes around N with an empty set in the middle."""
    return [max(0, N + (b * 5) % 7 - 3) if b != B // 2 or B == 1 else 0 for b in range(B)]


def sample_prior(problem: Problem, logits: Tensor) -> Tensor:
    """Softmax within each set; 0 at absent samples."""
    flat = torch.where(problem.present, logits.flatten(), -torch.inf)
    top = flat.new_full((problem.num_sets,), -torch.inf).scatter_reduce(
        0, problem.set_of, flat.detach(), "amax"
    )
    e = (flat - top.clamp_min(torch.finfo(flat.dtype).min)[problem.set_of]).exp()
    total = e.new_zeros(problem.num_sets).index_add(0, problem.set_of, e)
    return (e / total.clamp_min(1e-30)[problem.set_of]).reshape(logits.shape)


def solver_of(name: str, K: int) -> Solver:
    """Return a solver that has a kernel, by its name."""
    return {
        "sinkhorn": Sinkhorn(K),
        "badmm-e": BregmanADMM("entropic", K),
        "badmm-q": BregmanADMM("quadratic", K),
    }[name]


def newton(name: str, **options: Any) -> Newton:
    return Newton("quadratic" if name == "badmm-q" else "entropic", **options)


def steps(weights: Weights) -> int:
    """Return K: the largest number of values of a coefficient."""
    return max(len(w) if isinstance(w, tuple) else w.numel() if isinstance(w, Tensor) else 1 for w in weights)


def priors_of(problem: Problem, p0: Tensor | None, q0: Tensor | None) -> dict[str, Any]:
    """Return logits as the priors that a user passes."""
    made = {} if p0 is None else {"p0": p0.softmax(-1)}
    return made if q0 is None else made | {"q0": sample_prior(problem, q0)}


def solved(
    problem: Problem,
    weights: Weights,
    solver: str | Solver,
    *,
    plan: bool = False,
    impl: str = "auto",
    transforms: tuple[str, ...] = IDENTITY,
) -> dict[str, Tensor]:
    """Value, and the derivative of a random combination of it by every tensor there is.

    Args:
        problem, weights: the scale is the problem's.
        solver: of as many steps as there are values of a weight, if it is a name.
        plan: whether the value is the plan.
        impl: the backend.
        transforms: what the tensors among the coefficients are to these.
    """
    leaves = {"X": problem.X, "p0": problem.p0, "q0": problem.q0, "scale": problem.scale}
    leaves |= dict(zip(WEIGHTS, weights, strict=True))
    inputs = {name: t.detach().clone().requires_grad_() for name, t in leaves.items() if isinstance(t, Tensor)}
    algorithm = solver_of(solver, steps(weights)) if isinstance(solver, str) else solver
    dtype = problem.X.dtype
    values: dict[str, Any] = {name: leaves[name] for name in NAMES}
    values |= {name: inputs[name].to(dtype).reshape(-1) for name in NAMES if name in inputs}
    posed = uotpool.Problem(
        inputs["X"],
        alpha0=1.0,
        alpha1=1.0,
        alpha2=1.0,
        rho=1.0 if algorithm.uses_rho else None,
        **priors_of(problem, inputs.get("p0"), inputs.get("q0")),
        **problem.layout,
    )
    call = posed._for(algorithm)._replace(coefficients=Coefficients(**values, transforms=transforms))
    value = backends.choose(call.X, algorithm, impl).solve(call, plan=plan)
    cotangent = randn(*value.shape, seed=11).to(value.dtype)
    if plan:
        cotangent = cotangent * problem.X.shape[-1]  # else all derivatives would be tiny
    grads = torch.autograd.grad(value, list(inputs.values()), cotangent)
    return {"value": value.detach(), **dict(zip(inputs, grads, strict=True))}


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> list[str]:
    """Return the names of results that differ in some bit."""
    assert a.keys() == b.keys()
    return [name for name in a if not torch.equal(a[name], b[name])]


def modules(solver: str, K: int, seed: int = 0) -> Weights:
    """Draw weights between 0.3 and 3, different in each step."""
    return [None if w is None else w.detach().float().double() for w in module_weights(solver, K, seed)]


def cast(weights: Weights, dtype: torch.dtype) -> Weights:
    return [w.to(dtype) if isinstance(w, Tensor) else w for w in weights]


def compare(
    problem: Problem,
    weights: Weights,
    solver: str,
    *,
    plan: bool = False,
    slack: float = 1.0,
    transforms: tuple[str, ...] = IDENTITY,
    impl: str = "cpu",
    dtypes: tuple[torch.dtype, ...] = (torch.float64, torch.float32),
) -> None:
    """Fused kernels against the reference in float64, values and all derivatives."""
    algorithm = solver_of(solver, steps(weights))
    want = solved(problem, weights, algorithm, plan=plan, impl="reference", transforms=transforms)
    values = [value_of(w, transform) for w, transform in zip(weights, transforms, strict=False)]
    scale = 1.0 if problem.scale is None else value_of(problem.scale, transforms[-1])
    Z = scale * problem.X
    most = float(Z.abs().max()) if Z.numel() else 0.0
    ratio = most / float(torch.as_tensor(values[0]).min())
    for dtype in dtypes:
        got = solved(
            problem.to(dtype), cast(weights, dtype), algorithm, plan=plan, impl=impl, transforms=transforms
        )
        assert got["value"].dtype == dtype
        for name, error in off(got, want, problem, weights, plan=plan, transforms=transforms).items():
            bound = tol.kernel(name, torch.finfo(dtype).eps, ratio, slack)
            assert error <= bound, (name, dtype, error, bound)


def value_of(raw: Any, transform: str) -> Any:
    """Return a coefficient of what makes it."""
    return transformed(raw.detach(), transform) if isinstance(raw, Tensor) else raw


def off(
    got: dict[str, Tensor],
    want: dict[str, Tensor],
    problem: Problem,
    weights: Weights,
    *,
    plan: bool = False,
    transforms: tuple[str, ...] = IDENTITY,
) -> dict[str, float]:
    """Errors relative to the largest entry, but not to less than 1e-3.

    Derivatives by coefficients are made ones by their logarithms first, those by parameters of a scale ones by
    the scale. These and the ones by priors are in the units of the output, so its range is what 1e-3 is of,
    where it is more than 1.
    """
    assert got.keys() == want.keys()
    values = want["value"]
    spread = 1.0 if plan or not values.numel() else max(1.0, float(values.max() - values.min()))
    raw = dict(zip(NAMES, (*weights, problem.scale), strict=True))
    errors = {}
    for name, g in got.items():
        w = want[name]
        assert g.shape == w.shape, name
        assert g.isfinite().all(), name
        if not g.numel():
            continue
        unit: Any = 1.0
        if name in NAMES:
            leaf = raw[name].detach().double().clone().requires_grad_()
            value = transformed(leaf, transforms[NAMES.index(name)])
            (slope,) = torch.autograd.grad(value.sum(), leaf)
            unit = (1.0 if name == "scale" else value.detach()) / slope
        floor = 1e-3 * (1.0 if name in ("value", "X") else spread)
        errors[name] = float(((g.double() - w) * unit).abs().max()) / max(float((w * unit).abs().max()), floor)
    return errors
