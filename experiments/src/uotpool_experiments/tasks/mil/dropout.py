"""ReLU and dropout in one layer, several times as fast as torch's two on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

LEVELS = 256  # one random byte per value, so the rate is rounded to 1 / 256

# Keeps x where y > threshold, else 0. torch.where and a product with a bool take many times as long.
keep_where_above = torch.ops.aten.threshold_backward


class ReLUDropout(nn.Module):
    """Computes `nn.Dropout(p)(relu(x))` faster: torch's random numbers take half of the time of a
    small network.

    Args:
        p: share of values to drop, rounded to 1/256.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        kept = round(LEVELS * (1 - p))
        if not 0 < kept <= LEVELS:
            raise ValueError(f"p: expected a number in [0, 1), got {p}")
        self.kept = kept

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.kept == LEVELS:
            return x.relu()
        return _ReLUDropout.apply(x, self.kept)

    def extra_repr(self) -> str:
        return f"p={1 - self.kept / LEVELS:g}"


class _ReLUDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kept: int) -> Tensor:
        words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64, device=x.device)
        words.random_(-(2**63), None)  # all 64 bits; without arguments the sign would be missing
        noise = words.view(torch.uint8)[: x.numel()].view(x.shape).to(x.dtype)  # 0 to 255
        scale = LEVELS / kept
        y = keep_where_above(x, noise, LEVELS - 1 - kept).clamp_min_(0.0).mul_(scale)
        ctx.save_for_backward(y)
        ctx.scale = scale
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        return keep_where_above(dy, y, 0).mul_(ctx.scale), None
