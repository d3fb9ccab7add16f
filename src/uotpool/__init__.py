"""Differentiable global pooling by unbalanced optimal transport."""

import uotpool.moved  # noqa: F401 - from here on, a path of 0.1 that is gone says where its contents are
from uotpool.backends import explain_impl, resolve_impl
from uotpool.backends.triton.self_test import self_test
from uotpool.checks import check
from uotpool.functional import PlanStats, duality_gap, objective, plan_stats, suggest_rho, uot_plan, uot_pool
from uotpool.nn import (
    CLASSIC,
    AdaptiveUOTPool1d,
    AdaptiveUOTPool2d,
    AdaptiveUOTPool3d,
    FeaturePrior,
    MixedMeanMax,
    SamplePrior,
    UOTAssignment,
    UOTPool1d,
    UOTPool2d,
    UOTPool3d,
    UOTPooling,
    param_groups,
)
from uotpool.nn.replace import replace_global_pool, replace_local_pools
from uotpool.nn.restore import load_swapped, restore_pools
from uotpool.solvers.newton import ConvergenceWarning

__version__ = "0.2.0"

__all__ = [
    "CLASSIC",
    "AdaptiveUOTPool1d",
    "AdaptiveUOTPool2d",
    "AdaptiveUOTPool3d",
    "ConvergenceWarning",
    "FeaturePrior",
    "MixedMeanMax",
    "PlanStats",
    "SamplePrior",
    "UOTAssignment",
    "UOTPool1d",
    "UOTPool2d",
    "UOTPool3d",
    "UOTPooling",
    "check",
    "duality_gap",
    "explain_impl",
    "load_swapped",
    "objective",
    "param_groups",
    "plan_stats",
    "replace_global_pool",
    "replace_local_pools",
    "resolve_impl",
    "restore_pools",
    "self_test",
    "suggest_rho",
    "uot_plan",
    "uot_pool",
]
