"""The fused GPU kernels as a backend, and why they may not be used.

With TRITON_INTERPRET=1 in the environment before Python starts, `impl="triton"` takes tensors on the CPU
too and interprets the kernels: slow, for tests of the kernels where there is no GPU.
"""

from __future__ import annotations

import operator
import os
import re
from importlib import metadata, util
from typing import Any

import torch
from torch import Tensor

from uotpool.backends.ops import Arguments, FusedBackend, Grouping
from uotpool.backends.tensors import all_eager, differentiated_in_reverse
from uotpool.backends.triton import self_test
from uotpool.sets import DenseSets, RaggedSets, Sets
from uotpool.solvers import Sinkhorn, Solver

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
MAX_COLUMNS = 1024  # a row of a tile, which has to fit the registers of a program
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
    return f"the steps of Sinkhorn on CUDA and ROCm tensors, after a self-test; {here}"


class TritonBackend(FusedBackend):
    """The unrolled steps of exact Sinkhorn on CUDA and ROCm, with first derivatives in reverse."""

    name = "triton"
    reads_raw = True
    is_trusted = False

    def unavailable(self) -> str:
        return _REASON

    def why_not(self, X: Tensor, solver: Solver) -> str:
        if X.device.type != "cuda" and not (_INTERPRETED and X.is_cpu):
            return "takes tensors on a CUDA or ROCm GPU"
        if _REASON:
            return f"cannot be used: {_REASON}"
        if type(solver) is not Sinkhorn:
            return f"has kernels for Sinkhorn alone, got {solver}"
        if solver.K == 0:
            return "has nothing to solve with K = 0"
        if not differentiated_in_reverse():
            return "is not used under torch.func, forward-mode AD, torch.jit.trace and ONNX export"
        if X.dtype not in DTYPES:
            return "takes float16, bfloat16, float32 or float64"
        if X.dim() > 0 and X.shape[-1] > MAX_COLUMNS:
            return f"takes at most {MAX_COLUMNS} features"
        too_old = _too_old(X.device.index) if X.is_cuda else ""
        return too_old and f"takes {too_old}"

    def distrust(self, X: Tensor) -> str:
        if X.dim() == 0 or X.shape[-1] == 0:
            return ""
        testable = all_eager((X,)) and not (X.is_cuda and torch.cuda.is_current_stream_capturing())
        gradients = torch.is_grad_enabled()
        dim = operator.index(X.shape[-1])  # also in a trace: kernels are compiled for a number of features
        return self_test.distrust(X.device, dim, X.dtype, gradients=gradients, testable=testable)

    def is_relevant(self, X: Tensor) -> bool:
        return _INTERPRETED or not X.is_cpu

    def takes(self, a: Arguments) -> bool:
        on_gpu = a.X.is_cuda or (_INTERPRETED and a.X.is_cpu)
        return on_gpu and a.X.dtype in DTYPES and a.X.shape[-1] <= MAX_COLUMNS and a.solver == "sinkhorn"

    def grouping(self, X: Tensor, sets: Sets) -> Grouping:
        """An index is sorted on its device: no size depends on its values, so we never wait for a GPU."""
        present = None if sets.present is None else sets.present.reshape(-1).contiguous()
        if isinstance(sets, DenseSets):
            return None, None, present, X.shape[1]
        assert isinstance(sets, RaggedSets)
        if sets.one:
            return None, None, present, X.shape[0]
        if sets.ptr is not None:
            return sets.ptr.contiguous(), None, present, 0
        values, order = torch.sort(sets.index, stable=True)
        ptr = torch.searchsorted(values, torch.arange(sets.num_sets + 1, device=X.device))
        return ptr, order, present, 0

    def saved_shapes(self, a: Arguments) -> list[tuple[int, ...]]:
        # (3 K + 4) B D + K M numbers; launch.Saved says what they are.
        D, B, K = a.X.shape[-1], a.num_sets, a.K
        M = a.X.numel() // D
        return [(B, D), (2, B) if a.plan else (B, D), (K + 1, B, D), (K + 1, B, D), (K, B, D), (K, M)]

    def forward(self, a: Arguments, *, save: bool) -> list[Tensor]:
        saved = [torch.empty(shape, dtype=a.dtype(), device=a.X.device) for shape in self.saved_shapes(a)]
        out = a.X.new_empty(a.output_shape())
        _launch().forward(a, out, saved)
        return [out, *saved]

    def backward(
        self, dout: Tensor, a: Arguments, saved: list[Tensor], wanted: list[bool]
    ) -> list[Tensor | None]:
        found: list[Tensor | None] = _launch().backward(dout, a, saved, wanted)
        return found


def _launch() -> Any:
    """Return the module `launch`. A call comes here, and not the import of uotpool, as it imports triton."""
    from uotpool.backends.triton import launch  # noqa: PLC0415

    return launch


TRITON = TritonBackend()
