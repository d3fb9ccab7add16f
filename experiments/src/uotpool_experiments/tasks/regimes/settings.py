"""The settings of a run on a regime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from uotpool import checks
from uotpool_experiments.tasks.spec import Options, RunSpec

HIDDEN, DIM = 32, 16  # widths of the two layers before the pooling, which pools DIM features
BAGS = {"train": 1000, "validation": 400, "test": 600}
LOOKS = 10  # times that the validation bags are looked at during training


@dataclass(frozen=True)
class Settings(Options):
    """The settings of a run. The rate and the step are chosen by the validation bags."""

    lrs: Sequence[float] = (3e-3, 1e-2)
    steps: int | None = None  # None: as many as the regime has
    bags: int = BAGS["train"]  # for training
    pool: dict[str, Any] = field(default_factory=dict)  # options of `zoo.build`

    def __post_init__(self) -> None:
        if not isinstance(self.lrs, (list, tuple)) or not self.lrs:
            checks.fail("lrs", "a list of learning rates", self.lrs, TypeError)
        for lr in self.lrs:
            checks.number("lrs", lr, positive=True)
        if self.steps is not None:
            checks.count("steps", self.steps, LOOKS)
        checks.count("bags", self.bags, 2)
        if not isinstance(self.pool, dict):
            checks.fail("pool", "a table of options", self.pool, TypeError)

    @classmethod
    def of(cls, spec: RunSpec) -> Settings:
        return cls.from_options(spec.options)
