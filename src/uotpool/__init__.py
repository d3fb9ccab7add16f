"""Differentiable global pooling by unbalanced optimal transport."""

from uotpool.checks import check
from uotpool.dispatch import resolve_impl
from uotpool.functional import PlanStats, duality_gap, plan_stats, suggest_rho, uot_plan, uot_pool
from uotpool.nn import FeaturePrior, MixedMeanMax, SamplePrior, UOTPooling, param_groups
from uotpool.solvers.converged import ConvergenceWarning

__version__ = "0.1.0"

__all__ = [
    "ConvergenceWarning",
    "FeaturePrior",
    "MixedMeanMax",
    "PlanStats",
    "SamplePrior",
    "UOTPooling",
    "check",
    "duality_gap",
    "param_groups",
    "plan_stats",
    "resolve_impl",
    "suggest_rho",
    "uot_plan",
    "uot_pool",
]
