"""Metrics that a table can show. This module imports nothing, so the command line loads it at once."""

from __future__ import annotations

# The last two belong to the hold-out and to the plan of a UOT pooling.
METRICS = (
    "accuracy",
    "score",
    "r2",
    "balanced_accuracy",
    "top5",
    "auc",
    "loss",
    "validation_loss",
    "divergence",
)
LESS_IS_BETTER = ("loss", "validation_loss")
NOT_PER_CENT = ("loss", "validation_loss", "divergence")


def sign(metric: str) -> int:
    """Return 1 if more of the metric is better, -1 if less is."""
    return -1 if metric in LESS_IS_BETTER else 1


def is_per_cent(metric: str) -> bool:
    """Return whether tables show the metric in per cent and its differences in points."""
    return metric not in NOT_PER_CENT
