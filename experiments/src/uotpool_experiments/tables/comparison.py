"""The table of one pooling against each other one: differences and the verdicts of paired tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from uotpool_experiments.analysis.metrics import is_per_cent, sign
from uotpool_experiments.analysis.tests import outcomes, overlap_of, together
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.tables.kinds import Kind
from uotpool_experiments.tables.shared import by_pooling, optimistic, samples_of, with_settings
from uotpool_experiments.tables.spec import TableSpec
from uotpool_experiments.tables.table import EMPTY, Column, Count, Line, Outcome, Table
from uotpool_experiments.tasks.poolings import UOTP


class ComparisonKind(Kind):
    """`uotpool table TASK --kind comparison`: the first pooling against the others named, or against all."""

    def choose(self, spec: TableSpec, rows: list[Row]) -> list[Row]:
        return super().choose(spec, rows) if len(spec.pooling_names()) > 1 else rows

    def table(self, spec: TableSpec, rows: list[Row]) -> Table:
        return comparison_table(rows, compared(spec, rows), spec.protocol, spec.metric)


KIND = ComparisonKind()


def compared(spec: TableSpec, rows: Sequence[Row] = ()) -> str:
    """Return the pooling that a table of comparisons is about: our default layer, if it has runs."""
    default = "uotp" if any(row.spec.pooling == "uotp" for row in rows) else UOTP[0]
    return (spec.pooling_names() or [default])[0]


def comparison_table(
    rows: Sequence[Row], pooling: str, protocol: str = "fair", metric: str = "accuracy"
) -> Table:
    """Compare one pooling with all others: the difference in points and the p-value of the corrected test."""
    found = samples_of(rows, protocol, metric)
    datasets = [d for (p, d) in found if p == pooling]
    if not datasets:
        raise ValueError(f"pooling: expected one with runs under {protocol!r}, got {pooling!r}, with no run")
    unit = ", points" if is_per_cent(metric) else ""
    table = Table(
        f"{pooling} less each other pooling ({metric}{unit}; protocol {protocol}{with_settings(rows)})",
        [Column.label("against"), *map(Column.of, datasets), *map(Column, ("wins", "ties", "losses"))],
    )
    overlap = overlap_of(rows[0].spec.task)
    tests = outcomes(found, pooling, sign(metric), overlap)
    for other in sorted({p for p, _ in found} - {pooling}, key=by_pooling):
        own = [tests.get((other, dataset)) for dataset in datasets]
        cells = [EMPTY if test is None else Outcome(test, metric) for test in own]
        verdicts = Counter(test.verdict for test in own if test is not None)
        counts = [Count(verdicts[verdict]) for verdict in ("win", "tie", "loss")]
        table.lines.append(Line.of(other, *cells, *counts))
    table.notes.append(
        f"in brackets: p of the paired t-test{' with the correction of Nadeau and Bengio' if overlap else ''}; "
        "verdicts at 5 %, each test by itself"
    )
    table.notes.append(_in_words(together(tests)))
    if protocol == "paper":
        table.notes.append(optimistic(rows))
    return table


def verdicts(table: Table) -> Counter[str]:
    """Count how many tests of a table are "win", "tie" and "loss", with all of them as one family."""
    tests = {
        (str(line.cells[0]), column.dataset): cell.comparison
        for line in table.lines
        for column, cell in zip(table.columns, line.cells, strict=True)
        if isinstance(cell, Outcome)
    }
    return Counter(together(tests).values())


def _in_words(verdicts: Mapping[tuple[str, str], str]) -> str:
    counts = []
    for verdict, plural in (("win", "wins"), ("loss", "losses")):
        cases = [f"{other} on {dataset}" for (other, dataset), v in verdicts.items() if v == verdict]
        counts.append(f"{len(cases)} {plural}" + (f" ({', '.join(cases)})" if cases else ""))
    n = len(verdicts)
    few = f"some {n / 20:.0f} come" if n >= 20 else "fewer than one comes"
    chance = f"of {n} tests {few} out at 5 % by chance"
    return f"{chance}; after Holm's correction of all of them: {', '.join(counts)}"
