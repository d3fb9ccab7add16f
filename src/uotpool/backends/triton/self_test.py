"""Compare the kernels with the reference on this machine, before `impl="auto"` relies on them.

No machine of the project has a GPU, and a kernel is compiled anew for each GPU, number of features and dtype.
So each process tests exactly these, once, when a call first needs them: Triton keeps what it compiles on disk,
and a call needs most of it anyway.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from uotpool import checks
from uotpool.backends.call import Call
from uotpool.backends.reference import REFERENCE
from uotpool.coefficients import NAMES, Coefficients
from uotpool.sets import DenseSets, RaggedSets, Sets
from uotpool.solvers import Sinkhorn

# How far a result may be off, of its largest entry, in units of the rounding error of its dtype; OTHERS is for
# derivatives by all but X, which are small differences of large sums. Measured in the interpreter: 4, 5 and
# 8e3. A GPU approximates exponentials and logarithms, to a few roundings; a wrong kernel is off by about 1.
BOUNDS, OTHERS = {"value": 1e3, "X": 1e4}, 3e5


class Subject(NamedTuple):
    """What a verdict is about."""

    device: torch.device
    dim: int
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.dtype} and {self.dim} features on {self.device}"


# Of a subject, with derivatives or without: what is wrong, "" for nothing.
_verdicts: dict[tuple[Subject, bool], str] = {}
_lock = threading.RLock()


def distrust(device: torch.device, dim: int, dtype: torch.dtype, *, gradients: bool, testable: bool) -> str:
    """Say why `impl="auto"` does not rely on the kernels; "" if it does. Tests them first, where it can.

    Args:
        device: the GPU.
        dim: number of features.
        dtype: of X.
        gradients: whether derivatives may be asked for.
        testable: whether results can be compared now: not in a trace, nor while a CUDA graph is captured.
    """
    if os.environ.get("UOTPOOL_SELF_TEST") == "0":
        return ""
    subject = Subject(_with_index(device), dim, dtype)
    if testable or (subject, gradients) in _verdicts:
        reason = _verdict(subject, gradients)
        return reason and f"failed its self-test: {reason}"
    return (
        f"has not been compared with the reference for {subject}, which needs a call outside traces and CUDA "
        f'graphs: call uotpool.self_test("{device}", {dim}, {dtype}) first'
    )


# The compiler asks for this constant while it traces, as for `tensors.transformed`.
distrust._dynamo_marked_constant = True  # type: ignore[attr-defined]


def self_test(device: torch.device | str, dim: int, dtype: torch.dtype = torch.float32) -> bool:
    """Say whether the Triton kernels, values and derivatives, agree with the reference on this GPU.

    `impl="auto"` asks this once per process before it uses them. In `torch.compile` and while a CUDA graph is
    captured nothing can be compared, and it uses the reference unless this was called before. With
    UOTPOOL_SELF_TEST=0 in the environment it does not ask.

    Args:
        device: a CUDA or ROCm GPU.
        dim: number of features.
        dtype: of X.
    """
    from uotpool.backends.triton.backend import TRITON  # noqa: PLC0415

    checks.count("dim", dim, 1)
    checks.floating_dtype("dtype", dtype)
    device = _with_index(torch.device(device))
    reason = TRITON.why_not(torch.empty(0, dim, dtype=dtype, device=device), Sinkhorn())
    if reason:
        raise ValueError(f"device: cannot test the Triton kernels: triton {reason}, got {dtype} on {device}")
    return not _verdict(Subject(device, dim, dtype), gradients=True)


def _with_index(device: torch.device) -> torch.device:
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _verdict(subject: Subject, gradients: bool) -> str:
    with _lock:
        reason = _verdicts.get((subject, False)) or _verdicts.get((subject, gradients))
        if reason is None:
            values, derivatives = _compare(subject, gradients)
            _verdicts[subject, False] = values
            reason = values or derivatives
            _verdicts[subject, gradients] = reason
            if reason:
                warnings.warn(
                    f"uotpool: the Triton kernels failed their self-test for {subject}; the reference is used: "
                    f"{reason}. Please report this with the output of `uotpool info`.",
                    stacklevel=2,
                )
        return reason


def _compare(subject: Subject, gradients: bool) -> tuple[str, str]:
    """Return what is wrong with values and with derivatives; "" for nothing."""
    wrong = {"value": "", "derivative": ""}
    cases = (("ragged sets", False, _ragged), ("masked sets", False, _masked), ("the plan", True, _masked))
    try:
        # What surrounds the call must not reach the test.
        with (
            torch.inference_mode(False),
            torch.set_grad_enabled(gradients),
            torch.autocast(subject.device.type, enabled=False),
            checks.check(False),
        ):
            for name, plan, problem in cases:
                actual = _solve(plan, problem, subject, gradients, "triton")
                expected = _solve(plan, problem, subject, gradients, "reference")
                for what, x in actual.items():
                    error = _error(x, expected[what], BOUNDS.get(what, OTHERS))
                    kind = "value" if what == "value" else "derivative"
                    wrong[kind] = wrong[kind] or (error and f"{what} of {name} is off by {error}")
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # whatever compiling and running a kernel raises
        reason = f"{type(error).__name__}: {str(error).strip()[:500]}"
        return reason, reason
    return wrong["value"], wrong["derivative"]


def _error(x: Tensor, y: Tensor, slack: float) -> str:
    """Say how far x is off y; "" if close."""
    bound = slack * torch.finfo(_wide(x.dtype)).eps
    if x.dtype != _wide(x.dtype):  # half precision, rounded at the end
        bound += 2 * torch.finfo(x.dtype).eps
    error = float((x.double() - y).abs().max()) / max(float(y.abs().max()), 1e-3)
    return "" if error <= bound else f"{error:.1e} of its largest entry"  # NaN is off too


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _solve(
    plan: bool, problem: Callable[..., Any], subject: Subject, gradients: bool, impl: str
) -> dict[str, Tensor]:
    """Return the result and its derivatives; those of the reference in float64, of the same numbers."""
    device, dim, dtype = subject
    layout, inputs = problem(dim)
    leaves = {}
    for name, exact in inputs.items():
        x = exact.to(dtype if name == "X" else _wide(dtype))
        leaves[name] = x.to(device, x.dtype if impl == "triton" else torch.float64).requires_grad_(gradients)
    value = _run(plan, leaves, {name: x.to(device) for name, x in layout.items()}, impl)
    results = {"value": value.detach()}
    if gradients:
        cotangent = _numbers(*value.shape, seed=9).to(dtype).to(device, value.dtype)
        results |= dict(zip(leaves, torch.autograd.grad(value, list(leaves.values()), cotangent), strict=True))
    return results


def _run(plan: bool, inputs: dict[str, Tensor], layout: dict[str, Tensor], impl: str) -> Tensor:
    """Solve by the kernels, which read X as it is, or by the reference."""
    from uotpool.backends.triton.backend import TRITON  # noqa: PLC0415 # imports this module

    X, log_p0, log_q0 = inputs["X"], None, None
    if "ptr" in layout:
        sets: Sets = RaggedSets(None, len(layout["ptr"]) - 1, None, ptr=layout["ptr"], like=X)
    else:
        sets = DenseSets(len(X), layout["mask"].unsqueeze(-1))
        log_p0 = inputs["p0"].log()
        log_q0 = sets.fill_absent(sets.per_sample(inputs["q0"]), 1.0).log()
    given = Coefficients(*(inputs.get(name) for name in NAMES))  # type: ignore[arg-type] # of rho and scale
    call = Call(sets.fill_absent(X, 0.0), sets, log_p0, log_q0, given, Sinkhorn(2), raw=True)
    backend = TRITON if impl == "triton" else REFERENCE
    return backend.solve(call, plan=plan)


def _ragged(dim: int) -> Any:
    """Sets of some rows, of none, of one, and of two chunks, with a scale for each feature."""
    ptr = torch.tensor([0, 5, 5, 6, 143], device="cpu")
    return {"ptr": ptr}, {"X": _numbers(143, dim), "scale": _numbers(dim, seed=4), **_coefficients()}


def _masked(dim: int) -> Any:
    """Sets with absent samples, one of them with no others, with priors of features and samples."""
    mask = torch.tensor([[True, False, True, True, False], [False] * 5, [True] * 5], device="cpu")
    q0 = mask * _numbers(3, 5, seed=5).exp()
    priors = {"p0": _numbers(dim, seed=6).softmax(-1), "q0": q0 / q0.sum(-1, keepdim=True).clamp_min(1e-3)}
    return {"mask": mask}, {"X": _numbers(3, 5, dim), **priors, **_coefficients()}


def _coefficients() -> dict[str, Tensor]:
    """Return those of two modules."""
    return {f"alpha{i}": 0.5 + _numbers(2, seed=1 + i).exp() for i in range(3)}


def _numbers(*size: int, seed: int = 0) -> Tensor:
    """Return normal numbers without a change of the user's random state."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(size, generator=generator, dtype=torch.float64, device="cpu")
