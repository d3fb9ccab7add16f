"""Image classification: a network with any pooling in the place of its global average."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from uotpool.zoo import build
from uotpool_experiments.datasets import images as data
from uotpool_experiments.datasets.images import DIGITS, Images
from uotpool_experiments.tasks.image import checkpoints, models, parallel, pools, recipes
from uotpool_experiments.tasks.image.settings import Settings
from uotpool_experiments.tasks.spec import Report, Result, RunSpec

EMBEDDED = DIGITS
SOME_DIM = 8  # to try options with

poolings = pools.poolings
check_dataset = data.check_name
prepare = data.prepare


def clean_settings(pooling: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """What differs from the defaults, in one spelling; refuses what a run would refuse."""
    try:
        settings = Settings.from_options(options)
        build(pooling, SOME_DIM, **settings.pool)
        pools.make(pooling, SOME_DIM, settings.pool, settings.starts)
    except TypeError as error:
        raise ValueError(str(error)) from error
    for package in models.needed(settings.arch):
        models.require(package)
    return Settings.differing(options)


def folds(protocol: str, options: Mapping[str, Any]) -> int:
    """One: the data sets have a test part of their own."""
    return 1


def run(spec: RunSpec, report: Report) -> Result:
    settings = Settings.from_options(spec.options)
    images = _images(spec.dataset).of_size(settings.train_size)
    job = recipes.Job.of(spec, settings, images, report)
    result = recipes.scratch(job) if settings.recipe == "scratch" else recipes.two_stage(job)
    if parallel.rank() == 0:
        checkpoints.remove(job.key)
    return result


@lru_cache(maxsize=2)  # a worker has many runs of one data set
def _images(name: str) -> Images:
    return data.load(name)
