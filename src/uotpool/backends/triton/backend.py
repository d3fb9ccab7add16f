"""The fused GPU kernels as a backend, and why they may not be used.

With TRITON_INTERPRET=1 in the environment before Python starts, `impl="triton"` takes tensors on the CPU
too and interprets the kernels: slow, for tests of the kernels where there is no GPU.
"""

from __future__ import annotations

import operator
import os
import re
from importlib import metadata, util

import torch
from torch import Tensor

from uotpool.backends.base import Backend, SolverOptions
from uotpool.backends.tensors import all_eager, differentiated_in_reverse
from uotpool.backends.triton import ops, self_test
from uotpool.backends.triton.ops import DTYPES, MAX_COLUMNS
from uotpool.problem import Problem

DISTRIBUTIONS = ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm")
OLDEST_TRITON = (3, 2)
OLDEST_NVIDIA = (7, 5)  # compute capability


def _missing() -> str:
    """Say why triton cannot be used, from what is installed: to import triton takes half a second."""
    if util.find_spec("triton") is None:
        return "the package triton is not installed (torch for CUDA or ROCm brings it on Linux)"
    version = _version()
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None or (int(match[1]), int(match[2])) < OLDEST_TRITON:
        oldest = ".".join(map(str, OLDEST_TRITON))
        return f"it needs triton {oldest} or newer, got {version}; a newer torch brings it"
    return ""


def _version() -> str:
    """Return the version of triton, which builds of torch for other GPUs bring under other names."""
    for name in DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "one without a version"


# At import and not at the first call: torch.compile then sees constants.
_REASON = _missing()
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def _too_old(index: int | None) -> str:
    """Say why this GPU is too old; "" if it is not, and for a GPU that only a fake tensor is on."""
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return ""
    capability = torch.cuda.get_device_capability(index)
    if capability >= OLDEST_NVIDIA:
        return ""
    oldest, actual = (".".join(map(str, pair)) for pair in (OLDEST_NVIDIA, capability))
    return f"a GPU of compute capability {oldest} or newer (this one has {actual})"


_too_old._dynamo_marked_constant = True  # type: ignore[attr-defined] # as `tensors.transformed`


def describe() -> str:
    """Say what `impl="auto"` takes the kernels for, and which GPUs are here."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gpus = [
        torch.cuda.get_device_name(i) + (f", too old: needs {_too_old(i)}" if _too_old(i) else "")
        for i in range(count)
    ]
    here = "; ".join(gpus) or "this torch sees no GPU"
    return f"the K modules of Sinkhorn on CUDA and ROCm tensors, after a self-test; {here}"


class TritonBackend(Backend):
    """The K modules of exact Sinkhorn on CUDA and ROCm, with first derivatives in reverse."""

    name = "triton"
    reads_as_is = True

    def unavailable(self) -> str:
        return _REASON

    def refuses(self, options: SolverOptions) -> str:
        for wanted, is_that in (
            (f"solver={options.solver.name!r}", options.solver.name != "sinkhorn"),
            ('K="converged"', options.converged),
            (f"formulation={options.formulation!r}", options.formulation != "exact"),
        ):
            if is_that:
                return f'has the K modules of exact solver="sinkhorn" only, got {wanted}'
        return ""

    def refuses_input(self, X: Tensor, axis: int = -1) -> str:
        if X.device.type != "cuda" and not (_INTERPRETED and X.is_cpu):
            return "a tensor on a CUDA or ROCm GPU"
        if not differentiated_in_reverse():
            return "a tensor outside torch.func, forward-mode AD, torch.jit.trace and ONNX export"
        if X.dtype not in DTYPES:
            return "float16, bfloat16, float32 or float64"
        if X.dim() > 0 and X.shape[axis] > MAX_COLUMNS:
            return f"at most {MAX_COLUMNS} features"
        return _too_old(X.device.index) if X.is_cuda else ""

    def distrusts(self, X: Tensor, axis: int = -1) -> str:
        if X.dim() == 0 or X.shape[axis] == 0:
            return ""
        testable = all_eager((X,)) and not (X.is_cuda and torch.cuda.is_current_stream_capturing())
        gradients = torch.is_grad_enabled()
        dim = operator.index(X.shape[axis])  # also in a trace: kernels are compiled for a number of features
        return self_test.distrust(X.device, dim, X.dtype, gradients=gradients, testable=testable)

    def concerns(self, X: Tensor) -> bool:
        return _INTERPRETED or not X.is_cpu

    def plan(self, problem: Problem, options: SolverOptions) -> Tensor:
        return ops.solve(problem, plan=True)

    def pool(self, problem: Problem, options: SolverOptions) -> Tensor:
        return ops.solve(problem)


TRITON = TritonBackend()
