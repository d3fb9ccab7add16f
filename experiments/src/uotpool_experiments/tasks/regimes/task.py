"""The task of the regimes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from uotpool.zoo import ENTRIES, build
from uotpool_experiments.datasets import images
from uotpool_experiments.tasks.base import Task
from uotpool_experiments.tasks.regimes import training
from uotpool_experiments.tasks.regimes.problems import REGIMES, regime
from uotpool_experiments.tasks.regimes.settings import DIM, Settings
from uotpool_experiments.tasks.spec import Report, Result, RunSpec

# A first look at all kinds of questions, in half an hour on two cores.
QUICK = {
    "dataset": [name for name, found in REGIMES.items() if found.images == "digits" and found.size <= 50],
    "pooling": [
        *(
            "mean",
            "max",
            "half-mean-max",
            "gated-mixed",
            "attention",
            "gated-attention",
            "softmax",
            "lse",
            "gem",
        ),
        *("uotp", "uotp-sinkhorn", "uotp-sinkhorn-paper"),
    ],
    "seeds": range(5),
}


class Regimes(Task):
    """Questions about bags of images whose best pooling is known, and differs from one to the other."""

    title = "Regimes: questions about bags whose best pooling is known"
    default_dataset = "digits-presence-20"
    optimism = ""
    settings = Settings
    metric = "score"
    table_kind = "regret"
    quick = QUICK
    draws_data = True
    seeds_together = 10

    def poolings(self) -> list[str]:
        return [name for name, found in ENTRIES.items() if not found.needs_edges]

    def check_dataset(self, name: str) -> None:
        regime(name)

    def prepare(self, dataset: str) -> None:
        images.prepare(regime(dataset).images)

    def check_settings(self, pooling: str, settings: Settings) -> None:
        build(pooling, DIM, DIM, **settings.pool)

    def check_protocol(self, protocol: str, options: Mapping[str, Any]) -> None:
        if protocol != "fair":
            raise ValueError(f"protocol: expected fair, as the paper has no regimes, got {protocol!r}")

    def folds(self, protocol: str, options: Mapping[str, Any]) -> int:
        return 1  # a seed draws its own images, bags and models

    def run(self, spec: RunSpec, report: Report) -> Result:
        return self.run_seeds([spec], report)[0]

    def run_seeds(self, specs: Sequence[RunSpec], report: Report) -> list[Result]:
        return training.run(specs, report)
