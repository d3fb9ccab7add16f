"""Which data sets are there and which are not, for the command `uotpool datasets`."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from uotpool_experiments.datasets import catalog, fetch
from uotpool_experiments.datasets.catalog import Statistics
from uotpool_experiments.datasets.errors import DatasetRefusedError


class Status(NamedTuple):
    """Whether a data set is `present`, ready to use without fetching, and `where`: its path or why not."""

    present: bool
    where: str


class Row(NamedTuple):
    """One data set, with the `statistics` that it must have and those that the `paper` states."""

    name: str
    task: str
    present: bool
    where: str
    statistics: Statistics
    paper: Statistics | None


def status(name: str) -> Status:
    """Say where a data set is, or why it is not there. Files are verified, nothing is fetched."""
    entry = catalog.entry(name)
    if not entry.files:
        return Status(True, "embedded in scikit-learn")
    parts = [replace(entry, files=(part,), parts=()) for part in entry.parts]
    try:
        path = fetch.find(entry) if all(fetch.find(part) for part in parts) else None
    except DatasetRefusedError as error:
        return Status(False, f"refused: {error}")
    if path is not None:
        return Status(True, str(path))
    if entry.sources and not fetch.offline():
        return Status(False, f"fetched when it is used, from {' or '.join(map(str, entry.sources))}")
    reasons = [f"{source}: UOTPOOL_OFFLINE forbids it" for source in entry.sources]
    return Status(False, fetch.missing(entry, reasons).removeprefix(f"{name}: ").replace("\n", ""))


def describe_lines() -> list[str]:
    """Describe all data sets as text, two lines per data set."""
    lines = []
    for row in describe():
        paper = "not in the paper" if row.paper is None else f"the paper: {row.paper.in_words()}"
        if row.paper == row.statistics:
            # Where there is no checksum, we had no file to count in.
            counted = all(file.digest for file in catalog.entry(row.name).files)
            paper = "as in the paper" if counted else "from the paper, checked on loading"
        lines.append(f"{row.name:16} {row.task:6} {'here' if row.present else 'not here'}: {row.where}")
        lines.append(f"{'':16} {row.statistics.in_words()}; {paper}")
    return lines


def describe() -> list[Row]:
    """Describe all data sets. Each process takes seconds to verify the large archives, once."""
    return [Row(e.name, e.task, *status(e.name), e.statistics, e.paper) for e in catalog.CATALOG.values()]
