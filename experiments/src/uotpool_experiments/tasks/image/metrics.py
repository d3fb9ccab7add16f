"""Metrics of predicted classes, and facts about the plan of a UOT pooling."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from uotpool import UOTPooling

TOP = 5


def class_metrics(logits: Tensor, y: Tensor, train_y: Tensor) -> dict[str, float]:
    """Return accuracy, its mean over the classes, that of the most frequent training class, top-5 and loss.

    An image whose logits are not finite counts as wrong, and then there is no loss.
    """
    right = _right(logits, y)
    found = {
        "accuracy": float(right.mean()),
        "balanced_accuracy": float(torch.stack([right[y == c].mean() for c in y.unique()]).mean()),
        "majority": float((y == train_y.bincount().argmax()).double().mean()),
    }
    if logits.isfinite().all():
        found["loss"] = float(nn.functional.cross_entropy(logits.double(), y))
    if logits.shape[1] > TOP:
        best = logits.topk(TOP, dim=1).indices
        found["top5"] = float(((best == y[:, None]).any(1) & logits.isfinite().all(1)).double().mean())
    return found


def accuracy(logits: Tensor, y: Tensor) -> float:
    return float(_right(logits, y).mean())


def _right(logits: Tensor, y: Tensor) -> Tensor:
    return ((logits.argmax(1) == y) & logits.isfinite().all(1)).double()


@torch.no_grad()
def plan_facts(uot: UOTPooling | None, x: Tensor) -> dict[str, Any]:
    """Return the distance of the plans of x (B, D, h, w) from uniform in nats, their mass, and the weights.

    Other poolings have no such facts.
    """
    if uot is None:
        return {}
    return uot.diagnostics(x.flatten(2).transpose(1, 2))
