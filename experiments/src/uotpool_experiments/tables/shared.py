"""Parts that several kinds of tables share: samples, the order of poolings, and texts of titles and notes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from uotpool_experiments.analysis.samples import Samples, samples
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.tasks import load
from uotpool_experiments.tasks.poolings import PAPER


def of_protocol(rows: Iterable[Row], protocol: str) -> list[Row]:
    """Return the runs under this protocol; raise a ValueError if there is none."""
    found = [row for row in rows if row.spec.protocol == protocol]
    if not found:
        raise ValueError(f"protocol: expected one with runs, got {protocol!r}, with no run")
    return found


def samples_of(rows: Sequence[Row], protocol: str, metric: str) -> Samples:
    """Return the samples of a metric under a protocol; if there is none, raise a ValueError that
    says what is missing.
    """
    if not (found := samples(of_protocol(rows, protocol), metric)):
        raise ValueError(f"metric: expected one that these runs have, got {metric!r}")
    return found


def settings_of(rows: Sequence[Row]) -> str:
    """Return the settings of all runs as canonical JSON, or "several"."""
    return rows[0].spec.settings if len({row.spec.settings for row in rows}) == 1 else "several"


def with_settings(rows: Sequence[Row]) -> str:
    """Return the settings of all runs for a title, or nothing for the default."""
    return "" if (found := settings_of(rows)) == "{}" else f", settings {found}"


def optimistic(rows: Sequence[Row]) -> str:
    """Return the note that a table under the protocol "paper" must have."""
    return load(rows[0].spec.task).optimism


def pooling_heading(protocol: str) -> str:
    """Return the heading of the first column. It names the protocol, as a CSV file has no notes."""
    return "pooling" if protocol == "fair" else f"pooling ({protocol} protocol, optimistic)"


def by_pooling(pooling: str) -> tuple[int, str]:
    """Return the key that sorts poolings: the paper's in its order, then the others by name."""
    return (PAPER.index(pooling) if pooling in PAPER else len(PAPER), pooling)
