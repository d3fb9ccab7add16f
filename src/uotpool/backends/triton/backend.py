"""The fused GPU kernels as a backend, and why they may not be used.

With TRITON_INTERPRET=1 in the environment before Python starts, `impl="triton"` takes tensors on the CPU
too and interprets the kernels: slow, for tests of the kernels where there is no GPU.
"""

from __future__ import annotations

import os
import re
from importlib import metadata, util

import torch
from torch import Tensor

from uotpool.backends.base import Backend, SolverOptions
from uotpool.backends.tensors import differentiated_in_reverse
from uotpool.backends.triton import (
    operators,  # noqa: F401 # registers what compilers and exporters see
    ops,
)
from uotpool.backends.triton.arguments import KERNELS, MOST_ALONE, MOST_COLUMNS
from uotpool.problem import Problem

DISTRIBUTIONS = ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm")
OLDEST_TRITON = (3, 2)
OLDEST_NVIDIA = (7, 5)  # compute capability


def _missing() -> str:
    """Say why triton cannot be used, from what is installed: to import triton takes half a second."""
    if util.find_spec("triton") is None:
        return "the package triton is not installed (torch for CUDA or ROCm brings it on Linux)"
    version = _version()
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) < OLDEST_TRITON:
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
    oldest, came = (".".join(map(str, pair)) for pair in (OLDEST_NVIDIA, capability))
    return f"a GPU of compute capability {oldest} or newer (this one has {came})"


_too_old._dynamo_marked_constant = True  # type: ignore[attr-defined] # as `tensors.transformed`


def describe() -> str:
    """Say what `impl="auto"` takes the kernels for, and which GPUs are here."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gpus = [
        torch.cuda.get_device_name(i) + (f", too old: needs {_too_old(i)}" if _too_old(i) else "")
        for i in range(count)
    ]
    here = "; ".join(gpus) or "this torch sees no GPU"
    return f"the K modules of all solvers on CUDA and ROCm tensors; {here}"


class TritonBackend(Backend):
    """The K modules of exact Sinkhorn and Bregman ADMM on CUDA and ROCm, with first derivatives in reverse."""

    name = "triton"
    reads_as_is = True

    def unavailable(self) -> str:
        return _REASON

    def refuses(self, options: SolverOptions) -> str:
        if options.converged:
            return 'has the K modules of formulation="exact" only, got K="converged"'
        if options.formulation != "exact":
            return f'has the K modules of formulation="exact" only, got formulation={options.formulation!r}'
        if options.solver.name not in KERNELS:
            return f"has no kernel for solver={options.solver.name!r}"
        return ""

    def refuses_input(self, X: Tensor, axis: int = -1) -> str:
        if X.device.type != "cuda" and not (_INTERPRETED and X.is_cpu):
            return "a tensor on a CUDA or ROCm GPU"
        if not differentiated_in_reverse():
            return "a tensor outside torch.func, forward-mode AD, torch.jit.trace and ONNX export"
        if X.dim() > 0 and X.shape[axis] > MOST_COLUMNS:
            return f"at most {MOST_COLUMNS} features"
        return _too_old(X.device.index) if X.is_cuda else ""

    def concerns(self, X: Tensor) -> bool:
        return not X.is_cpu

    def plan(self, problem: Problem, options: SolverOptions) -> Tensor:
        return ops.solve(problem, options.solver.name, plan=True)

    def pool(self, problem: Problem, options: SolverOptions) -> Tensor:
        return ops.solve(problem, options.solver.name)

    def refuses_sets(self, X: Tensor, num_sets: int, options: SolverOptions) -> str:
        if options.solver.name != "badmm-q":
            return ""
        entries = X.numel()
        # An exporter's sizes stand for any number: the kernel is right for all of them.
        known = type(entries) is int and type(num_sets) is int
        if not known or entries <= MOST_ALONE * max(num_sets, 1):
            return ""
        return f"sets of at most {MOST_ALONE} entries on average for solver='badmm-q'"


TRITON = TritonBackend()
