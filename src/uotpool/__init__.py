"""Differentiable global pooling by unbalanced optimal transport."""

from uotpool.backends import explain_impl
from uotpool.backends.triton.self_test import self_test
from uotpool.checks import check
from uotpool.coefficients import Learned
from uotpool.nn import (
    AdaptiveUOTPool1d,
    AdaptiveUOTPool2d,
    AdaptiveUOTPool3d,
    FeaturePrior,
    SamplePrior,
    UOTAssignment,
    UOTPool1d,
    UOTPool2d,
    UOTPool3d,
    UOTPooling,
    param_groups,
)
from uotpool.nn.replace import replace_global_pool, replace_local_pools
from uotpool.problem import PlanStats, Problem, uot_pool
from uotpool.solvers import BregmanADMM, ConvergenceWarning, Newton, Sinkhorn, published

__version__ = "0.3.0"

__all__ = [
    "AdaptiveUOTPool1d",
    "AdaptiveUOTPool2d",
    "AdaptiveUOTPool3d",
    "BregmanADMM",
    "ConvergenceWarning",
    "FeaturePrior",
    "Learned",
    "Newton",
    "PlanStats",
    "Problem",
    "SamplePrior",
    "Sinkhorn",
    "UOTAssignment",
    "UOTPool1d",
    "UOTPool2d",
    "UOTPool3d",
    "UOTPooling",
    "check",
    "explain_impl",
    "param_groups",
    "published",
    "replace_global_pool",
    "replace_local_pools",
    "self_test",
    "uot_pool",
]
