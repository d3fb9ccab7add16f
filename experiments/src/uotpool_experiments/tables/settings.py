"""Settings of one pooling side by side: what a table of results holds fixed, this one varies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from uotpool_experiments.analysis.statistics import Sample, common, compare, samples, sign
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.tables.kinds import PLAIN, by_pooling, cell, optimistic
from uotpool_experiments.tables.table import Table
from uotpool_experiments.tasks.spec import canonical

Flat = dict[str, Any]
Variant = tuple[str, str]  # pooling, settings that are varied as canonical JSON


def flat(settings: Mapping[str, Any]) -> Flat:
    """`{"pool": {"K": 8}}` as `{"pool.K": 8}`."""
    found: Flat = {}
    for name, value in settings.items():
        found |= (
            {f"{name}.{key}": item for key, item in value.items()} if isinstance(value, dict) else {name: value}
        )
    return found


def settings_table(
    rows: Sequence[Row],
    protocol: str = "fair",
    metric: str = "accuracy",
    *,
    fixed: Mapping[str, Any] | None = None,
    vary: Sequence[str] | None = None,
) -> Table:
    """Poolings and their settings, all on the same folds and seeds, against each pooling's default.

    Args:
        rows: runs with any settings.
        protocol: of the runs to show.
        metric: of the runs to show.
        fixed: settings that all runs in the table have; the default is a run with nothing but these.
        vary: names of the settings that may differ from the default, such as "pool.K"; None for any.
    """
    values = _by_variant(
        [row for row in rows if row.spec.protocol == protocol], flat(fixed or {}), vary, metric
    )
    if not values:
        raise ValueError(f"settings: expected runs with them under {protocol!r}, got no such run")
    datasets = list(dict.fromkeys(dataset for found in values.values() for dataset in found))
    for dataset in datasets:  # all on the same runs
        there = [variant for variant, found in values.items() if dataset in found]
        for variant, sample in zip(there, common([values[v][dataset] for v in there]), strict=True):
            values[variant][dataset] = sample
    first = "pooling" if protocol == "fair" else f"pooling ({protocol} protocol, optimistic)"
    verdicts = "more, same, less" if metric == "divergence" else "better, same, worse"
    table = Table(f"{metric} by settings, protocol {protocol}", [first, "settings", *datasets, verdicts], [])
    order = sorted(values, key=lambda variant: (by_pooling(variant[0]), len(variant[1]), variant[1]))
    for pooling, text in order:
        found = values[pooling, text]
        against = _verdicts(found, values.get((pooling, "{}")), metric) if text != "{}" else ""
        shown = [cell(found.get(dataset), metric) if _any(found, dataset) else "" for dataset in datasets]
        table.rows.append([pooling, written(json.loads(text)) or "default", *shown, against])
    _mark_best(table, order, values, datasets, sign(metric))
    _add_notes(table, values, datasets, fixed, metric)
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
            text = canonical(varied)
            groups.setdefault((row.spec.pooling, text), []).append(row)
    return {
        variant: {dataset: sample for (_, dataset), sample in samples(group, metric).items()}
        for variant, group in groups.items()
    }


def written(settings: Flat) -> str:
    return ", ".join(f"{n}={v:g}" if type(v) in (int, float) else f"{n}={v}" for n, v in settings.items())


def _any(found: Mapping[str, Sample], dataset: str) -> bool:
    return dataset in found and len(found[dataset]) > 0


def _verdicts(found: Mapping[str, Sample], default: Mapping[str, Sample] | None, metric: str) -> str:
    both = [dataset for dataset in found if default is not None and dataset in default]
    outcomes = [compare(found[d], default[d], better=sign(metric)) for d in both if default is not None]
    verdicts = [outcome.verdict for outcome in outcomes if outcome is not None]
    return ", ".join(str(verdicts.count(v)) for v in ("win", "tie", "loss")) if verdicts else ""


def _mark_best(
    table: Table,
    order: Sequence[Variant],
    values: Mapping[Variant, Mapping[str, Sample]],
    datasets: Sequence[str],
    better: int,
) -> None:
    """Of each pooling."""
    for pooling in dict.fromkeys(name for name, _ in order):
        own = [i for i, (name, _) in enumerate(order) if name == pooling]
        for column, dataset in enumerate(datasets, 2):
            means = {i: better * values[order[i]][dataset].mean for i in own if _any(values[order[i]], dataset)}
            if len(means) > 1:
                table.best |= {(i, column) for i, mean in means.items() if mean == max(means.values())}


def _add_notes(
    table: Table,
    values: Mapping[Variant, Mapping[str, Sample]],
    datasets: Sequence[str],
    fixed: Mapping[str, Any] | None,
    metric: str,
) -> None:
    runs = {d: next(len(found[d]) for found in values.values() if d in found) for d in datasets}
    unit = "" if metric in PLAIN else ", per cent"
    table.notes.append(
        f"mean ± standard deviation over the folds and seeds that all rows have{unit}; runs a cell: "
        + ", ".join(f"{n} on {d}" for d, n in runs.items())
    )
    table.notes.append(
        "best of each pooling marked; last column: data sets on which it differs from the pooling's default "
        "(corrected paired t-test, 5 %, each test by itself)"
    )
    if fixed:
        table.notes.append("all runs with " + written(flat(fixed)))
