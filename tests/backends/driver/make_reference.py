"""Writes reference.txt: problems with values and derivatives from the reference in float64, for
driver.c.

`python -m tests.backends.driver.make_reference` writes it anew. All inputs are float32 numbers, so
that one solution serves both precisions. A tolerance is that of the kernel tests, in the units of
the array.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests import tolerances as tol
from tests.cases import SOLVERS
from tests.backends.harness import modules, rand, randn
from uotpool.backends.base import SolverOptions
from uotpool.backends.cpu import library
from uotpool.backends.reference import REFERENCE
from uotpool.inputs import as_sets
from uotpool.problem import LOG, SOFTPLUS, VALUE, LearnedScale, LearnedWeights, Problem
from uotpool.solvers import SOLVERS as IN_TORCH

PATH = Path(__file__).parent / "reference.txt"
EPS = [torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64)]
D, K = 7, 2
SIZES = [4, 0, 19, 1]  # with an empty set; 19 is more than the lanes of any vector
# One case for each way in which sets, priors, scale and output are given.
SETS: dict[str, dict[str, Any]] = {
    "dense": {"B": 2, "N": 5},
    "priors": {"ptr": SIZES, "p0": "each", "q0": True},
    "plan": {"ptr": SIZES, "p0": "shared", "q0": True, "plan": True},
    "scale": {"B": 2, "N": 5, "scale": D, "q0": True},
    "parameters": {"B": 2, "N": 5, "scale": D, "forms": (VALUE, LOG, SOFTPLUS, LOG)},
}


def numbers(values: Tensor) -> str:
    """Return one line of numbers, each as the shortest text that reads back as the same double."""
    return " ".join(map(repr, values.flatten().tolist()))


def single(values: Tensor) -> Tensor:
    """Round to float32."""
    return values.float().double()


class Case:
    """The lines of one problem."""

    def __init__(self, name: str) -> None:
        self.lines = [f"case {name}"]

    def sizes(self, **values: int) -> None:
        self.lines += [f"size {name} {value}" for name, value in values.items()]

    def given(self, name: str, values: Tensor | None) -> None:
        if values is not None:
            kind = "in" if values.is_floating_point() else "rows"
            self.lines += [f"{kind} {name} {values.numel()}", numbers(values)]

    def want(self, name: str, values: Tensor, bounds: list[float], by: Tensor | float, floor: float) -> None:
        """Add a result. Errors times `by` are bounded relative to the largest entry, or to `floor`."""
        largest = max(float((values * by).abs().max()), floor)
        tolerances = " ".join(repr(bound * largest) for bound in bounds)
        self.lines += [f"want {name} {values.numel()} {tolerances}", numbers(values)]

    def text(self) -> str:
        return "\n".join([*self.lines, "end"]) + "\n"


def sets_case(solver: str, name: str, seed: int, **given: Any) -> str:
    """Solve one batch of sets with all derivatives."""
    sizes, plan, scale = given.get("ptr"), given.get("plan", False), given.get("scale", 0)
    B, N = (len(sizes), 0) if sizes else (given["B"], given["N"])
    M = sum(sizes) if sizes else B * N
    ptr = torch.tensor([0, *sizes]).cumsum(0) if sizes else None
    X = rand(M, D, seed=seed)
    p0 = {"each": (B, D), "shared": (D,), None: None}[given.get("p0")]
    inputs = {
        "X": X if sizes else X.view(B, N, D),
        "log_p0": None if p0 is None else single(randn(*p0, seed=seed + 1).log_softmax(-1)),
        "log_q0": single(randn(M, seed=seed + 2) - 2) if given.get("q0") else None,
        "weights": torch.stack([w for w in modules(solver, K, seed) if w is not None]),
        "scale": randn(scale, seed=seed + 4) if scale else None,
    }
    if not sizes and inputs["log_q0"] is not None:
        inputs["log_q0"] = inputs["log_q0"].view(B, N)
    forms = dict(zip(IN_TORCH[solver].weights, given.get("forms", ()), strict=False))
    for i, (weight, form) in enumerate(forms.items()):
        raw = 0.1 * randn(1 if form == LOG else K, seed=seed + 5 + i)
        inputs[f"raw_{weight}"] = single(raw + 1 if form == VALUE else raw)
    if forms:
        inputs |= {"weights": None, "scale": single(0.1 * randn(scale, seed=seed + 4))}
    leaves = {key: t.clone().requires_grad_() for key, t in inputs.items() if t is not None}
    rows, batch = as_sets(leaves["X"], None, ptr, None, None)
    log_q0 = leaves.get("log_q0")
    problem = Problem(
        rows,
        batch,
        leaves.get("log_p0"),
        None if log_q0 is None else log_q0.unsqueeze(-1),
        _learned(leaves, forms) if forms else leaves["weights"],
        LearnedScale(leaves["scale"]) if forms else leaves.get("scale"),
    )
    solve = REFERENCE.plan if plan else REFERENCE.pool
    out = solve(problem, SolverOptions(IN_TORCH[solver]))
    dout = randn(*out.shape, seed=seed + 3) * (D if plan else 1)
    grads = dict(zip(leaves, torch.autograd.grad(out, list(leaves.values()), dout), strict=True))

    case = Case(f"{solver} {name}")
    case.lines.append(f"solver {solver}")
    case.sizes(head=int(plan), K=K, B=B, M=M, N=N, D=D, p0_shared=int(p0 == (D,)), scale_length=scale)
    case.sizes(scale_form=library.TIMES_RATE if forms else 0)
    for weight, form in forms.items():
        raw_sizes = {
            f"raw_length_{weight}": len(leaves[f"raw_{weight}"]),
            f"raw_form_{weight}": library.FORMS[form],
        }
        case.sizes(**raw_sizes)
    case.given("ptr", ptr)
    for key, t in inputs.items():
        case.given(key, t)
    case.given("dout", dout)
    scales = problem.scales()
    largest = float((X * (1.0 if scales is None else scales.detach())).abs().max())
    weights = problem.weight_rows().detach()
    ratio = largest / float(weights[0].min())

    def bounds(name: str) -> list[float]:
        return [tol.kernel(name, eps, ratio) for eps in EPS]

    case.want("out", out.detach(), bounds("value"), 1.0, 1e-3)
    for key, d in grads.items():
        kind = {"log_p0": "p0", "log_q0": "q0", "weights": "alpha0"}.get(key, "alpha0" if "raw" in key else key)
        case.want(f"d{key}", d, bounds(kind), weights if key == "weights" else 1.0, 1e-3)
    return case.text()


def _learned(leaves: dict[str, Tensor], forms: dict[str, str]) -> LearnedWeights:
    return LearnedWeights(tuple(leaves[f"raw_{weight}"] for weight in forms), tuple(forms.values()), K)


def cases() -> Iterator[str]:
    """Yield the text of each problem."""
    for seed, solver in enumerate(SOLVERS):
        for name, given in SETS.items():
            yield sets_case(solver, name, 10 * seed, **given)


if __name__ == "__main__":
    PATH.write_text("".join(cases()))
    print(f"{PATH.stat().st_size} bytes in {PATH.name}")
