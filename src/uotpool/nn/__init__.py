"""Layers."""

from uotpool.nn.images import (
    AdaptiveUOTPool1d,
    AdaptiveUOTPool2d,
    AdaptiveUOTPool3d,
    UOTPool1d,
    UOTPool2d,
    UOTPool3d,
)
from uotpool.nn.mixed import MixedMeanMax
from uotpool.nn.pooling import CLASSIC, UOTPooling, param_groups
from uotpool.nn.priors import FeaturePrior, SamplePrior

__all__ = [
    "CLASSIC",
    "AdaptiveUOTPool1d",
    "AdaptiveUOTPool2d",
    "AdaptiveUOTPool3d",
    "FeaturePrior",
    "MixedMeanMax",
    "SamplePrior",
    "UOTPool1d",
    "UOTPool2d",
    "UOTPool3d",
    "UOTPooling",
    "param_groups",
]
