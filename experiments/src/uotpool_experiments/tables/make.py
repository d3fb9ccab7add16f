"""Make the table that a `TableSpec` asks for from stored runs."""

from __future__ import annotations

from uotpool_experiments.analysis.samples import Samples, samples
from uotpool_experiments.analysis.selection import NoSuchRunError, Source
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.tables import kinds
from uotpool_experiments.tables.spec import TableSpec
from uotpool_experiments.tables.table import Table
from uotpool_experiments.tasks.spec import canonical


def make(spec: TableSpec, source: Source) -> Table:
    """Make the table of the source's runs."""
    rows, notes = choose(spec, source)
    table = kinds.load(spec.kind).table(spec, rows)
    table.notes += notes
    return table


def choose(spec: TableSpec, source: Source) -> tuple[list[Row], list[str]]:
    """Choose the runs for a table, and return them with notes on them."""
    kind = kinds.load(spec.kind)
    settings = None if kind.any_settings else canonical(spec.stored_settings())
    found, notes = source.select(spec.task, settings, spec.datasets)
    rows = kind.choose(spec, [row for row in found if not spec.seeds or row.spec.seed in spec.seeds])
    if not rows:
        raise NoSuchRunError("--seeds, --pooling, --set: expected some of the runs in the store, got none")
    return rows, notes


def samples_shown(spec: TableSpec, source: Source) -> Samples:
    """Return the samples of the runs that a table would show; none if there are no such runs."""
    try:
        rows, _ = choose(spec, source)
    except NoSuchRunError:
        return {}
    return samples([row for row in rows if row.spec.protocol == spec.protocol], spec.metric)
