"""The fused CPU kernels as a backend: from tensors to a call of the library and back."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from uotpool import checks
from uotpool.backends.cpu import library
from uotpool.backends.ops import FIXED, SLOTS, Arguments, FusedBackend, Grouping
from uotpool.backends.tensors import all_eager, differentiated_in_reverse
from uotpool.sets import DenseSets, RaggedSets, Sets
from uotpool.solvers import Solver

DTYPES = {torch.float32: 0, torch.float64: 1}
MAX_THREADS = 4096  # that the library takes


class CpuBackend(FusedBackend):
    """The unrolled steps of exact Sinkhorn and Bregman ADMM, with first derivatives in reverse."""

    name = "cpu"

    def unavailable(self) -> str:
        return library.missing()

    def why_not(self, X: Tensor, solver: Solver) -> str:
        if not X.is_cpu:
            return "takes tensors on the CPU"
        if not solver.kernel:
            return f"has no kernel for {solver}"
        if solver.K == 0:
            return "has nothing to solve with K = 0"
        if not differentiated_in_reverse():
            return "is not used under torch.func, forward-mode AD, torch.jit.trace and ONNX export"
        return "" if library.forward is not None else f"cannot be used: {library.missing()}"

    def takes(self, a: Arguments) -> bool:
        return a.X.dtype in DTYPES and a.X.is_cpu and a.present is None and a.solver in library.SOLVERS

    def grouping(self, X: Tensor, sets: Sets) -> Grouping:
        if isinstance(sets, DenseSets):
            N = X.shape[1]
            if sets.present is None:
                return None, None, None, N
            index = None
        else:
            assert isinstance(sets, RaggedSets)
            if sets.present is None and sets.one:
                return None, None, None, X.shape[0]
            if sets.present is None and sets.ptr is not None:
                return sets.ptr.contiguous(), None, None, 0
            index, N = sets.index.contiguous(), 0
        present = None if sets.present is None else sets.present.reshape(-1).contiguous()
        rows = X.reshape(-1, X.shape[-1])
        group = _group if all_eager((X,)) else torch.ops.uotpool.group
        ptr, order = group(rows, index, present, sets.num_sets, N)
        return ptr, order, None, 0

    def forward(self, a: Arguments, *, save: bool) -> list[Tensor]:
        out = a.X.new_empty(a.X.shape if a.plan else (a.num_sets, a.X.shape[-1]))
        if out.numel() > 0:  # else the library would look at every set, and there can be 2^40 without a row
            _call(a, library.forward, 0, out.data_ptr(), 0, 0, 0, [])
        return [out]

    def backward(
        self, dout: Tensor, a: Arguments, saved: list[Tensor], wanted: list[bool]
    ) -> list[Tensor | None]:
        pairs = zip(a.differentiable(), wanted, strict=True)
        if a.X.numel() == 0:
            return [None if t is None or not w else torch.zeros_like(t) for t, w in pairs]
        found = [None if t is None or not w else torch.empty_like(t) for t, w in pairs]
        dX, dlog_p0, dlog_q0, *draw = [0 if t is None else t.data_ptr() for t in found]
        _call(a, library.backward, dout.data_ptr(), 0, dX, dlog_p0, dlog_q0, draw)
        return found


def _call(
    a: Arguments, function: Any, dout: int, out: int, dX: int, dlog_p0: int, dlog_q0: int, draw: Sequence[int]
) -> None:
    """Call the library. Arrays are addresses, 0 for none; `draw` has one for each of `a.raw`, or nothing."""
    _, X, ptr, order, _, N, log_p0, log_q0, raw, transforms, fixed, lengths, num_sets, solver, K, plan = a
    D = X.shape[-1]
    doubles = array("d", fixed)  # named, as it has to live until the call is over
    number = doubles.buffer_info()[0]
    coefficient, dcoefficient, tensor = [0] * len(SLOTS), [0] * len(SLOTS), 0
    for slot, code in enumerate(transforms):
        if code == FIXED:
            coefficient[slot] = number
            number += 8 * lengths[slot]
        elif code:
            coefficient[slot] = raw[tensor].data_ptr()
            if draw:
                dcoefficient[slot] = draw[tensor]
            tensor += 1
    call = library.pack(
        DTYPES[X.dtype],
        library.SOLVERS[solver],
        plan,
        K,
        num_sets,
        X.numel() // D,
        N,
        D,
        min(torch.get_num_threads(), MAX_THREADS),
        log_p0 is not None and log_p0.dim() == 1,
        *transforms,
        *lengths,
        X.data_ptr(),
        0 if ptr is None else ptr.data_ptr(),
        0 if order is None else order.data_ptr(),
        0 if log_p0 is None else log_p0.data_ptr(),
        0 if log_q0 is None else log_q0.data_ptr(),
        *coefficient,
        dout,
        out,
        dX,
        dlog_p0,
        dlog_q0,
        *dcoefficient,
    )
    library.check(function(call))


def _group(
    rows: Tensor, index: Tensor | None, present: Tensor | None, num_sets: int, N: int
) -> tuple[Tensor, Tensor]:
    """Return ptr, and the order of the rows that are there, by set."""
    M = rows.shape[0]
    ptr = torch.empty(num_sets + 1, dtype=torch.int64, device=rows.device)
    order = torch.empty(M, dtype=torch.int64, device=rows.device)
    native: Any = library.load()
    addresses = (0 if t is None else t.data_ptr() for t in (index, present))
    library.check(native.uotpool_group(*addresses, M, num_sets, N, ptr.data_ptr(), order.data_ptr()))
    return ptr, order


def _checked_group(
    rows: Tensor, index: Tensor | None, present: Tensor | None, num_sets: int, N: int
) -> tuple[Tensor, Tensor]:
    """Check what `grouping` makes sure of: anyone can call an operator."""
    M = rows.shape[0] if rows.dim() else -1
    fits = (
        M >= 0
        and num_sets >= 0
        and N >= 0
        and (index is None or (index.dtype == torch.int64 and index.shape == (M,)))
        and (index is not None or num_sets * N == M)
        and (present is None or (present.dtype == torch.bool and present.shape == (M,)))
    )
    if not fits:
        raise ValueError(
            "uotpool::group: expected rows (M, D), an int64 index (M,) or num_sets * N = M, and a bool present "
            f"(M,), got rows {checks.describe(rows)}, index {checks.describe(index)}, present "
            f"{checks.describe(present)}, num_sets={num_sets}, N={N}"
        )
    index, present = (None if t is None else t.contiguous() for t in (index, present))
    return _group(rows, index, present, num_sets, N)


_group_op = torch.library.custom_op(
    "uotpool::group",
    _checked_group,
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor rows, Tensor? index, Tensor? present, SymInt num_sets, SymInt N) -> (Tensor, Tensor)",
)


@_group_op.register_fake
def _(
    rows: Tensor, index: Tensor | None, present: Tensor | None, num_sets: int, N: int
) -> tuple[Tensor, Tensor]:
    checks.one_device("uotpool::group", rows, index, present)
    return rows.new_empty(num_sets + 1, dtype=torch.int64), rows.new_empty(rows.shape[0], dtype=torch.int64)


CPU = CpuBackend()
