"""What a swap in a trained network did: accuracy before it, right after it, and after the pool was trained."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from uotpool_experiments.runs.rows import Row
from uotpool_experiments.tables.kinds import by_pooling, with_settings
from uotpool_experiments.tables.table import Table

BEFORE, SWAPPED = "accuracy_before", "accuracy_swapped"
HEAD = ["pooling", "before", "swapped", "after", "difference", "top 5", "divergence, nats", "scale", "seeds"]


def swap_table(rows: Sequence[Row], protocol: str = "fair") -> Table:
    """Poolings by what was measured, on one data set."""
    chosen = [row for row in rows if row.spec.protocol == protocol and BEFORE in row.details]
    datasets = list(dict.fromkeys(row.spec.dataset for row in chosen))
    if len(datasets) != 1:
        raise ValueError(f"dataset: expected one with runs of recipe 'two-stage', got {datasets or 'none'}")
    table = Table(f"the swap on {datasets[0]}, protocol {protocol}{with_settings(chosen)}", HEAD, [])
    for pooling in sorted({row.spec.pooling for row in chosen}, key=by_pooling):
        own = [row for row in chosen if row.spec.pooling == pooling]
        before = [row.detail(BEFORE) or 0.0 for row in own]
        after = [_accuracy(row) for row in own]
        gains = [b - a for a, b in zip(before, after, strict=True)]
        table.rows.append(
            [
                pooling,
                _per_cent(before),
                _per_cent([row.detail(SWAPPED) for row in own]),
                _per_cent(after),
                f"{100 * statistics.mean(gains):+.2f}",
                _per_cent([row.metrics.get("top5") for row in own]),
                _plain([row.detail("divergence") for row in own]),
                _plain([row.detail("scale") for row in own]),
                str(len(own)),
            ]
        )
    table.notes += [
        "before: stage one, with average pooling; swapped: before its pool is trained; difference: after less "
        "before, in points",
        'pooling "mean" is the control: average pooling trained for as many epochs more',
    ]
    return table


def _accuracy(row: Row) -> float:
    if "accuracy" not in row.metrics:
        raise ValueError(f"metric: expected runs with an accuracy, got {row.spec} without one")
    return row.metrics["accuracy"]


def _per_cent(values: Sequence[float | None]) -> str:
    known = [100 * value for value in values if value is not None]
    if not known:
        return ""
    spread = f" ± {statistics.stdev(known):.2f}" if len(known) > 1 else ""
    return f"{statistics.mean(known):.2f}{spread}"


def _plain(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.mean(known):.4f}" if known else ""
