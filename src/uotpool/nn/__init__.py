"""Layers."""

from uotpool.nn.assignment import UOTAssignment
from uotpool.nn.groups import param_groups
from uotpool.nn.images import (
    AdaptiveUOTPool1d,
    AdaptiveUOTPool2d,
    AdaptiveUOTPool3d,
    UOTPool1d,
    UOTPool2d,
    UOTPool3d,
)
from uotpool.nn.pooling import UOTPooling
from uotpool.nn.priors import FeaturePrior, SamplePrior

__all__ = [
    "AdaptiveUOTPool1d",
    "AdaptiveUOTPool2d",
    "AdaptiveUOTPool3d",
    "FeaturePrior",
    "SamplePrior",
    "UOTAssignment",
    "UOTPool1d",
    "UOTPool2d",
    "UOTPool3d",
    "UOTPooling",
    "param_groups",
]
