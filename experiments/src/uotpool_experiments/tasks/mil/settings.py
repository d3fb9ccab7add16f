"""The settings of a run on bags; the defaults are the paper's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from uotpool import checks
from uotpool_experiments.tasks.mil.dropout import LEVELS
from uotpool_experiments.tasks.spec import Options, RunSpec

WIDTHS = (256, 128, 64)
# Under "fair" every pooling is tuned over the same four configurations. The first one is the
# paper's.
GRID: tuple[dict[str, float], ...] = tuple(
    {"lr": lr, "weight_decay": decay} for lr, decay in ((5e-4, 5e-3), (2e-3, 5e-3), (5e-3, 5e-3), (2e-3, 1e-4))
)


@dataclass(frozen=True)
class Settings(Options):
    """The settings of a run."""

    epochs: int = 50
    batch: int = 128
    lr: float | None = None  # None: 5e-4, or tuned under "fair"
    weight_decay: float | None = None  # None: 5e-3, or tuned under "fair"
    dropout: float = 0.5
    hidden: int = 64
    pool: dict[str, Any] = field(default_factory=dict)  # options of `zoo.build`
    pool_decay: bool | None = None  # weight decay on a UOT pooling's weights; None: published ones only
    pool_lr: float | None = None  # learning rate of a UOT pooling's weights, as a multiple of lr
    alpha0_of_spread: float | None = None  # initial alpha0, as a multiple of the spread of what is pooled

    def __post_init__(self) -> None:
        checks.count("epochs", self.epochs, 1)
        checks.count("batch", self.batch, 1)
        checks.count("hidden", self.hidden, 1)
        for name in ("lr", "alpha0_of_spread", "weight_decay", "pool_lr"):
            if getattr(self, name) is not None:
                checks.number(name, getattr(self, name), positive=name in ("lr", "alpha0_of_spread"))
        if checks.number("dropout", self.dropout, positive=False) > 1 - 1 / LEVELS:
            checks.fail("dropout", f"a number from 0 to {1 - 1 / LEVELS}", self.dropout)
        if self.pool_decay is not None:
            checks.flag("pool_decay", self.pool_decay)
        if not isinstance(self.pool, dict):
            checks.fail("pool", "a table of options", self.pool, TypeError)

    @classmethod
    def of(cls, spec: RunSpec) -> Settings:
        return cls.from_options(spec.options)

    def configurations(self, protocol: str) -> list[dict[str, float]]:
        """Return the configurations to try: under "fair" the whole grid, with the values that are
        set kept fixed.
        """
        fixed = {name: value for name in GRID[0] if (value := getattr(self, name)) is not None}
        tried = GRID if protocol == "fair" else GRID[:1]
        found = [config | fixed for config in tried]
        return [config for i, config in enumerate(found) if config not in found[:i]]
