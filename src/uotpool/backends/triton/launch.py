"""From tensors to launches: the K modules of a batch of sets, forward and backward.

No value is read on the host, and all that is launched follows from D, the dtype and the number of rows and
sets. So a CUDA graph can capture a call, and there is no tuning that would change bits or delay a first call.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from uotpool.backends.ops import FIXED, Arguments
from uotpool.backends.triton.kernels import backward as backwards
from uotpool.backends.triton.kernels import forward as forwards

LANES = 32  # that a tile is made for; a warp of 64 takes the work of two
VECTOR = 16  # bytes that a lane loads at once
CHUNK = 128  # rows of a program: partial sums of the columns add 5 % to what is read and written
MERGED_CHUNKS = 16  # at once
MERGED_COLUMNS = 32  # of a program


def tile(D: int, itemsize: int, entries: int) -> dict[str, int]:
    """Return the shape of a tile (see `kernels.tiles`) with about so many entries in a thread, and its warps.

    Up to 16 entries of a row are in one thread, so that what is done for each row is shared by many; but half a
    warp at least has a row, for loads without gaps. A wider row goes over several warps. A thread has half as
    many of float64, which takes two registers.
    """
    vector, most = max(1, VECTOR // itemsize), 16
    if itemsize == 8:
        most, entries = most // 2, entries // 2
    width = max(triton.next_power_of_2(D), 16)
    warps = 8 if D > 512 else 4
    C = max(1, min(most // vector, width // (LANES // 2 * vector)))
    BL = width // C
    while BL > LANES * vector * warps:
        warps *= 2
    R, W = max(1, entries // (C * vector)), warps * LANES * vector // BL
    return {"R": R, "C": C, "W": W, "BL": BL, "num_warps": warps}


class Saved(NamedTuple):
    """What a call keeps for its derivatives."""

    top: Tensor  # (B, D): the entry of each column where scale X is largest
    head: Tensor  # (B, D): the pooled output less that; for the plan (2, B): maximum and sum of its rows
    maxima: Tensor  # (K + 1, B, D): maxima of columns for L of each step, and, if pooled, of the output
    sums: Tensor  # (K + 1, B, D): sums of exponentials relative to these
    u: Tensor  # (K, B, D)
    rows: Tensor  # (K, M): R


def forward(p: Arguments, out: Tensor, memory: list[Tensor]) -> None:
    """Fill the pooled output (B, D), or the plan (M, D), and what its derivatives need.

    X of half precision, and absent rows that hold anything, are read as they are.
    """
    saved, (M, D), K = Saved(*memory), _shape(p), p.K
    if M == 0 or p.num_sets == 0:
        out.zero_()
        return
    programs, merges = _grids(p)
    values = _values(p, saved, 32) | {"OUT": out, "DOUT": None, "PARTIAL": None}
    values |= {name: _new(p, *programs, D) for name in ("PM", "PS", "PT")}
    with _on(p.X.device):
        _launch(forwards.first_pass, programs, values)
        _launch(forwards.forward_merge, merges, values, k=0, FIRST=True, LAST=False)
        for k in range(K):
            last = k == K - 1
            _launch(forwards.forward_pass, programs, values, k=k, LAST=last)
            if not (last and p.plan):
                _launch(forwards.forward_merge, merges, values, k=k + 1, FIRST=False, LAST=last)
        if p.plan:
            _launch(forwards.plan_pass, programs, values)


def backward(dout: Tensor, p: Arguments, memory: list[Tensor], wanted: list[bool]) -> list[Tensor | None]:
    """Return the derivatives by each of `p.differentiable()`; None for one that is not wanted.

    Args:
        dout: derivative by the output, contiguous.
        p: what was solved.
        memory: what `forward` filled.
        wanted: which derivatives to return.
    """
    wanted = [w and t is not None for t, w in zip(p.differentiable(), wanted, strict=True)]
    saved, (M, D), B, K = Saved(*memory), _shape(p), p.num_sets, p.K
    if M == 0 or B == 0:
        return [torch.zeros_like(t) if w else None for t, w in zip(p.differentiable(), wanted, strict=True)]  # type: ignore[arg-type]
    programs, merges = _grids(p)
    by_X, by_p, by_q, *by_raw = wanted
    has_scale = p.transforms[-1] not in (0, FIXED)  # as a tensor, the last of p.raw
    by_scale = has_scale and by_raw[-1]
    dX = torch.empty_like(p.X) if by_X else None
    dp = _new(p, B, D) if by_p else None
    dq = _new(p, M) if by_q else None
    ds = _new(p, *programs, D) if by_scale else None
    parts = torch.zeros(*programs, 5, K, dtype=p.dtype(), device=p.X.device)
    values = _values(p, saved, 32 if D <= 128 else 16)
    values |= {"DOUT": dout, "DX": dX, "DP": dp, "DQ": dq, "DS": ds, "PARTS": parts}
    values |= {"DU": _new(p, K, B, D), "DL": _new(p, K, B, D), "FACTORS": _new(p, K, M)}
    values |= {"PD": _new(p, *programs, D), "PARTIAL": None, "MASSES": None}
    with _on(p.X.device):
        if p.plan:
            values |= {"PARTIAL": _new(p, *programs), "MASSES": _new(p, M), "PM": None, "PS": None, "OUT": None}
            _launch(forwards.plan_pass, programs, values)
        for k in range(K, 0, -1):
            _launch(backwards.backward_pass, programs, values, k=k, WAY=0 if k < K else 1 + p.plan)
            _launch(backwards.backward_merge, merges, values, k=k - 1)
        _launch(backwards.backward_finish, programs, values | _tile(p, 16))
    dvalues = None
    if any(by_raw):
        summed = parts.sum(0)
        dvalues = torch.cat((summed[:3].sum(0, keepdim=True), summed[3:]))
    if dp is not None and p.log_p0 is not None and p.log_p0.dim() == 1:
        dp = dp.sum(0)
    draw = p.by_raw(dvalues, None if ds is None else ds.sum(0))
    return [dX, dp, dq, *(d if w else None for d, w in zip(draw, by_raw, strict=True))]


def _launch(kernel: Any, grid: tuple[int, ...], values: dict[str, Any], **more: Any) -> None:
    """Launch a kernel, which takes from these values what its parameters name."""
    values = values | more
    arguments = {name: values[name] for name in kernel.arg_names}
    kernel[grid](**arguments, num_warps=values["num_warps"] if "R" in arguments else 4)


def _shape(p: Arguments) -> tuple[int, int]:
    """Return the number of rows and of features."""
    D = p.X.shape[-1]
    return p.X.numel() // D, D


def _grids(p: Arguments) -> tuple[tuple[int], tuple[int, int]]:
    """Return the programs of a pass, one for each slot of a chunk (see `kernels.tiles`), and of a merge."""
    (M, D), B = _shape(p), p.num_sets
    slots = B * max(-(-p.N // CHUNK), 1) if p.ptr is None else M // CHUNK + B
    return (slots,), (B, -(-D // _merged_columns(D)))


def _merged_columns(D: int) -> int:
    return min(triton.next_power_of_2(D), MERGED_COLUMNS)


def _values(p: Arguments, saved: Saved, entries: int) -> dict[str, Any]:
    """Return what kernels of both directions have as parameters, by name."""
    (M, D), K = _shape(p), p.K
    weights, scale = p.values()
    double = p.dtype() == torch.float64
    nvidia = p.X.is_cuda and torch.version.hip is None
    values = {
        "X": p.X,
        "PTR": p.ptr,
        "ORDER": p.order,
        "PRESENT": None if p.present is None else p.present.view(torch.uint8),
        "WEIGHTS": weights,
        "SCALE": scale,
        "STEP": int(scale is not None and scale.shape[0] > 1),
        "LOGP": p.log_p0,
        "p_step": 0 if p.log_p0 is None or p.log_p0.dim() == 1 else D,
        "LOGQ": p.log_q0,
        **dict(zip(("K", "M", "N", "B", "D", "PLAN"), (K, M, p.N, p.num_sets, D, p.plan), strict=True)),
        **dict(zip(("CHUNK", "CHUNKS", "WIDTH"), (CHUNK, MERGED_CHUNKS, _merged_columns(D)), strict=True)),
        "CT": tl.float64 if double else tl.float32,
        "LOW": -4e307 if double else -8e37,
        "FAST": nvidia and not double,
    }
    kept = zip(("TOP", "HEAD", "MAXIMA", "SUMS", "U", "ROWS"), saved, strict=True)
    return values | dict(kept) | _tile(p, entries)


def _tile(p: Arguments, entries: int) -> dict[str, int]:
    """Return the shape of a tile, and the warps of this GPU that have the lanes of its warps."""
    shape = tile(p.X.shape[-1], p.X.element_size(), entries)
    lanes = torch.cuda.get_device_properties(p.X.device).warp_size if p.X.is_cuda else LANES
    return shape | {"num_warps": max(1, shape["num_warps"] * LANES // lanes)}


def _new(p: Arguments, *shape: int) -> Tensor:
    """Return memory in the dtype of computation."""
    return torch.empty(shape, dtype=p.dtype(), device=p.X.device)


def _on(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Launch on this device, whatever the current one is."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()
