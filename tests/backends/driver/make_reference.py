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
from tests.backends.harness import modules, rand, randn, solver_of, value_of
from tests.cases import SOLVERS
from uotpool.backends.call import Call
from uotpool.backends.ops import TRANSFORMS
from uotpool.backends.reference import REFERENCE
from uotpool.coefficients import NAMES, Coefficients
from uotpool.inputs import as_sets

PATH = Path(__file__).parent / "reference.txt"
EPS = [torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64)]
D, K = 7, 2
SIZES = [4, 0, 19, 1]  # with an empty set; 19 is more than the lanes of any vector
IDENTITY = ("identity",) * 5
LEARNED = ("identity", "exp", "softplus", "exp", "linear")
FIXED = ("fixed",) * 5
# One case for each way in which sets, priors, coefficients and output are given.
CASES: dict[str, dict[str, Any]] = {
    "dense": {"B": 2, "N": 5},
    "priors": {"ptr": SIZES, "p0": "each", "q0": True},
    "plan": {"ptr": SIZES, "p0": "shared", "q0": True, "plan": True},
    "scale": {"B": 2, "N": 5, "scale": True, "q0": True},
    "parameters": {"B": 2, "N": 5, "scale": True, "transforms": LEARNED},
    "fixed": {"B": 2, "N": 5, "scale": True, "transforms": FIXED},
}


def numbers(values: Tensor) -> str:
    """Return one line of numbers, each as the shortest text that reads back as the same double."""
    return " ".join(map(repr, values.flatten().tolist()))


def single(values: Tensor) -> Tensor:
    """Round to float32."""
    return values.float().double()


class Text:
    """The lines of one problem."""

    def __init__(self, name: str) -> None:
        self.lines = [f"case {name}"]

    def sizes(self, **values: int) -> None:
        self.lines += [f"size {name} {value}" for name, value in values.items()]

    def array(self, kind: str, name: str, values: Tensor | None) -> None:
        """Add what the call reads: "in" in its dtype, "fixed" as doubles, "rows" as integers."""
        if values is not None:
            self.lines += [f"{kind} {name} {values.numel()}", numbers(values)]

    def want(self, name: str, values: Tensor, bounds: list[float]) -> None:
        """Add a result, bounded relative to its largest entry, or to 1e-3."""
        largest = max(float(values.abs().max()), 1e-3)
        tolerances = " ".join(repr(bound * largest) for bound in bounds)
        self.lines += [f"want {name} {values.numel()} {tolerances}", numbers(values)]


def raw_coefficients(solver: str, transforms: tuple[str, ...], scale: bool, seed: int) -> dict[str, Tensor]:
    """Draw what each coefficient is made of: one number for "exp", else one for each step or feature."""
    found = {}
    for name, value, transform in zip(NAMES, modules(solver, K, seed), transforms, strict=False):
        if value is not None:
            exp, softplus = transform == "exp", transform == "softplus"
            found[name] = single(value[:1].log() / 10 if exp else value.expm1().log() if softplus else value)
    if scale:
        found["scale"] = single(randn(D, seed=seed + 4) / (10 if transforms[-1] == "linear" else 1))
    return found


def text(
    solver: str,
    name: str,
    seed: int,
    *,
    ptr: list[int] | None = None,
    B: int = 0,
    N: int = 0,
    p0: str | None = None,
    q0: bool = False,
    scale: bool = False,
    plan: bool = False,
    transforms: tuple[str, ...] = IDENTITY,
) -> str:
    """Solve one batch of sets with all derivatives."""
    B, M = (len(ptr), sum(ptr)) if ptr else (B, B * N)
    offsets = torch.tensor([0, *ptr]).cumsum(0) if ptr else None
    shape = {"each": (B, D), "shared": (D,), None: None}[p0]
    inputs = {
        "X": rand(M, D, seed=seed).view(-1, D) if ptr else rand(M, D, seed=seed).view(B, N, D),
        "log_p0": None if shape is None else single(randn(*shape, seed=seed + 1).log_softmax(-1)),
        "log_q0": single(randn(M, seed=seed + 2) - 2) if q0 else None,
    }
    raw = raw_coefficients(solver, transforms, scale, seed)
    learned = transforms != FIXED
    leaves = {key: t.clone().requires_grad_() for key, t in inputs.items() if t is not None}
    leaves |= {key: t.clone().requires_grad_() for key, t in raw.items() if learned}
    rows, sets = as_sets(leaves["X"], None, offsets, None, None)
    log_q0 = leaves.get("log_q0")
    if log_q0 is not None:
        log_q0 = log_q0.view(*rows.shape[:-1], 1)
    values: dict[str, Any] = {key: leaves[key] if learned else tuple(t.tolist()) for key, t in raw.items()}
    coefficients = Coefficients(**values, transforms=transforms)
    call = Call(rows, sets, leaves.get("log_p0"), log_q0, coefficients, solver_of(solver, K))
    out = REFERENCE.solve(call, plan=plan)
    dout = randn(*out.shape, seed=seed + 3) * (D if plan else 1)
    grads = dict(zip(leaves, torch.autograd.grad(out, list(leaves.values()), dout), strict=True))

    case = Text(f"{solver} {name}")
    case.lines.append(f"solver {solver}")
    case.sizes(head=int(plan), K=K, B=B, M=M, N=0 if ptr else N, D=D, p0_shared=int(p0 == "shared"))
    for key, transform in zip(NAMES, transforms, strict=True):
        if key in raw:
            sizes = {f"transform_{key}": TRANSFORMS.index(transform), f"length_{key}": len(raw[key])}
            case.sizes(**sizes)
    case.array("rows", "ptr", offsets)
    for key, t in inputs.items():
        case.array("in", key, t)
    for key, t in raw.items():
        case.array("in" if learned else "fixed", f"coefficient_{key}", t)
    case.array("in", "dout", dout)
    made = {key: value_of(t, transform) for (key, t), transform in zip(raw.items(), transforms, strict=False)}
    if scale:
        made["scale"] = value_of(raw["scale"], transforms[-1])
    ratio = float((rows.detach() * made.get("scale", 1.0)).abs().max() / made["alpha0"].min())
    kinds = {"log_p0": "p0", "log_q0": "q0"}
    case.want("out", out.detach(), [tol.kernel("value", eps, ratio) for eps in EPS])
    for key, d in grads.items():
        prefix = "dcoefficient_" if key in raw else "d"
        case.want(prefix + key, d, [tol.kernel(kinds.get(key, key), eps, ratio) for eps in EPS])
    return "\n".join([*case.lines, "end"]) + "\n"


def cases() -> Iterator[str]:
    """Yield the text of each problem."""
    for seed, solver in enumerate(SOLVERS):
        for name, given in CASES.items():
            yield text(solver, name, 10 * seed, **given)


if __name__ == "__main__":
    PATH.write_text("".join(cases()))
    print(f"{PATH.stat().st_size} bytes in {PATH.name}")
