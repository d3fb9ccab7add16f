"""The task of multi-instance learning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from uotpool.zoo import ENTRIES
from uotpool_experiments.datasets import entry, locate
from uotpool_experiments.tasks.base import Task
from uotpool_experiments.tasks.mil import training
from uotpool_experiments.tasks.mil.settings import GRID, Settings
from uotpool_experiments.tasks.protocols import FOLDS
from uotpool_experiments.tasks.spec import Report, Result, RunSpec


class MultiInstance(Task):
    """Multi-instance learning by the bag classifier of Ilse et al. (2018), with any pooling that
    needs no edges.
    """

    title = "Sets: multi-instance learning"
    default_dataset = "digits"
    optimism = "paper protocol: the epoch is chosen by the test loss, so its numbers are optimistic"
    settings = Settings
    pooling_settings = frozenset({"pool", "pool_lr", "pool_decay", "alpha0_of_spread"})
    paper_settings = GRID[0]

    def poolings(self) -> list[str]:
        return [name for name, found in ENTRIES.items() if not found.needs_edges]

    def check_dataset(self, name: str) -> None:
        if entry(name).task != "mil":
            raise ValueError(f"dataset: expected one for multi-instance learning, got {name!r}")

    def prepare(self, dataset: str) -> None:
        if entry(dataset).files:  # other data sets are embedded
            locate(entry(dataset))

    def check_settings(self, pooling: str, settings: Settings) -> None:
        training.check_pooling(pooling, settings)

    def folds(self, protocol: str, options: Mapping[str, Any]) -> int:
        return FOLDS

    def run(self, spec: RunSpec, report: Report) -> Result:
        return training.run(spec, report)
