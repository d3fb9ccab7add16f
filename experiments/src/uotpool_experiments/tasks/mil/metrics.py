"""Metrics of predictions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from torch import Tensor, nn


def binary_metrics(logits: Tensor, y: Tensor, train_y: Tensor) -> dict[str, float]:
    """Return accuracy, balanced accuracy, AUC, loss, and the accuracy of always saying the larger
    training class.
    """
    score: npt.NDArray[np.float64] = logits.double().numpy()
    labels = y.numpy()
    majority = int(train_y.double().mean() > 0.5)
    return {
        "accuracy": float(((score > 0) == labels).mean()),
        "balanced_accuracy": float(balanced_accuracy_score(labels, score > 0)),
        "auc": float(roc_auc_score(labels, score)),
        "loss": float(nn.functional.binary_cross_entropy_with_logits(logits.double(), y.double())),
        "majority": float((labels == majority).mean()),
    }
