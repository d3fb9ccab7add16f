"""From tensors to launches for windows of images; `launching` has what all kernels share."""

from __future__ import annotations

import math
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from uotpool.backends.images import WindowArguments, memory_format
from uotpool.backends.triton import launching
from uotpool.backends.triton.arguments import computed_in
from uotpool.backends.triton.choice import window_tile
from uotpool.backends.triton.kernels.windows import backward_windows, fold_windows, forward_windows

FOLDED = 1024  # entries of dX of a program


def forward(p: WindowArguments, *, save: bool = True) -> tuple[Tensor, Tensor | None]:
    """Return the output in the format of X, and with `save` R of each module for the derivatives."""
    out = p.empty_output()
    rows = p.X.new_empty(p.rows_shape(), dtype=computed_in(p.X.dtype)) if save else None
    if out.numel() == 0:
        return out, rows
    tile, geometry = _tile(p), _geometry(p, (out.numel(), math.prod(p.rows_shape())))
    with launching.on(p.X.device):
        forward_windows[_programs(p)](p.X, p.weights, p.scale, rows, out, p.K, **tile, **geometry)
    return out, rows


def backward(dout: Tensor, p: WindowArguments, rows: Tensor, wanted: list[bool]) -> list[Tensor | None]:
    """Return the derivatives by X, the weights and the scale; None for one that is not wanted.

    Args:
        dout: derivative by the output, in the format of X.
        p: what was solved.
        rows: what `forward` saved.
        wanted: which derivatives to return.
    """
    wanted = [w and t is not None for t, w in zip(p.differentiable(), wanted, strict=True)]
    if dout.numel() == 0:
        return [torch.zeros_like(t) if w else None for t, w in zip(p.differentiable(), wanted, strict=True)]  # type: ignore[arg-type]
    by_X, by_weights, by_scale = wanted
    programs, overlap = _programs(p)[0], _overlap(p)
    dX = buffer = None
    if by_X:
        dX = torch.empty_like(p.X) if overlap or _covered(p) else torch.zeros_like(p.X)
        buffer = dX
        if overlap:  # a part of dX for each position of a window
            buffer = p.X.new_empty(math.prod(p.kernel_size) * dout.numel(), dtype=rows.dtype)
    parts = rows.new_empty(programs, 3, p.K)
    ds = rows.new_empty(programs, p.X.shape[1]) if by_scale else None
    tile, geometry = _tile(p), _geometry(p, (math.prod(p.kernel_size) * dout.numel(), rows.numel()))
    with launching.on(p.X.device):
        given = (p.X, p.weights, p.scale, rows, dout, buffer, ds, parts, p.K)
        backward_windows[programs,](*given, OVERLAP=overlap, **tile, **geometry)
        if overlap and by_X:
            _fold(p, buffer, dX, geometry)
    dscale = None
    if ds is not None and p.scale is not None:
        dscale = ds.sum(0) if p.scale.shape[0] == p.X.shape[1] else ds.sum().reshape(1)
    return [dX, parts.sum(0) if by_weights else None, dscale]


def _last(p: WindowArguments) -> bool:
    return memory_format(p.X) == torch.channels_last


def _shape(p: WindowArguments) -> Any:
    itemsize = computed_in(p.X.dtype).itemsize
    return window_tile(p.X.shape[1], math.prod(p.kernel_size), itemsize, _last(p))


def _programs(p: WindowArguments) -> tuple[int]:
    shape = _shape(p)
    windows = shape.P if _last(p) else shape.Q
    return (-(-p.X.shape[0] * math.prod(p.output_size) // windows),)


def _tile(p: WindowArguments) -> dict[str, Any]:
    """Return the arguments of kernels that have a tile of windows."""
    N, G, P, Q, count = _shape(p)
    dtype, device = computed_in(p.X.dtype), p.X.device
    step = int(p.scale is not None and p.scale.shape[0] > 1)
    tile = {"N": N, "G": G, "P": P, "Q": Q, "num_warps": launching.warps(count, device)}
    return {
        **tile,
        "STEP": step,
        "LOW": launching.precision(dtype)["LOW"],
        "FAST": launching.fast(dtype, device),
    }


def _geometry(p: WindowArguments, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Return where windows are; offsets have 64 bits if X or a tensor of one of these sizes needs them."""
    B, C, H, W = p.X.shape
    OH, OW = p.output_size
    names = ("KH", "KW", "SH", "SW", "PH", "PW")
    pairs = dict(zip(names, (*p.kernel_size, *p.stride, *p.padding), strict=True))
    wide = max(p.X.numel(), *sizes) + 2**16 >= 2**31  # a tile may reach beyond the end
    geometry = {"T": B * OH * OW, "H": H, "W": W, "OH": OH, "OW": OW, "C": C, "NHWC": _last(p)}
    CT = launching.precision(computed_in(p.X.dtype))["CT"]
    return {**geometry, **pairs, "INDEX": tl.int64 if wide else tl.int32, "CT": CT}


def _overlap(p: WindowArguments) -> bool:
    pairs = zip(p.kernel_size, p.stride, p.output_size, strict=True)
    return any(kernel > stride and out > 1 for kernel, stride, out in pairs)


def _covered(p: WindowArguments) -> bool:
    """Say whether every entry of X is in a window."""
    axes = zip(p.X.shape[2:], p.kernel_size, p.stride, p.padding, p.output_size, strict=True)
    return all(
        (stride <= kernel or out == 1) and pad < kernel and (out - 1) * stride - pad + kernel >= length
        for length, kernel, stride, pad, out in axes
    )


def _fold(p: WindowArguments, buffer: Tensor | None, dX: Tensor | None, geometry: dict[str, Any]) -> None:
    entries = p.X.numel()
    fold_windows[(-(-entries // FOLDED),)](buffer, dX, entries, BLOCK=FOLDED, num_warps=4, **geometry)
