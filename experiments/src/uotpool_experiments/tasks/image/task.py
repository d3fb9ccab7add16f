"""The task of image classification."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from uotpool.zoo import build
from uotpool_experiments.datasets import images
from uotpool_experiments.datasets.images import DIGITS, Images
from uotpool_experiments.tasks import checkpoints
from uotpool_experiments.tasks.base import Task
from uotpool_experiments.tasks.image import models, parallel, pools, recipes
from uotpool_experiments.tasks.image.settings import Settings
from uotpool_experiments.tasks.spec import Report, Result, RunSpec

SOME_DIM = 8  # of a pooling that is built only to check its settings


class ImageClassification(Task):
    """Image classification by a network with any pooling in the place of its global average."""

    title = "Images: classification"
    default_dataset = DIGITS
    optimism = "paper protocol: the epoch with the best test accuracy, so its numbers are optimistic"
    settings = Settings
    pooling_settings = frozenset({"pool", "pool_lr"})
    trains_together = True

    def poolings(self) -> list[str]:
        return pools.poolings()

    def check_dataset(self, name: str) -> None:
        images.check_name(name)

    def prepare(self, dataset: str) -> None:
        images.prepare(dataset)

    def check_settings(self, pooling: str, settings: Settings) -> None:
        build(pooling, SOME_DIM, **settings.pool)
        pools.make(pooling, SOME_DIM, settings.pool, settings.starts)

    def check_packages(self, options: Mapping[str, Any]) -> None:
        for package in models.needed(Settings.from_options(options).arch):
            models.require(package)

    def folds(self, protocol: str, options: Mapping[str, Any]) -> int:
        """Return 1, as the data sets have a test part of their own."""
        return 1

    def run(self, spec: RunSpec, report: Report) -> Result:
        settings = Settings.from_options(spec.options)
        job = recipes.Job.of(spec, settings, _images(spec.dataset).of_size(settings.train_size), report)
        result = recipes.scratch(job) if settings.recipe == "scratch" else recipes.two_stage(job)
        if parallel.rank() == 0:
            checkpoints.remove(job.key)
        return result


@lru_cache(maxsize=2)  # a worker does many runs on one data set
def _images(name: str) -> Images:
    return images.load(name)
