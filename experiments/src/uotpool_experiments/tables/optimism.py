"""The table of how much more the paper's protocol shows than the fair one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from uotpool_experiments.analysis.samples import Sample, common, samples
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.tables.kinds import Kind
from uotpool_experiments.tables.shared import by_pooling, optimistic, with_settings
from uotpool_experiments.tables.spec import TableSpec
from uotpool_experiments.tables.table import EMPTY, Column, Difference, Line, Table
from uotpool_experiments.tasks import load
from uotpool_experiments.tasks.protocols import PROTOCOLS
from uotpool_experiments.tasks.spec import canonical


class Optimism(Kind):
    """`uotpool table TASK --kind optimism`."""

    any_settings = True

    def choose(self, spec: TableSpec, rows: list[Row]) -> list[Row]:
        return super().choose(spec, same_training(rows, spec.stored_settings()))

    def table(self, spec: TableSpec, rows: list[Row]) -> Table:
        return optimism_table(rows, spec.metric)


KIND = Optimism()


def same_training(rows: Sequence[Row], fair: Mapping[str, Any]) -> list[Row]:
    """Return the runs that are trained alike under both protocols.

    These are the fair runs with the settings `fair`, and the runs under "paper" with those of these
    settings that the protocol does not imply anyway.
    """

    def wanted(row: Row) -> str:
        implied = load(row.spec.task).paper_settings if row.spec.protocol == "paper" else {}
        return canonical({name: value for name, value in fair.items() if implied.get(name) != value})

    return [row for row in rows if row.spec.settings == wanted(row)]


def optimism_table(rows: Sequence[Row], metric: str = "accuracy") -> Table:
    """Subtract the fair protocol's numbers from the paper protocol's, on the folds and seeds that both have.

    Under "paper" a run on graphs is the mean of all folds, so there the seeds are compared.
    """
    by_protocol = {p: samples([row for row in rows if row.spec.protocol == p], metric) for p in PROTOCOLS}
    by_seed = any(load(row.spec.task).stands_alone(row.spec) for row in rows)
    found = {key: _gap(own, by_protocol["fair"].get(key), by_seed) for key, own in by_protocol["paper"].items()}
    gaps = {key: gap for key, gap in found.items() if gap is not None}
    if not gaps:
        raise ValueError("protocol: expected the same runs under both protocols, got no such run")
    datasets = list(dict.fromkeys(dataset for _, dataset in gaps))
    fair = [row for row in rows if row.spec.protocol == "fair"]
    title = f"protocol paper less protocol fair ({metric}, points{with_settings(fair)})"
    table = Table(title, [Column.label("pooling"), *map(Column.of, datasets)])
    for pooling in sorted({pooling for pooling, _ in gaps}, key=by_pooling):
        own = [gaps.get((pooling, dataset)) for dataset in datasets]
        table.lines.append(Line.of(pooling, *(EMPTY if gap is None else Difference(100 * gap) for gap in own)))
    table.notes.append(optimistic(rows))
    return table


def _gap(paper_runs: Sample, fair_runs: Sample | None, by_seed: bool) -> float | None:
    """Return the difference of the means on the folds and seeds that both have, or on the seeds."""
    if fair_runs is None:
        return None
    if by_seed:
        paper_runs, fair_runs = paper_runs.by_seed(), fair_runs.by_seed()
    both = common([paper_runs, fair_runs])
    return both[0].mean - both[1].mean if len(both[0]) else None
