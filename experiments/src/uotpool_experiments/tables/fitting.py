"""Choose tables for a store without `tables.toml`: for each task, those that its runs allow."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from uotpool_experiments.analysis.selection import Source
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.tables.manifest import Entry, Manifest
from uotpool_experiments.tables.spec import TableSpec
from uotpool_experiments.tables.swap import BEFORE
from uotpool_experiments.tasks import TASKS, load

Case = tuple[str, str]  # protocol, settings


def manifests_of(source: Source) -> list[Manifest]:
    """Return one manifest per task that has runs in the source."""
    found = []
    for task in TASKS:
        rows, _ = source.select_all(task)
        if rows:
            own = Source(source.store, rows, source.stored)
            ranked, entries = _ranked(task, rows), [*_entries(task, rows)]
            found.append(Manifest(task, own, load(task).title, ranked=ranked, entries=entries))
    return found


def _cases(rows: Sequence[Row]) -> list[Case]:
    return list(dict.fromkeys((row.spec.protocol, row.spec.settings) for row in rows))


def _is_of_the_pooling(task: str, settings: str) -> bool:
    """Return whether some settings belong to the pooling itself.

    A table of settings shows those side by side.
    """
    return bool(load(task).pooling_settings & set(json.loads(settings)))


def _ranked(task: str, rows: Sequence[Row]) -> TableSpec | None:
    """Choose the runs to rank: fair ones with default settings, or the first that there are."""
    cases = [case for case in _cases(rows) if not _is_of_the_pooling(task, case[1])]
    if not cases:
        return None
    protocol, settings = ("fair", "{}") if ("fair", "{}") in cases else cases[0]
    return TableSpec(task, protocol=protocol, settings=json.loads(settings))


def _entries(task: str, rows: Sequence[Row]) -> Iterator[Entry]:
    cases = _cases(rows)
    for i, case in enumerate(cases):
        if not _is_of_the_pooling(task, case[1]):
            own = [row for row in rows if (row.spec.protocol, row.spec.settings) == case]
            yield from _entries_of_case(i, task, case, own)
    if {("fair", "{}"), ("paper", "{}")} <= set(cases):
        about = "What the paper's protocol shows above the fair one"
        yield Entry("optimism", about, TableSpec(task, "optimism"))
    for protocol in dict.fromkeys(p for p, settings in cases if _is_of_the_pooling(task, settings)):
        spec = TableSpec(task, "settings", protocol)
        yield Entry(f"settings-{protocol}", f"By settings, protocol {protocol}", spec, shown=False)


def _entries_of_case(i: int, task: str, case: Case, rows: Sequence[Row]) -> Iterator[Entry]:
    """Yield the results of a protocol and settings, and comparisons and swaps where there is
    something to show.
    """
    protocol, text = case
    settings = json.loads(text)
    named = "" if text == "{}" else f", settings {text}"
    about = f"Accuracy under the protocol {protocol}{named}"
    yield Entry(f"results-{i}", about, TableSpec(task, protocol=protocol, settings=settings))
    if any(BEFORE in row.details for row in rows):
        for dataset in dict.fromkeys(row.spec.dataset for row in rows):
            spec = TableSpec(task, "swap", protocol, datasets=(dataset,), settings=settings)
            yield Entry(f"swap-{i}-{dataset}", f"What the swap did on {dataset}{named}", spec)
    poolings = {row.spec.pooling for row in rows}
    for name in sorted(p for p in poolings if p.startswith("uotp-") and len(poolings) > 1):
        spec = TableSpec(task, "comparison", protocol, (name,), settings=settings)
        about = f"{name} against each other pooling, protocol {protocol}{named}"
        yield Entry(f"against-{i}-{name}", about, spec, shown=False)
