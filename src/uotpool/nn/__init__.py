"""Layers."""

from uotpool.nn.mixed import MixedMeanMax
from uotpool.nn.pooling import UOTPooling, param_groups
from uotpool.nn.priors import FeaturePrior, SamplePrior

__all__ = ["FeaturePrior", "MixedMeanMax", "SamplePrior", "UOTPooling", "param_groups"]
