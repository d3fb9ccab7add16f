"""The table of poolings by data sets: means, the paper's numbers beside ours, and mean ranks."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from uotpool_experiments.analysis.metrics import is_per_cent, sign
from uotpool_experiments.analysis.published_results import TABLE_1, Published
from uotpool_experiments.analysis.ranking import Ranking, ranking
from uotpool_experiments.analysis.samples import Sample, Samples, on_common_runs, samples
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.tables.kinds import Kind
from uotpool_experiments.tables.shared import (
    by_pooling,
    of_protocol,
    optimistic,
    pooling_heading,
    samples_of,
    settings_of,
    with_settings,
)
from uotpool_experiments.tables.spec import TableSpec
from uotpool_experiments.tables.table import (
    EMPTY,
    Cell,
    Column,
    ColumnKind,
    Difference,
    Line,
    Mean,
    Number,
    PublishedMean,
    Table,
    Text,
)
from uotpool_experiments.tasks import load

MAJORITY = "(majority class)"


class Results(Kind):
    """`uotpool table TASK`."""

    options = ("runs",)

    def table(self, spec: TableSpec, rows: list[Row]) -> Table:
        return results_table(rows, spec.protocol, spec.metric, own_runs=spec.runs == "own")


KIND = Results()


def results_table(
    rows: Sequence[Row], protocol: str, metric: str = "accuracy", *, own_runs: bool = False
) -> Table:
    """Make the table of poolings by data sets: mean and standard deviation, the paper's numbers, and ranks.

    Args:
        rows: runs with the same settings.
        protocol: the protocol of the runs to show.
        metric: the metric to show.
        own_runs: whether a cell is the mean of all runs that its pooling has. Otherwise it is the
            mean of the runs that all poolings have on the data set, on which ranks and tests are
            based too.
    """
    every = samples_of(rows, protocol, metric)
    found = every if own_runs else on_common_runs(every)
    poolings = sorted({pooling for pooling, _ in every}, key=by_pooling)
    ranked = ranking(found, sign(metric))
    beside = metric == "accuracy" and protocol == "paper" and settings_of(rows) == "{}"
    columns = _columns(every, pooling_heading(protocol), poolings if beside else [])
    table = Table(f"{metric}, protocol {protocol}{with_settings(rows)}", columns)
    most = _most_runs(found)
    mean_ranks = {} if ranked is None else dict(zip(ranked.poolings, ranked.mean, strict=True))
    for pooling in poolings:
        rank = Number(float(mean_ranks[pooling]), ".1f") if pooling in mean_ranks else EMPTY
        cells = [
            _cell(
                column,
                found.get((pooling, column.dataset)),
                TABLE_1.get((pooling, column.dataset)),
                metric,
                most,
            )
            for column in columns[1:-1]
        ]
        table.lines.append(Line.of(pooling, *cells, rank))
    for c, column in enumerate(columns):
        if column.kind is ColumnKind.VALUE:
            table.mark_best(c, range(len(poolings)), sign(metric))
    if metric == "accuracy":
        table.lines.append(_majority_line(of_protocol(rows, protocol), columns, found))
    table.notes += _notes(rows, protocol, metric, every, found, own_runs)
    if any(column.kind is ColumnKind.DIFFERENCE for column in columns):
        table.notes.append(
            "difference: ours less the published one, in points; ▲ ▼ where it is more than two standard "
            "deviations, of both together (with one run of ours, its own taken as that of the paper)"
        )
    table.notes += _note_of_ranks(ranked)
    table.notes += _diverged(of_protocol(rows, protocol))
    if protocol == "paper":
        table.notes.append(optimistic(rows))
    return table


def _columns(found: Samples, heading: str, compared: Sequence[str]) -> list[Column]:
    """Make the columns, with the paper's numbers beside ours where it has one of the compared poolings."""
    columns = [Column.label(heading)]
    for dataset in dict.fromkeys(d for _, d in found):
        columns.append(Column.of(dataset))
        if any((pooling, dataset) in TABLE_1 for pooling in compared):
            columns += [Column.of(dataset, kind) for kind in (ColumnKind.PUBLISHED, ColumnKind.DIFFERENCE)]
    return [*columns, Column("mean rank")]


def _most_runs(found: Samples) -> dict[str, int]:
    """Return, for each data set, the number of runs of the pooling that has most."""
    most: dict[str, int] = defaultdict(int)
    for (_, dataset), sample in found.items():
        most[dataset] = max(most[dataset], len(sample))
    return most


def _cell(
    column: Column, sample: Sample | None, number: Published | None, metric: str, most: Mapping[str, int]
) -> Cell:
    if column.kind is ColumnKind.PUBLISHED:
        return EMPTY if number is None else PublishedMean(number)
    if column.kind is ColumnKind.DIFFERENCE:
        return EMPTY if sample is None or number is None else _difference(sample, number)
    return EMPTY if sample is None else Mean(sample, metric, most[column.dataset])


def _difference(sample: Sample, number: Published) -> Difference:
    """Subtract the published number from ours; mark a difference above two standard deviations."""
    own = 100 * sample.std if len(sample) > 1 else number.std
    return Difference(100 * sample.mean - number.mean, chance=2 * math.hypot(own, number.std))


def _majority_line(rows: Sequence[Row], columns: Sequence[Column], found: Samples) -> Line:
    """Make the line with the share of the largest class, on the runs of the cells above it."""
    share = samples(rows, "majority")
    cells: list[Cell] = [Text(MAJORITY)]
    for column in columns[1:]:
        here = column.dataset if column.kind is ColumnKind.VALUE else None
        above = {case for (_, d), s in found.items() if d == here for case in s.values}
        known = {c: v for (_, d), s in share.items() if d == here for c, v in s.values.items() if c in above}
        cells.append(Mean(Sample(known), "majority") if known else EMPTY)
    return Line(tuple(cells), stays_last=True)


def _notes(
    rows: Sequence[Row], protocol: str, metric: str, every: Samples, found: Samples, own_runs: bool
) -> list[str]:
    """Say what a cell is the mean of, and what is left out."""
    unit = ", per cent" if is_per_cent(metric) else ""
    runs = sorted({(len(s), s.seeds) for s in found.values()})
    brackets = ", in brackets where they are fewer than others'" if len(runs) > 1 else ""
    alone = all(load(row.spec.task).stands_alone(row.spec) for row in rows if row.spec.protocol == protocol)
    over = "seeds" if alone else "folds and seeds"
    whose = "" if own_runs else " that all poolings of the table have"
    counts = ", ".join(f"{n} ({seeds} seed{'s' if seeds > 1 else ''})" for n, seeds in runs) or "none"
    notes = [f"mean ± standard deviation over {over}{whose}{unit}; runs per cell{brackets}: {counts}"]
    left = sum(map(len, every.values())) - sum(map(len, found.values()))
    if left:
        notes.append(f"{left} runs that not all poolings have are left out (--runs own shows them)")
    return notes


def _note_of_ranks(ranked: Ranking | None) -> list[str]:
    if ranked is None:
        return []
    return [f"mean rank: on the runs that all poolings have, over {', '.join(ranked.datasets)}"]


def _diverged(rows: Iterable[Row]) -> list[str]:
    """Say which poolings had runs whose loss was not finite at some time."""
    runs: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        runs[row.spec.pooling].append(row)
    found = []
    for pooling, theirs in runs.items():
        some = sum(bool(row.details.get("diverged")) for row in theirs)
        never = sum(row.details.get("epoch") == 0 for row in theirs)
        if some:
            found.append(f"{pooling} in {some} of {len(theirs)} runs ({never} of them without a finite epoch)")
    return [f"a loss was not finite: {'; '.join(found)}"] if found else []
