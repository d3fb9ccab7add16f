"""Compute once what a frozen network gives to its pool, so that an epoch costs the pool and the head alone."""

from __future__ import annotations

import torch
from torch import Tensor

from uotpool_experiments.tasks.image.batches import Pictures
from uotpool_experiments.tasks.image.loop import TEST_BATCH, autocast
from uotpool_experiments.tasks.image.models import Classifier

_kept: dict[bool, tuple[str, tuple[Features, Features]]] = {}  # a worker does many runs with one network


class Features:
    """The inputs of a pool, (N, D, h, w), and labels, kept in memory."""

    def __init__(self, x: Tensor, y: Tensor, device: torch.device) -> None:
        self.x, self.y, self.device = x, y, device

    def batch(self, chosen: Tensor, draws: Tensor | None = None) -> Tensor:
        found = self.x[chosen].to(self.device, torch.float32)
        return found.permute(0, 3, 1, 2)  # kept with the channels last


class Computed:
    """The same inputs, not kept: each batch goes through the network again."""

    def __init__(self, network: Classifier, pictures: Pictures, precision: str) -> None:
        self.network, self.pictures, self.precision, self.y = network, pictures, precision, pictures.y

    @torch.no_grad()
    def batch(self, chosen: Tensor, draws: Tensor | None = None) -> Tensor:
        x = self.pictures.batch(chosen, draws)
        with autocast(x, self.precision):
            return self.network.features(x).float()


def dtype_within(cap_mib: int, shape: tuple[int, ...], count: int) -> torch.dtype | None:
    """Return the precision in which so many features of this shape are below the cap; None if there is none."""
    numbers = count * torch.Size(shape).numel() / 2**20
    return torch.float32 if 4 * numbers <= cap_mib else torch.float16 if 2 * numbers <= cap_mib else None


def of(
    network: Classifier,
    parts: tuple[Pictures, Pictures],
    cap_mib: int,
    precision: str,
    key: str,
    pretrained: bool,
) -> tuple[Features, Features] | None:
    """Return the features of training and test images, None if they are too many.

    Args:
        network: the frozen network, in eval mode.
        parts: the images.
        cap_mib: the largest memory, in MiB.
        precision: the precision of the network.
        key: a hash of all that decides the features; those asked for last are kept.
        pretrained: whether the network is the same for all seeds; we keep one of either kind.
    """
    if pretrained in _kept and _kept[pretrained][0] == key:
        return _kept[pretrained][1]
    one = Computed(network, parts[0], precision).batch(torch.arange(1))
    dtype = dtype_within(cap_mib, tuple(one.shape), len(parts[0].y) + len(parts[1].y))
    if dtype is None:
        return None
    _kept.pop(pretrained, None)
    train, test = (_all(Computed(network, part, precision), one, dtype) for part in parts)
    _kept[pretrained] = key, (train, test)
    return train, test


def _all(source: Computed, one: Tensor, dtype: torch.dtype) -> Features:
    _, D, h, w = one.shape
    x = torch.empty(len(source.y), h, w, D, dtype=dtype)
    for chosen in torch.arange(len(source.y)).split(TEST_BATCH):
        x[chosen] = source.batch(chosen).permute(0, 2, 3, 1).to("cpu", dtype)
    return Features(x, source.y, source.pictures.device)
