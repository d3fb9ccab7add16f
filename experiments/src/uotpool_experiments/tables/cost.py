"""The table of costs: seconds of a run, also as a multiple of mean pooling, and parameters."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from uotpool_experiments.runs.rows import Row
from uotpool_experiments.tables.kinds import Kind
from uotpool_experiments.tables.shared import by_pooling, of_protocol, with_settings
from uotpool_experiments.tables.spec import TableSpec
from uotpool_experiments.tables.table import EMPTY, Cell, Column, Count, Line, Table


@dataclass(frozen=True)
class Seconds(Cell):
    """The seconds of a run, and those of mean pooling on the same data set if they are known."""

    seconds: float
    base: float | None

    @property
    def value(self) -> float:
        return self.seconds

    def __str__(self) -> str:
        times = f" ({self.seconds / self.base:.2f} x)" if self.base else ""
        return f"{self.seconds:.1f}{times}"


class Cost(Kind):
    """`uotpool table TASK --kind cost`."""

    def table(self, spec: TableSpec, rows: list[Row]) -> Table:
        return cost_table(rows, spec.protocol)


KIND = Cost()


def cost_table(rows: Sequence[Row], protocol: str = "fair") -> Table:
    """Make the table of seconds per run by pooling and data set, and of parameters of the model."""
    chosen = of_protocol([row for row in rows if row.seconds is not None], protocol)
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    parameters: dict[str, int] = defaultdict(int)
    for row in chosen:
        pooling = row.spec.pooling
        seconds[pooling, row.spec.dataset].append(row.cpu_seconds or row.seconds or 0.0)
        parameters[pooling] = max(parameters[pooling], row.parameters or 0)
    datasets = list(dict.fromkeys(dataset for _, dataset in seconds))
    median = {key: statistics.median(values) for key, values in seconds.items()}
    title = f"seconds of a run, protocol {protocol}{with_settings(chosen)}"
    table = Table(title, [Column.label("pooling"), *map(Column.of, datasets), Column("parameters")])
    for pooling in sorted(parameters, key=by_pooling):
        cells = [
            Seconds(median[pooling, d], median.get(("mean", d))) if (pooling, d) in median else EMPTY
            for d in datasets
        ]
        table.lines.append(Line.of(pooling, *cells, Count(parameters[pooling])))
    table.notes.append(
        "median over folds and seeds, one thread; in brackets: as a multiple of mean pooling; "
        "parameters of the whole model, the largest of these data sets"
    )
    return table
