"""Find the positions that each output of a pooling layer looks at, axis by axis, as torch does.

While a network is exported with dynamic sizes, a size stands for any number. No branch may then
depend on it, as what holds for the example need not hold for the next image. Dividends are >= 0
wherever an input is large enough, since ONNX rounds towards 0.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Axis(NamedTuple):
    """The windows along one axis: (out, size) positions, and a mask of those inside the input."""

    positions: Tensor
    present: Tensor | None  # None: all are inside
    plain: bool  # whether the windows lie side by side and cover the axis, so that nothing has to be gathered


def known(*sizes: int) -> bool:
    """Whether these are plain numbers and not an exporter's SymInt or a tracer's Tensor."""
    return all(type(n) is int for n in sizes)


def output_length(length: int, size: int, stride: int, padding: int, ceil: bool) -> int:
    """Return torch's output length: the last window starts inside the input or its left padding.

    Below 1 no window fits.
    """
    room = length + 2 * padding - size
    if not ceil:
        return (room + stride) // stride
    return _smaller((room + 2 * stride - 1) // stride, (length + padding - 1) // stride + 1)


def _smaller(a: int, b: int) -> int:
    if known(a, b):
        return min(a, b)
    return torch.minimum(a, b) if isinstance(a, Tensor) else torch.sym_min(a, b)


def sliding(length: int, out: int, size: int, stride: int, padding: int, device: torch.device) -> Axis:
    """Make windows of one size, `stride` apart, of which the first starts `padding` outside."""
    start = torch.arange(out, device=device) * stride - padding
    index = start[:, None] + torch.arange(size, device=device)
    whole = known(length, out) and padding == 0 and (out - 1) * stride + size <= length
    plain = whole and stride == size and out * size == length
    present = None if whole else (index >= 0) & (index < length)
    return Axis(index.clamp(0, length - 1), present, plain)


def adaptive(length: int, out: int | None, device: torch.device) -> Axis:
    """Make windows that cover the axis, from floor(i length / out) to ceil((i + 1) length / out).

    If `out` is None, each position is a window.
    """
    if out is None or out == 1:
        positions = torch.arange(length, device=device)
        return Axis(positions[:, None] if out is None else positions[None], None, plain=True)
    if known(length) and length % out == 0:
        return sliding(length, out, length // out, length // out, 0, device)
    i = torch.arange(out, device=device)
    start, end = i * length // out, ((i + 1) * length + out - 1) // out
    size = length // out + 2  # enough for any window; the rest is absent
    index = start[:, None] + torch.arange(size, device=device)
    return Axis(index.clamp(0, length - 1), index < end[:, None], plain=False)


def gather(x: Tensor, axes: list[Axis]) -> tuple[Tensor, Tensor | None]:
    """Return the windows as sets, (B * windows, positions, C), and a mask of the positions that are present.

    Args:
        x: (B, C, *spatial).
        axes: one per spatial dimension.
    """
    B, C = x.shape[:2]
    n = len(axes)
    x = x.permute(0, *range(2, 2 + n), 1)  # channels last, so that whole rows of them are copied
    for dim, axis in enumerate(axes, 1):
        if not axis.plain:
            x = x.index_select(dim, axis.positions.flatten())
    outs, sizes = [a.positions.shape[0] for a in axes], [a.positions.shape[1] for a in axes]
    x = x.reshape(B, *(length for pair in zip(outs, sizes, strict=True) for length in pair), C)
    # (B, out, size, out, size, ..., C) -> (B, out, out, ..., size, size, ..., C)
    x = x.permute(0, *range(1, 1 + 2 * n, 2), *range(2, 2 + 2 * n, 2), 1 + 2 * n)
    windows, positions = math.prod(outs), math.prod(sizes)
    present = _together(axes)
    if present is not None:
        present = present.reshape(1, windows, positions).expand(B, -1, -1).reshape(B * windows, positions)
    return x.reshape(B * windows, positions, C), present


def _together(axes: list[Axis]) -> Tensor | None:
    """Return the mask (out, out, ..., size, size, ...) of positions that are present on every axis."""
    if all(axis.present is None for axis in axes):
        return None
    n = len(axes)
    result: Tensor | None = None
    for i, axis in enumerate(axes):
        if axis.present is not None:
            shape = [1] * (2 * n)
            shape[i], shape[n + i] = axis.positions.shape
            present = axis.present.reshape(shape)
            result = present if result is None else result & present
    assert result is not None
    lengths = [a.positions.shape[0] for a in axes] + [a.positions.shape[1] for a in axes]
    return result.expand(lengths)
