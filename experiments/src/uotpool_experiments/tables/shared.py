"""What several kinds of tables share: their samples, the order of poolings, and what titles and notes say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from uotpool_experiments.analysis.samples import Samples, samples
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.tasks import load
from uotpool_experiments.tasks.poolings import PAPER


def of_protocol(rows: Iterable[Row], protocol: str) -> list[Row]:
    """The runs under this protocol; a ValueError if there is none."""
    found = [row for row in rows if row.spec.protocol == protocol]
    if not found:
        raise ValueError(f"protocol: expected one with runs, got {protocol!r}, with no run")
    return found


def samples_of(rows: Sequence[Row], protocol: str, metric: str) -> Samples:
    """The samples of a metric under a protocol; a ValueError that names what is missing if there is none."""
    if not (found := samples(of_protocol(rows, protocol), metric)):
        raise ValueError(f"metric: expected one that these runs have, got {metric!r}")
    return found


def settings_of(rows: Sequence[Row]) -> str:
    """The settings of all runs as canonical JSON, or "several"."""
    return rows[0].spec.settings if len({row.spec.settings for row in rows}) == 1 else "several"


def with_settings(rows: Sequence[Row]) -> str:
    """For a title: what all runs were set to, if that is not the default."""
    return "" if (found := settings_of(rows)) == "{}" else f", settings {found}"


def optimistic(rows: Sequence[Row]) -> str:
    """What a table under the protocol "paper" must say."""
    return load(rows[0].spec.task).optimism


def pooling_heading(protocol: str) -> str:
    """The heading of the first column. A CSV file is read without notes, so the column says it."""
    return "pooling" if protocol == "fair" else f"pooling ({protocol} protocol, optimistic)"


def by_pooling(pooling: str) -> tuple[int, str]:
    """The key that sorts poolings: the paper's in its order, then the others by name."""
    return (PAPER.index(pooling) if pooling in PAPER else len(PAPER), pooling)
