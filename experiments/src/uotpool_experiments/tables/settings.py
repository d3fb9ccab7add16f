"""The table of settings side by side: it varies what a table of results holds fixed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from uotpool_experiments.analysis.metrics import is_per_cent, sign
from uotpool_experiments.analysis.samples import Sample, common, samples
from uotpool_experiments.analysis.tests import compare, overlap_of
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.tables.kinds import Kind
from uotpool_experiments.tables.shared import by_pooling, optimistic, pooling_heading
from uotpool_experiments.tables.spec import TableSpec
from uotpool_experiments.tables.table import EMPTY, Cell, Column, Line, Mean, Table, Text
from uotpool_experiments.tasks.spec import canonical

Flat = dict[str, Any]
Variant = tuple[str, str]  # the pooling, and the settings that are varied as canonical JSON
ByVariant = Mapping[Variant, Mapping[str, Sample]]  # and by data set


@dataclass(frozen=True)
class Verdicts(Cell):
    """The number of data sets on which a test says "win", "tie" and "loss"."""

    win: int
    tie: int
    loss: int

    @property
    def value(self) -> float:
        return self.win

    def __str__(self) -> str:
        return f"{self.win}, {self.tie}, {self.loss}"


class Settings(Kind):
    """`uotpool table TASK --kind settings`."""

    options = ("vary",)
    any_settings = True

    def table(self, spec: TableSpec, rows: list[Row]) -> Table:
        fixed = spec.stored_settings()
        return settings_table(rows, spec.protocol, spec.metric, fixed=fixed, vary=spec.vary or None)


KIND = Settings()


def flat(settings: Mapping[str, Any]) -> Flat:
    """Return `{"pool.K": 8}` for `{"pool": {"K": 8}}`."""
    found: Flat = {}
    for name, value in settings.items():
        found |= (
            {f"{name}.{key}": item for key, item in value.items()} if isinstance(value, dict) else {name: value}
        )
    return found


def written(settings: Mapping[str, Any]) -> str:
    """Write the settings as a person does: `pool.K=8, lr=0.1`."""
    return ", ".join(f"{n}={v:g}" if type(v) in (int, float) else f"{n}={v}" for n, v in settings.items())


def settings_table(
    rows: Sequence[Row],
    protocol: str = "fair",
    metric: str = "accuracy",
    *,
    fixed: Mapping[str, Any] | None = None,
    vary: Sequence[str] | None = None,
) -> Table:
    """Compare poolings and their settings, all on the same folds and seeds, with each pooling's default.

    Args:
        rows: runs with any settings.
        protocol: the protocol of the runs to show.
        metric: the metric to show.
        fixed: settings that all runs in the table have; the default is a run with nothing but
            these.
        vary: names of the settings that may differ from the default, such as "pool.K"; None for
            any.
    """
    own = [row for row in rows if row.spec.protocol == protocol]
    values = _on_common_runs(_by_variant(own, flat(fixed or {}), vary, metric))
    if not values:
        raise ValueError(f"settings: expected runs with them under {protocol!r}, got no such run")
    datasets = list(dict.fromkeys(dataset for found in values.values() for dataset in found))
    verdicts = "more, same, less" if metric == "divergence" else "better, same, worse"
    labels = [Column.label(pooling_heading(protocol)), Column.label("settings")]
    table = Table(
        f"{metric} by settings, protocol {protocol}", [*labels, *map(Column.of, datasets), Column(verdicts)]
    )
    order = sorted(values, key=lambda variant: (by_pooling(variant[0]), len(variant[1]), variant[1]))
    overlap = overlap_of(own[0].spec.task)
    for pooling, text in order:
        found, default = values[pooling, text], values.get((pooling, "{}"), {})
        against = _verdicts(found, default, metric, overlap) if text != "{}" else EMPTY
        means = [Mean(found[d], metric) if len(found.get(d, ())) else EMPTY for d in datasets]
        table.lines.append(Line.of(pooling, Text(written(json.loads(text)) or "default"), *means, against))
    _mark_best(table, order, sign(metric))
    table.notes += _notes(values, datasets, fixed, metric)
    if protocol == "paper":
        table.notes.append(optimistic(rows))
    return table


def _by_variant(
    rows: Sequence[Row], fixed: Flat, vary: Sequence[str] | None, metric: str
) -> dict[Variant, dict[str, Sample]]:
    groups: dict[Variant, list[Row]] = {}
    for row in rows:
        options = flat(json.loads(row.spec.settings))
        if any(options.get(name) != value for name, value in fixed.items()):
            continue
        varied = {name: value for name, value in options.items() if name not in fixed}
        if vary is None or set(varied) <= set(vary):
            groups.setdefault((row.spec.pooling, canonical(varied)), []).append(row)
    return {
        variant: {dataset: sample for (_, dataset), sample in samples(group, metric).items()}
        for variant, group in groups.items()
    }


def _on_common_runs(values: dict[Variant, dict[str, Sample]]) -> dict[Variant, dict[str, Sample]]:
    """Restrict the samples to the runs that all variants of a data set have; there may be none."""
    shared: dict[Variant, dict[str, Sample]] = {variant: {} for variant in values}
    for dataset in dict.fromkeys(dataset for found in values.values() for dataset in found):
        there = [variant for variant, found in values.items() if dataset in found]
        for variant, sample in zip(there, common([values[v][dataset] for v in there]), strict=True):
            shared[variant][dataset] = sample
    return shared


def _verdicts(found: Mapping[str, Sample], default: Mapping[str, Sample], metric: str, overlap: float) -> Cell:
    both = [dataset for dataset in found if dataset in default]
    tests = [compare(found[d], default[d], sign(metric), overlap) for d in both]
    counts = Counter(test.verdict for test in tests if test is not None)
    return Verdicts(counts["win"], counts["tie"], counts["loss"]) if counts else EMPTY


def _mark_best(table: Table, order: Sequence[Variant], better: int) -> None:
    """Mark the best variant of each pooling that has several."""
    for pooling in dict.fromkeys(name for name, _ in order):
        own = [i for i, (name, _) in enumerate(order) if name == pooling]
        for c, column in enumerate(table.columns):
            with_runs = [i for i in own if column.dataset and table.lines[i].cells[c].value is not None]
            if len(with_runs) > 1:
                table.mark_best(c, with_runs, better)


def _notes(
    values: ByVariant, datasets: Sequence[str], fixed: Mapping[str, Any] | None, metric: str
) -> list[str]:
    runs = {d: next(len(found[d]) for found in values.values() if d in found) for d in datasets}
    unit = ", per cent" if is_per_cent(metric) else ""
    counts = ", ".join(f"{n} on {d}" for d, n in runs.items())
    notes = [
        f"mean ± standard deviation over the folds and seeds that all rows have{unit}; runs per cell: {counts}",
        "best of each pooling marked; last column: data sets on which it differs from the pooling's default "
        "(paired t-test, corrected for data that runs share, 5 %, each test by itself)",
    ]
    return [*notes, "all runs with " + written(flat(fixed))] if fixed else notes
