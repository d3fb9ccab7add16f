"""The table of regrets: which pooling is the safest choice over all data sets."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from uotpool_experiments.analysis.regret import FAILED, REFERENCE, SHARE, Regrets, regrets
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.tables.kinds import Kind
from uotpool_experiments.tables.shared import pooling_heading, samples_of, with_settings
from uotpool_experiments.tables.spec import TableSpec
from uotpool_experiments.tables.table import Column, Line, Table, Text, WithInterval


class Regret(Kind):
    """`uotpool table TASK --kind regret`. Of all poolings, those that the spec names are shown."""

    def choose(self, spec: TableSpec, rows: list[Row]) -> list[Row]:
        return rows  # the best of a data set is the best of all that were run there

    def table(self, spec: TableSpec, rows: list[Row]) -> Table:
        return regret_table(rows, spec.protocol, spec.metric, spec.pooling_names())


KIND = Regret()


def regret_table(rows: Sequence[Row], protocol: str, metric: str, shown: Collection[str] = ()) -> Table:
    """Show the mean and the worst regret of each pooling, or of those of `shown`, and its failed runs."""
    found = regrets(samples_of(rows, protocol, metric))
    headings = ("mean regret", "worst regret", "worst on", "failed runs, %")
    table = Table(
        f"regret, points of {metric}, protocol {protocol}{with_settings(rows)}",
        [Column.label(pooling_heading(protocol)), *map(Column, headings)],
    )
    for place, pooling in enumerate(found.poolings):
        if shown and pooling not in shown:
            continue
        mean, worst, failed = found.mean[place], found.worst[place], found.share_failed(place)
        cells = (
            WithInterval(mean.value, mean.low, mean.high),
            WithInterval(worst.value, worst.low, worst.high),
            Text(found.datasets[int(found.regret[place].argmax())]),
            WithInterval(100 * failed.value, 100 * failed.low, 100 * failed.high),
        )
        table.lines.append(Line.of(pooling, *cells))
    if not table.lines:
        raise ValueError(f"pooling: expected one with runs on all of the data sets, got {list(shown)}")
    for column in (1, 2, 4):
        table.mark_best(column, range(len(table.lines)), -1)
    table.notes += _notes(found)
    table.notes += [f"{name} was not run on all of them" for name in shown if name not in found.poolings]
    return table


def _notes(found: Regrets) -> list[str]:
    best_of = f"{_range(found.best_of)} of the {len(REFERENCE)}"
    count = "1 data set" if len(found.datasets) == 1 else f"{len(found.datasets)} data sets"
    return [
        f"{count}, {_range(found.runs)} runs of a pooling on each: {', '.join(found.datasets)}",
        f"regret: points behind the best mean of {best_of} reference poolings",
        f"failed: {100 * FAILED:.0f} points or more under the best median of the data set",
        f"intervals: {100 * SHARE:.0f} %, from drawing data sets and runs again; wide for the worst regret",
        "intervals of failed runs: at least as wide as Wilson's for independent runs",
    ]


def _range(numbers: list[int]) -> str:
    least, most = min(numbers), max(numbers)
    return str(least) if least == most else f"{least} to {most}"
