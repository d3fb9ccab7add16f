"""Metrics of predicted classes, and facts about the plan of a UOT pooling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from uotpool import UOTPooling
from uotpool_experiments.datasets.graphs import Graphs
from uotpool_experiments.tasks.graph.batches import Batch
from uotpool_experiments.tasks.graph.encoder import GraphEncoder

Ints = npt.NDArray[np.int64]
SHOWN = 128  # graphs whose plans are looked at


def class_metrics(predicted: Ints, y: Ints, train_y: Ints) -> dict[str, float]:
    """Return the accuracy, its mean over the classes in y, and that of the most frequent training class."""
    return {
        "accuracy": float(np.mean(predicted == y)),
        "balanced_accuracy": float(np.mean([np.mean(predicted[y == c] == c) for c in np.unique(y)])),
        "majority": float(np.mean(y == majority(train_y))),
    }


def majority(y: Ints) -> int:
    return int(np.bincount(y).argmax())


def by_fold(found: Sequence[Mapping[str, float]]) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Return the means over the folds, and the value of each fold."""
    each = {name: [fold[name] for fold in found] for name in found[0]}
    return {name: float(np.mean(values)) for name, values in each.items()}, each


def some_of(graphs: Graphs) -> Tensor:
    """Choose graphs from all over the data set, as it may be sorted by class; return their numbers."""
    return torch.linspace(0, len(graphs) - 1, min(SHOWN, len(graphs))).long()


def uot_of(encoder: GraphEncoder) -> UOTPooling | None:
    return encoder.pool if isinstance(encoder.pool, UOTPooling) else None


@torch.no_grad()
def plan_facts(encoder: GraphEncoder, batch: Batch) -> dict[str, Any]:
    """Return the plans' distance from uniform in nats, their mass, and the weights; nothing for
    other poolings.
    """
    uot = uot_of(encoder)
    if uot is None:
        return {}
    encoder.eval()
    return uot.diagnostics(encoder.gin(batch), ptr=batch.ptr)
