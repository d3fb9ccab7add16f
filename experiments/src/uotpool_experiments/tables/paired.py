"""The table of one pooling against others: on each data set and over all, and what would have been seen."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from uotpool_experiments.analysis.metrics import is_per_cent, sign
from uotpool_experiments.analysis.paired import POWER, Ahead, Paired, paired
from uotpool_experiments.analysis.regret import SHARE
from uotpool_experiments.analysis.tests import holm, overlap_of
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.tables.comparison import ComparisonKind, compared
from uotpool_experiments.tables.shared import samples_of, with_settings
from uotpool_experiments.tables.spec import TableSpec
from uotpool_experiments.tables.table import EMPTY, Cell, Column, Count, Lead, Line, Number, PValue, Table, Text

EVERY, WON, LOST = "all data sets", "data sets won", "data sets lost"
P_VALUE = "p, all, after Holm's correction"
SEEN, SEEN_ON_ONE = "smallest difference shown, all", "the same, on one data set"


class PairedKind(ComparisonKind):
    """`uotpool table TASK --kind paired`: the first pooling against the others named, or against all."""

    def table(self, spec: TableSpec, rows: list[Row]) -> Table:
        first = compared(spec, rows)
        others = list(dict.fromkeys(row.spec.pooling for row in rows if row.spec.pooling != first))
        named = [name for name in spec.pooling_names() if name in others]
        return paired_table(rows, first, named or others, spec.protocol, spec.metric)


KIND = PairedKind()


def paired_table(rows: Sequence[Row], first: str, others: Sequence[str], protocol: str, metric: str) -> Table:
    """Show by how many points one pooling is ahead of each other one on each data set, and over all."""
    if not is_per_cent(metric) or sign(metric) < 0:
        raise ValueError(f"metric: expected one in per cent of which more is better, got {metric!r}")
    found = samples_of(rows, protocol, metric)
    if not any(pooling == first for pooling, _ in found) or not others:
        raise ValueError(
            f"pooling: expected one with runs under {protocol!r} and others to compare it with, got {first!r}"
        )
    overlap = overlap_of(rows[0].spec.task)
    against = {other: paired(found, first, other, overlap) for other in others}
    table = Table(
        f"{first} less each other pooling, points of {metric}, protocol {protocol}{with_settings(rows)}",
        [Column.label("data set"), *map(Column, against)],
    )
    for dataset in dict.fromkeys(dataset for one in against.values() for dataset in one.each):
        cells = [_lead(one.each.get(dataset)) for one in against.values()]
        table.lines.append(Line.of(dataset, *cells))
    p_values = {other: p for other, one in against.items() if (p := one.every.p_value) is not None}
    corrected = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    last: dict[str, list[Cell]] = {
        EVERY: [_lead(one.every) for one in against.values()],
        P_VALUE: [PValue(corrected[other]) if other in corrected else EMPTY for other in against],
        WON: [Count(one.count(1)) for one in against.values()],
        LOST: [Count(one.count(-1)) for one in against.values()],
        SEEN: [Number(one.every.smallest, ".1f") for one in against.values()],
        SEEN_ON_ONE: [Number(_median_smallest(one), ".1f") for one in against.values()],
    }
    table.lines += [Line((Text(name), *cells), stays_last=True) for name, cells in last.items()]
    tests = sum(len(one.each) for one in against.values())
    table.notes += [
        f"above 0: {first} is better; ▲ ▼, won and lost: the interval leaves out 0, as some "
        f"{(1 - SHARE) * tests:.0f} of the {tests} would by chance",
        f"intervals: {100 * SHARE:.0f} %, Student's t over the runs of a data set, and over data sets for all "
        "(if these are several); none for a single run; a pair is compared on the seeds that both have",
        "p-values belong to the intervals above them, which are of one comparison each, and are corrected for "
        f"all {len(corrected)} of their line",
        *_different_counts(against),
        f"smallest difference shown: its interval would leave out 0 in {100 * POWER:.0f} % of such studies; on "
        "one data set, the median of them",
    ]
    return table


def _different_counts(against: Mapping[str, Paired]) -> list[str]:
    """Say which poolings have fewer data sets behind their line of all, if not all have the same number."""
    counts = {other: len(one.each) for other, one in against.items()}
    most = max(counts.values())
    fewer = [f"{other} on {count}" for other, count in counts.items() if count < most]
    return [f"all data sets: {', '.join(fewer)} of the {most}"] if fewer else []


def _lead(ahead: Ahead | None) -> Cell:
    if ahead is None:
        return EMPTY
    return Lead(ahead.points.value, ahead.points.low, ahead.points.high)


def _median_smallest(one: Paired) -> float:
    return statistics.median(ahead.smallest for ahead in one.each.values())
