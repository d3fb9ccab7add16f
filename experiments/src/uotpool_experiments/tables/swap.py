"""The table of a swap in a trained network: accuracy before it, right after it, and after training the pool."""

from __future__ import annotations

from collections.abc import Sequence

from uotpool_experiments.analysis.samples import Sample, samples
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.tables.kinds import Kind
from uotpool_experiments.tables.shared import by_pooling, with_settings
from uotpool_experiments.tables.spec import TableSpec
from uotpool_experiments.tables.table import EMPTY, Cell, Column, Count, Difference, Line, Mean, Number, Table

BEFORE, SWAPPED = "accuracy_before", "accuracy_swapped"
MEASURED = ("before", "swapped", "after", "difference", "top 5", "divergence, nats", "scale", "seeds")


class Swap(Kind):
    """`uotpool table image --kind swap`."""

    def table(self, spec: TableSpec, rows: list[Row]) -> Table:
        return swap_table(rows, spec.protocol)


KIND = Swap()


def swap_table(rows: Sequence[Row], protocol: str = "fair") -> Table:
    """Make the table of poolings by measured values, on one data set."""
    chosen = [row for row in rows if row.spec.protocol == protocol and BEFORE in row.details]
    datasets = list(dict.fromkeys(row.spec.dataset for row in chosen))
    if len(datasets) != 1:
        raise ValueError(f"dataset: expected one with runs of recipe 'two-stage', got {datasets or 'none'}")
    title = f"the swap on {datasets[0]}, protocol {protocol}{with_settings(chosen)}"
    table = Table(title, [Column.label("pooling"), *map(Column, MEASURED)])
    for pooling in sorted({row.spec.pooling for row in chosen}, key=by_pooling):
        own = [row for row in chosen if row.spec.pooling == pooling]
        before, after = _required(own, BEFORE), _required(own, "accuracy")
        gains = Sample({case: after.values[case] - value for case, value in before.values.items()})
        cells: list[Cell] = [
            Mean(before, BEFORE),
            _mean(own, SWAPPED),
            Mean(after, "accuracy"),
            Difference(100 * gains.mean),
            _mean(own, "top5"),
            *(_number(own, name) for name in ("divergence", "scale")),
            Count(len(own)),
        ]
        table.lines.append(Line.of(pooling, *cells))
    table.notes += [
        "before: stage one, with average pooling; swapped: before its pool is trained; difference: after less "
        "before, in points",
        'pooling "mean" is the control: average pooling trained for as many epochs more',
    ]
    return table


def _sample(rows: Sequence[Row], metric: str) -> Sample | None:
    """Return a metric of the runs of one pooling on one data set, None if they do not have it."""
    return next(iter(samples(rows, metric).values()), None)


def _required(rows: Sequence[Row], metric: str) -> Sample:
    """Return a metric that every run must have."""
    found = _sample(rows, metric) or Sample({})
    for row in rows:
        if (row.spec.seed, row.spec.fold) not in found.values:
            raise ValueError(f"metric: expected runs with {metric!r}, got {row.spec} without it")
    return found


def _mean(rows: Sequence[Row], metric: str) -> Cell:
    found = _sample(rows, metric)
    return EMPTY if found is None else Mean(found, metric)


def _number(rows: Sequence[Row], metric: str) -> Cell:
    found = _sample(rows, metric)
    return EMPTY if found is None else Number(found.mean, ".4f")
