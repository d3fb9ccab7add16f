"""The kinds of tables, and the base class of a kind.

A new kind of table is one module beside this one, with a subclass of `Kind` as `KIND`, and one line
in `KINDS`. Modules are imported when a table is made, so that the command line starts quickly.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from uotpool_experiments.runs.rows import Row
    from uotpool_experiments.tables.spec import TableSpec
    from uotpool_experiments.tables.table import Table

# The name of each kind, which is that of its module, and what the kind shows.
KINDS = {
    "results": "each pooling on each data set",
    "optimism": "the paper's protocol less the fair one",
    "comparison": "one pooling against each other one, with tests",
    "settings": "the settings of the poolings side by side",
    "regret": "how far each pooling is behind the best, on average and at worst",
    "paired": "one pooling against others, data set by data set, with intervals",
    "cost": "seconds of a run, and parameters",
    "swap": "of task image, what a swap in a trained network did",
}


class Kind(ABC):
    """A kind of table: which of the selected runs it takes, and the table that it makes of them."""

    options: ClassVar[tuple[str, ...]] = ()  # fields of TableSpec that only some kinds take
    any_settings: ClassVar[bool] = False  # whether the kind takes runs with settings other than the spec's

    def choose(self, spec: TableSpec, rows: list[Row]) -> list[Row]:
        """Choose the runs for the table: those of the poolings that the spec names."""
        names = spec.pooling_names()
        return [row for row in rows if row.spec.pooling in names] if names else rows

    @abstractmethod
    def table(self, spec: TableSpec, rows: list[Row]) -> Table:
        """Make the table of these runs, which `choose` returned."""


def load(name: str) -> Kind:
    """Load the kind of this name, one of `KINDS`."""
    kind: Kind = importlib.import_module(f"uotpool_experiments.tables.{name}").KIND
    return kind
