"""Public names of version 0.1 are where they were, and a module that moved says where it is."""

from __future__ import annotations

import importlib
import importlib.util
import re

import pytest

import uotpool
from uotpool.moved import MOVED

# What 0.1 had in `__all__` (commit 517631f).
PUBLIC = {
    "uotpool": """AdaptiveUOTPool1d AdaptiveUOTPool2d AdaptiveUOTPool3d ConvergenceWarning FeaturePrior
    MixedMeanMax PlanStats SamplePrior UOTPool1d UOTPool2d UOTPool3d UOTPooling check duality_gap param_groups
    plan_stats replace_global_pool replace_local_pools resolve_impl suggest_rho uot_plan uot_pool""",
    "uotpool.nn": """AdaptiveUOTPool1d AdaptiveUOTPool2d AdaptiveUOTPool3d FeaturePrior MixedMeanMax SamplePrior
    UOTPool1d UOTPool2d UOTPool3d UOTPooling param_groups""",
    "uotpool.zoo": "ENTRIES Entry Pooling build entry names",
    "uotpool.pyg": "UOTAggregation",
}
# Modules of 0.1 that are still there; others are in MOVED, or below a package that is.
KEPT = """checks cli functional inputs nn nn.images nn.mixed nn.pooling nn.priors nn.weights nn.windows pyg
solvers solvers.badmm solvers.certificate solvers.dual solvers.simplex solvers.sinkhorn zoo zoo.attention
zoo.covariance zoo.graphs zoo.networks zoo.pyg_sets zoo.registry zoo.simple zoo.transport"""


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_of_0_1_resolve(module):
    if module == "uotpool.pyg":
        pytest.importorskip("torch_geometric")
    found = importlib.import_module(module)
    assert [name for name in PUBLIC[module].split() if not hasattr(found, name)] == []


@pytest.mark.parametrize("name", KEPT.split())
def test_modules_of_0_1_resolve(name):
    assert importlib.util.find_spec(f"uotpool.{name}") is not None


@pytest.mark.parametrize("old", MOVED)
def test_a_moved_module_names_the_new_one(old):
    new = MOVED[old]
    with pytest.raises(
        ImportError, match=f"^{re.escape(old)} is not in uotpool 0.2.* moved to {re.escape(new)}"
    ):
        importlib.import_module(old)
    package, _, name = old.rpartition(".")
    with pytest.raises(ImportError, match=re.escape(new)):
        exec(f"from {package} import {name}", {})
    if new.startswith("uotpool."):
        importlib.import_module(new)


def test_what_was_below_a_moved_package():
    with pytest.raises(ImportError, match=r"uotpool_experiments \(pip install uotpool-experiments\)"):
        importlib.import_module("uotpool.experiments.store")


def test_other_missing_names_are_pythons_affair():
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'uotpool\.nothing'$"):
        importlib.import_module("uotpool.nothing")
    assert importlib.util.find_spec("uotpool.nothing") is None
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from uotpool import nothing", {})
    assert not hasattr(uotpool, "surgery")


def test_the_import_system_works_as_before():
    """Every finder is asked to forget what it knows, ours too: notebooks and torch do that."""
    importlib.invalidate_caches()
    assert importlib.util.find_spec("uotpool.no_such_module") is None
