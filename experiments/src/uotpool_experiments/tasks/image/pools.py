"""Poolings of the zoo in the place of a network's global average pool."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from uotpool import AdaptiveUOTPool2d, Learned, UOTPooling
from uotpool.zoo import ENTRIES, Pooling, build, entry, options_of

# The output of these is not as wide as their input, so they would need another last layer.
OTHER_WIDTH = ("mean-max", "set2set", "otk", "wegl", "covariance", "netvlad", "salad")


def poolings() -> list[str]:
    """Return all poolings that need no edges and keep the width."""
    usable = [name for name, found in ENTRIES.items() if not found.needs_edges]
    return [name for name in usable if name not in OTHER_WIDTH]


class SetPool(nn.Module):
    """Applies a pooling of sets to the positions of an image, (B, D, h, w) -> (B, D, 1, 1)."""

    def __init__(self, pool: Pooling) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(x.flatten(2).transpose(1, 2))[:, :, None, None]


def make(name: str, dim: int, options: dict[str, Any], start: str) -> nn.Module:
    """Make a pool (B, dim, h, w) -> (B, dim, 1, 1), drawn from torch's seed. `start` is for UOT poolings."""
    if name == "mean":
        return nn.AdaptiveAvgPool2d(1)
    if name == "max":
        return nn.AdaptiveMaxPool2d(1)
    found = entry(name)
    if found.load() is not UOTPooling:
        return SetPool(build(name, dim, **options))
    begin = {"scale": Learned(0.0)} if start == "mean" else {}
    return AdaptiveUOTPool2d(dim, 1, **options_of(name, options) | begin)


def uot_of(pool: nn.Module) -> UOTPooling | None:
    """Return the layer that solves the transport problem, if there is one."""
    return pool.pool if isinstance(pool, AdaptiveUOTPool2d) else None
