"""The task of bags of MNIST digits: the bag classifier of the task "mil" on bags that are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from uotpool.zoo import ENTRIES
from uotpool_experiments.datasets import images
from uotpool_experiments.tasks.bags import drawing
from uotpool_experiments.tasks.base import Task
from uotpool_experiments.tasks.mil import settings as mil
from uotpool_experiments.tasks.mil import training
from uotpool_experiments.tasks.seeding import seed_for
from uotpool_experiments.tasks.spec import Report, Result, RunSpec

RATES = (5e-4, 2e-3)  # the hold-out chooses one of them
DECAY = 1e-4


@dataclass(frozen=True)
class Settings(mil.Settings):
    """The settings of the task "mil", with small batches and no dropout, as the bags are few."""

    epochs: int = 30
    batch: int = 10
    dropout: float = 0.0

    def configurations(self, protocol: str) -> list[dict[str, float]]:
        rates = RATES if self.lr is None else (self.lr,)
        decay = DECAY if self.weight_decay is None else self.weight_decay
        return [{"lr": lr, "weight_decay": decay} for lr in rates]


class BagsOfDigits(Task):
    """Multi-instance learning on bags of MNIST digits, by the size of bags and the number of training bags."""

    title = "Bags of MNIST digits: is there a 9?"
    default_dataset = "mnist-bags-10-50"
    optimism = ""
    settings = Settings
    draws_data = True
    pooling_settings = frozenset({"pool", "pool_lr", "pool_decay", "alpha0_of_spread"})

    def poolings(self) -> list[str]:
        return [name for name, found in ENTRIES.items() if not found.needs_edges]

    def check_dataset(self, name: str) -> None:
        drawing.problem(name)

    def prepare(self, dataset: str) -> None:
        images.prepare(drawing.IMAGES)

    def check_settings(self, pooling: str, settings: Settings) -> None:
        training.check_pooling(pooling, settings)

    def check_protocol(self, protocol: str, options: Mapping[str, Any]) -> None:
        if protocol != "fair":
            raise ValueError(f"protocol: expected fair, as the paper has no such bags, got {protocol!r}")

    def folds(self, protocol: str, options: Mapping[str, Any]) -> int:
        return 1  # a seed draws its own images, bags and models

    def run(self, spec: RunSpec, report: Report) -> Result:
        """Train at each rate; test what the held-out bags choose, once."""
        settings = Settings.from_options(spec.options)
        parts = drawing.load(spec.dataset, partial(seed_for, spec))
        return training.tested(training.fit_bags(spec, settings, parts, report))
