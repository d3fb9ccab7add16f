"""Differentiable global pooling by unbalanced optimal transport."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

import uotpool.moved  # noqa: F401 - from here on, a path of 0.1 that is gone says where its contents are
from uotpool.backends import explain_impl, resolve_impl
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

if not _TYPE_CHECKING:  # with it, a type checker would take every name

    def __getattr__(name: str) -> object:
        """Import `uotpool.zoo` where it is used: its poolings are many files."""
        if name == "zoo":
            return _import_module("uotpool.zoo")
        raise AttributeError(f"module 'uotpool' has no attribute {name!r}")


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
    "suggest_rho",
    "uot_plan",
    "uot_pool",
]
