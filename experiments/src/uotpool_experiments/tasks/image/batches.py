"""Batches of images in the form that the networks need, changed at random in training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from uotpool_experiments.datasets.image_folder import Files
from uotpool_experiments.datasets.images import DIGITS, Images

DRAWS = 5  # random numbers per image: four for the crop, one for the flip
LOOKED_AT = 512  # files from which the mean and the deviation are computed
NOT_FLIPPED = (DIGITS,)


class Source(Protocol):
    """A source of batches."""

    y: Tensor

    def batch(self, chosen: Tensor, draws: Tensor | None = None) -> Tensor:
        """Return the inputs with these numbers, changed as `draws` (N, DRAWS) in [0, 1) say."""
        ...


@dataclass(frozen=True)
class Scaling:
    """The mean and standard deviation of each channel, for pixels in [0, 1]."""

    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, x: Tensor | Files, size: int) -> Scaling:
        """Compute the scaling of all training images, or of files from all over the data set."""
        if isinstance(x, Files):
            some = torch.linspace(0, len(x) - 1, min(LOOKED_AT, len(x))).long()
            x = x[some].read(size)
        count = torch.zeros((), dtype=torch.float64)
        total, squares = (torch.zeros(_channels(x), dtype=torch.float64) for _ in range(2))
        for piece in x.split(1000):
            values = piece.reshape(-1, _channels(x)).double() / 255
            count += len(values)
            total += values.sum(0)
            squares += values.square().sum(0)
        mean = total / count
        std = (squares / count - mean.square()).clamp_min(0.0).sqrt()
        return cls(mean.float(), torch.where(std > 1e-4, std, 1.0).float())

    @classmethod
    def given(cls, mean: Sequence[float], std: Sequence[float]) -> Scaling:
        return cls(torch.tensor(mean), torch.tensor(std))


def _channels(x: Tensor) -> int:
    return 1 if x.dim() == 3 else x.shape[-1]


class Pictures:
    """The images of a data set. Channels are last in memory, where the networks are fastest."""

    def __init__(
        self, x: Tensor | Files, y: Tensor, size: int, scaling: Scaling, flip: bool, device: torch.device
    ) -> None:
        self.x, self.y, self.size, self.flip, self.device = x, y, size, flip, device
        self._mean, self._std = scaling.mean.to(device), scaling.std.to(device)

    def batch(self, chosen: Tensor, draws: Tensor | None = None) -> Tensor:
        """Return the images (N, C, size, size)."""
        if isinstance(self.x, Files):
            pixels = self.x[chosen].read(self.size, None if draws is None else draws[:, :4])
        else:
            pixels = self.x[chosen]
            pixels = pixels if pixels.dim() == 4 else pixels[..., None]
            if draws is not None:
                pixels = shifted(pixels, draws)
        x = pixels.to(self.device).permute(0, 3, 1, 2).float() / 255
        if draws is not None and self.flip:
            flipped = (draws[:, 4] < 0.5).to(self.device)[:, None, None, None]
            x = torch.where(flipped, x.flip(3), x)
        if x.shape[-1] != self.size:
            x = interpolate(x, (self.size, self.size), mode="bilinear", antialias=True)
        x = (x - self._mean[:, None, None]) / self._std[:, None, None]
        return x.contiguous(memory_format=torch.channels_last)


def shifted(pixels: Tensor, draws: Tensor) -> Tensor:
    """Pad (N, H, W, C) by a black border of an eighth of the side, and cut (N, H, W, C) at a random place."""
    N, H, W, _ = pixels.shape
    border = round(H / 8)
    wide = pad(pixels, (0, 0, border, border, border, border))
    top, left = ((draws[:, k] * (2 * border + 1)).long() for k in range(2))
    rows, columns = top[:, None] + torch.arange(H), left[:, None] + torch.arange(W)
    return wide[torch.arange(N)[:, None, None], rows[:, :, None], columns[:, None, :]]


def pictures(
    images: Images, size: int, channels: int, scaling: Scaling | None, device: torch.device
) -> tuple[Pictures, Pictures]:
    """Return the training and the test images. A `scaling` of None means that of the training images."""
    scaling = scaling or Scaling.of(images.x_train, size)
    flip = images.name not in NOT_FLIPPED
    parts = ((images.x_train, images.y_train), (images.x_test, images.y_test))
    train, test = (Pictures(_with_channels(x, channels), y, size, scaling, flip, device) for x, y in parts)
    return train, test


def _with_channels(x: Tensor | Files, channels: int) -> Tensor | Files:
    """Turn grey images into coloured ones, without a copy."""
    return x[..., None].expand(*x.shape, channels) if isinstance(x, Tensor) and x.dim() == 3 else x
