"""What fused kernels for windows of images share: the arguments of a call, and the two formats of an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from uotpool.backends.tensors import plain, resolved

# The arguments of an operator that solves windows.
SCHEMA = (
    "Tensor X, Tensor weights, Tensor? scale, SymInt[] kernel_size, SymInt[] stride, SymInt[] padding, "
    "SymInt[] output_size"
)


class WindowArguments(NamedTuple):
    """What kernels are to solve. Sizes are pairs, height and width."""

    X: Tensor  # (B, C, H, W), contiguous or channels_last
    weights: Tensor  # (3, K)
    scale: Tensor | None  # (1,) or (C,)
    kernel_size: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    output_size: Sequence[int]

    @property
    def K(self) -> int:
        return self.weights.shape[1]

    def differentiable(self) -> tuple[Tensor | None, ...]:
        """Return the tensors that a derivative can be asked for."""
        return self.X, self.weights, self.scale

    def output_shape(self) -> tuple[int, ...]:
        """Return the shape of the output."""
        return *self.X.shape[:2], *self.output_size

    def rows_shape(self) -> tuple[int, int, int]:
        """Return the shape of a number for each module, position of a window and window."""
        (height, width), (rows, columns) = self.kernel_size, self.output_size
        return self.K, height * width, self.X.shape[0] * rows * columns

    def empty_output(self) -> Tensor:
        """Return memory for the output, in the format of X."""
        shape = self.output_shape()
        return torch.empty(shape, dtype=self.X.dtype, device=self.X.device, memory_format=memory_format(self.X))

    def fits(self) -> bool:
        """Say whether shapes and sizes belong together, which kernels trust."""
        return (
            self.X.dim() == 4
            and min(self.X.shape[1:]) >= 1
            and self.weights.dim() == 2
            and self.weights.shape[0] == 3
            and self.weights.shape[1] >= 1
            and (self.scale is None or self.scale.shape in ((1,), (self.X.shape[1],)))
            and all(len(size) == 2 for size in self[3:])
            and min(*self.kernel_size, *self.stride) >= 1
            and min(*self.padding, *self.output_size) >= 0
        )

    def plain(self) -> WindowArguments:
        """Return the same with the memory that its tensors read as."""
        scale = None if self.scale is None else plain(self.scale)
        return self._replace(X=plain_image(self.X), weights=plain(self.weights), scale=scale)


def memory_format(X: Tensor) -> torch.memory_format:
    """Return the one of the two formats in which X has no gap; contiguous for all others."""
    last = not X.is_contiguous() and X.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format


def plain_image(X: Tensor) -> Tensor:
    """Do what `tensors.plain` does, in the format that X has."""
    return resolved(X.contiguous(memory_format=memory_format(X)))


def empty_derivatives(dout: Tensor, p: WindowArguments, wanted: list[bool]) -> tuple[Tensor, ...]:
    """Return tensors of the shapes of derivatives, empty ones for those that are not wanted."""
    made = (torch.empty_like(p.X, memory_format=memory_format(p.X)), p.weights, p.scale)
    return tuple(
        dout.new_empty(0) if t is None or not w else torch.empty_like(t)
        for t, w in zip(made, wanted, strict=True)
    )
