"""Layers for images, signals and volumes in place of torch's pooling layers.

The channels are the features of a transport problem, and the positions of a window its samples: all
positions in global pooling, those of each output in local pooling.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from uotpool import checks
from uotpool.nn import windows
from uotpool.nn.pooling import UOTPooling
from uotpool.nn.wrapper import PoolWrapper, Restore

Size = int | Sequence[int]
MAX_SIZE = 2**31  # of a window or a step, beyond which positions overflow
OutputSize = int | None | Sequence[int | None]


class _WindowPool(PoolWrapper, nn.Module, ABC):
    """The base class of the layers; a subclass says which windows there are."""

    _axes: int  # spatial dimensions

    def __init__(self, dim: int, uot: dict[str, Any]) -> None:
        super().__init__()
        self.pool = UOTPooling(dim, **uot)

    def forward(self, x: Tensor) -> Tensor:
        """Pool `(B, C, *spatial)` or `(C, *spatial)` to the output's spatial size, in the dtype of x."""
        batch, axes, sets = self._gather(x)
        y = self.pool(**sets)
        # A view, so that channels are last in memory.
        y = _channels_second(y.reshape(batch.shape[0], *(axis.positions.shape[0] for axis in axes), y.shape[1]))
        return y if x is batch else y.squeeze(0)

    # Plans are (B, C, *output, *window), scores (B, *output, *window), 0 outside of the input;
    # (B, C, *spatial) and (B, *spatial) where the output is 1. A function of
    # `scores` gets the pooled vectors of all windows.
    def _gather(self, x: Tensor) -> tuple[Tensor, list[windows.Axis], dict[str, Any]]:
        """Return x as a batch, its windows, and these as sets."""
        batch = self._batch(x)
        axes = self._windows(batch)
        X, present = windows.gather(batch, axes)
        return batch, axes, {"X": X, "mask": present}

    # Plans are (B, C, *output, *window) and scores (B, *output, *window), 0 outside the input; for outputs of
    # size 1 (B, C, *spatial) and (B, *spatial). A function in `scores` gets the pooled vectors of all windows.
    def _sets(self, x: Tensor) -> tuple[dict[str, Any], Restore]:
        batch, axes, sets = self._gather(x)
        shape = [a.positions.shape[0] for a in axes] + [a.positions.shape[1] for a in axes]
        if self._is_global():
            shape = list(batch.shape[2:])

        def restore(values: Tensor) -> Tensor:
            result = values.reshape(batch.shape[0], *shape, *values.shape[2:])
            return result if x is batch else result.squeeze(0)

        return sets, restore

    def _is_global(self) -> bool:
        return False

    def _features_in_place(self, P: Tensor) -> Tensor:
        batched = P.dim() == 2 + self._axes * (1 if self._is_global() else 2)
        return _channels_second(P) if batched else P.movedim(-1, 0)

    def _batch(self, x: Tensor) -> Tensor:
        spatial = ", ".join(("L",) if self._axes == 1 else ("D", "H", "W")[-self._axes :])
        accepted = f"a floating tensor (B, C, {spatial}) or (C, {spatial}) with C = {self.pool.dim} channels"
        checks.floating("x", x, accepted)
        batch = x.unsqueeze(0) if x.dim() == self._axes + 1 else x
        if batch.dim() != self._axes + 2 or batch.shape[1] != self.pool.dim:
            checks.fail("x", accepted, x)
        if 0 in batch.shape[2:]:
            checks.fail("x", "at least one position along each axis", x)
        return batch

    @abstractmethod
    def _windows(self, x: Tensor) -> list[windows.Axis]:
        """Return the windows along each spatial dimension."""


def _channels_second(y: Tensor) -> Tensor:
    """Move the channels: (B, *rest, C) -> (B, C, *rest)."""
    # ONNX's exporter by tracing turns `movedim(-1, 1)` into a model that no runtime takes.
    return y.permute(0, y.dim() - 1, *range(1, y.dim() - 1))


def _sizes(name: str, value: Any, axes: int, low: int, *, none: str = "") -> tuple[Any, ...]:
    """Return a size for each axis; None is one where `none` describes it."""
    sizes = (value,) * axes if value is None or isinstance(value, int) else value
    accepted = f"an int >= {low}{none}, or {axes} of them"
    if not isinstance(sizes, Sequence) or isinstance(sizes, str) or len(sizes) != axes:
        checks.fail(name, accepted, value)
    for n in sizes:
        if not (isinstance(n, int) and not isinstance(n, bool) and n >= low) and not (none and n is None):
            checks.fail(name, accepted, value)
    return tuple(sizes)


class _LocalPool(_WindowPool):
    _options = ("kernel_size", "stride", "padding", "ceil_mode")

    def __init__(
        self,
        dim: int,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        ceil_mode: bool = False,
        **uot: Any,
    ) -> None:
        super().__init__(dim, uot)
        checks.flag("ceil_mode", ceil_mode)
        self.kernel_size = _sizes("kernel_size", kernel_size, self._axes, 1)
        self.stride = self.kernel_size if stride is None else _sizes("stride", stride, self._axes, 1)
        self.padding = _sizes("padding", padding, self._axes, 0)
        self.ceil_mode = ceil_mode
        if max(*self.kernel_size, *self.stride) > MAX_SIZE:
            checks.fail("kernel_size, stride", f"at most {MAX_SIZE}", (kernel_size, stride))
        for size, pad in zip(self.kernel_size, self.padding, strict=True):
            if pad > size // 2:
                checks.fail("padding", f"at most half of kernel_size={kernel_size}", padding)

    def output_size(self, spatial: Sequence[int]) -> list[int]:
        """Return the output size for an input of this spatial size, the same as torch's."""
        settings = zip(spatial, self.kernel_size, self.stride, self.padding, strict=True)
        return [windows.output_length(*axis, self.ceil_mode) for axis in settings]

    def _windows(self, x: Tensor) -> list[windows.Axis]:
        spatial = x.shape[2:]
        outs = self.output_size(spatial)
        if windows.known(*outs) and min(outs) < 1:
            checks.fail("x", f"a spatial size that a window of {self.kernel_size} fits in", x)
        settings = zip(spatial, outs, self.kernel_size, self.stride, self.padding, strict=True)
        return [windows.sliding(*axis, x.device) for axis in settings]

    def extra_repr(self) -> str:
        ceil = ", ceil_mode=True" if self.ceil_mode else ""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}{ceil}"


class _AdaptivePool(_WindowPool):
    _options = ("output_size",)

    def __init__(self, dim: int, output_size: OutputSize = 1, **uot: Any) -> None:
        super().__init__(dim, uot)
        self.output_size = _sizes("output_size", output_size, self._axes, 1, none=" or None (the input's)")

    def _is_global(self) -> bool:
        return all(n == 1 for n in self.output_size)

    def _windows(self, x: Tensor) -> list[windows.Axis]:
        settings = zip(x.shape[2:], self.output_size, strict=True)
        return [windows.adaptive(length, n, x.device) for length, n in settings]

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveUOTPool2d(_AdaptivePool):
    """Pooling by UOT to a given output size, in place of `nn.AdaptiveAvgPool2d`.

    Args:
        dim: number of channels.
        output_size: an int, or (H, W); None keeps the input's. 1 is global pooling.
        **uot: options of `UOTPooling`: solver, alpha0, ... With `scale=Learned(0.0)` the layer begins as
            average pooling.

    Shape:
        (B, C, H, W) or (C, H, W) -> `(B, C, *output_size)`. Global pooling of an input in channels_last makes
        no copy.
    """

    _axes = 2


class UOTPool2d(_LocalPool):
    """Local pooling by UOT, in place of `nn.MaxPool2d` or `nn.AvgPool2d`; the same output sizes.

    Args:
        dim: number of channels.
        kernel_size: size of the window, an int or (H, W).
        stride: distance between windows; default: kernel_size.
        padding: positions outside the input that windows may reach to, at most half of the window.
            They count as absent samples.
        ceil_mode: whether windows may reach over the end.
        **uot: options of `UOTPooling`, whose parameters are those of all windows.

    Shape:
        (B, C, H, W) or (C, H, W) -> (B, C, H', W').

    Example:
        >>> UOTPool2d(dim=3, kernel_size=3, stride=2, padding=1)(torch.rand(1, 3, 8, 8)).shape
        torch.Size([1, 3, 4, 4])
    """

    _axes = 2


class AdaptiveUOTPool1d(_AdaptivePool):
    """`AdaptiveUOTPool2d` for (B, C, L)."""

    _axes = 1


class UOTPool1d(_LocalPool):
    """`UOTPool2d` for (B, C, L)."""

    _axes = 1


class AdaptiveUOTPool3d(_AdaptivePool):
    """`AdaptiveUOTPool2d` for (B, C, D, H, W)."""

    _axes = 3


class UOTPool3d(_LocalPool):
    """`UOTPool2d` for (B, C, D, H, W)."""

    _axes = 3
