"""The tables of one task: those that the file `tables.toml` of a folder lists, with the folder's runs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uotpool_experiments import toml_file
from uotpool_experiments.analysis.ranking import Ranking, ranking
from uotpool_experiments.analysis.samples import Samples
from uotpool_experiments.analysis.selection import Source
from uotpool_experiments.tables import formats
from uotpool_experiments.tables.make import make, samples_shown
from uotpool_experiments.tables.spec import TableSpec
from uotpool_experiments.tables.table import Table
from uotpool_experiments.tasks import TASKS, load

FILE, RUNS = "tables.toml", "runs.csv"
FOLDER = "UOTPOOL_RESULTS"  # the environment variable for the folder with TASK/runs.csv; default: ./results
KEYS = {"title", "about", "ranking", "compared", "table"}
TABLE_KEYS = {"name", "about", "shown"}  # and those of a TableSpec


@dataclass(frozen=True)
class Entry:
    """A table of a manifest: its name, a sentence on what it shows, and its spec."""

    name: str
    about: str
    spec: TableSpec
    shown: bool = True  # whether a report shows it open


@dataclass(frozen=True)
class Manifest:
    """The tables of one task, with its runs."""

    task: str
    source: Source
    title: str
    about: str = ""
    ranked: TableSpec | None = None  # the runs whose accuracy is ranked
    compared: TableSpec | None = None  # those that are compared in pairs; may have data sets with few poolings
    entries: list[Entry] = field(default_factory=list)

    def table(self, entry: Entry) -> Table:
        return make(entry.spec, self.source)

    def command(self, entry: Entry) -> str:
        """Return the command line that prints the table."""
        return entry.spec.command(self.source.store, self.source.stored)

    def page(self, entry: Entry, table: Table) -> str:
        """Return the table in Markdown with the command that prints it from the root of a project."""
        folders = self.source.store.resolve().parts
        below = len(folders) - folders[::-1].index("results") - 1 if "results" in folders else -3
        command = entry.spec.command(Path(*folders[below:]), self.source.stored)
        return f"{formats.render(table, 'markdown')}\n    {command}\n"

    def ranked_samples(self) -> Samples:
        """Return the accuracies of the ranked runs; none if there are no such runs."""
        return {} if self.ranked is None else samples_shown(self.ranked, self.source)

    def compared_samples(self) -> Samples:
        """Return the accuracies of the runs that are compared in pairs; none if there are no such runs."""
        return {} if self.compared is None else samples_shown(self.compared, self.source)

    def ranking(self) -> Ranking | None:
        return ranking(self.ranked_samples())


def read(folder: Path) -> Manifest:
    """Read the manifest of a folder with `tables.toml` and `runs.csv`. The folder is named after the task."""
    task, path = folder.resolve().name, folder / FILE
    if task not in TASKS:
        raise ValueError(f"folder: expected one named as a task, {tuple(TASKS)}, got {folder}")
    given = toml_file.read(path)
    try:
        found = _manifest(task, given)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    source = Source.read(folder / RUNS, task)
    rows = [row for row in source.rows if row.spec.task == task]
    return Manifest(task, Source(source.store, rows), **found)


def _manifest(task: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a Manifest that the file gives."""
    if unknown := sorted(set(given) - KEYS):
        raise ValueError(f"expected keys among {sorted(KEYS)}, got {unknown}")
    tables = given.get("table", [])
    if not isinstance(tables, list):
        raise ValueError(f"expected every table as [[table]], got {tables!r}")
    texts = {"title": load(task).title, "about": "", **given}
    ranked = _accuracies(task, given, "ranking")
    return {
        "title": _text(texts, "title"),
        "about": _text(texts, "about"),
        "ranked": ranked,
        "compared": _accuracies(task, given, "compared") or ranked,
        "entries": [_entry(task, table) for table in tables],
    }


def _accuracies(task: str, given: Mapping[str, Any], key: str) -> TableSpec | None:
    """Return the spec of the runs that a key of the file selects, which are compared by their accuracy."""
    if key not in given:
        return None
    spec = _spec(task, key, given[key])
    if (spec.kind, spec.metric) != ("results", "accuracy"):
        raise ValueError(
            f"{key}: expected the kind results and the metric accuracy, got {spec.kind} and {spec.metric}"
        )
    return spec


def _entry(task: str, table: Any) -> Entry:
    if not isinstance(table, dict):
        raise ValueError(f"expected every table as [[table]], got {table!r}")
    name, about = _text(table, "name"), _text(table, "about")
    if not re.fullmatch(r"[\w-]+", name):  # the name becomes that of a file
        raise ValueError(f"expected names of letters, digits, _ and -, got {name!r}")
    shown = table.get("shown", True)
    if not isinstance(shown, bool):
        raise ValueError(f"table {name}: shown: expected true or false, got {shown!r}")
    keys = {key: value for key, value in table.items() if key not in TABLE_KEYS}
    return Entry(name, about, _spec(task, f"table {name}", keys), shown)


def _spec(task: str, where: str, keys: Any) -> TableSpec:
    if not isinstance(keys, dict):
        raise ValueError(f"{where}: expected a table of keys, such as {{protocol = 'fair'}}, got {keys!r}")
    try:
        return TableSpec.from_toml(task, keys)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _text(given: Mapping[str, Any], key: str) -> str:
    value = given.get(key)
    if not isinstance(value, str):
        raise ValueError(f"expected a text for {key}, got {'none' if value is None else repr(value)}")
    return value


def results_folder() -> Path:
    """Return the folder of results that the environment variable names, else that of the project."""
    return Path(os.environ.get(FOLDER, "results"))


def committed() -> list[Manifest]:
    """Return the manifests in the folder of results."""
    return [read(folder) for folder in committed_folders()]


def committed_folders() -> list[Path]:
    """Return the folders TASK with a manifest in the folder of results; raise FileNotFoundError if
    there is none.
    """
    results = results_folder()
    found = [results / task for task in TASKS if (results / task / FILE).is_file()]
    if not found:
        raise FileNotFoundError(
            f"expected TASK/{FILE} in {results}, got no such file: run it in the root of the project, or set "
            f"{FOLDER} to the folder of the results"
        )
    return found


def overall(manifests: Sequence[Manifest]) -> tuple[Ranking | None, list[str]]:
    """Rank over the data sets of all tasks, and return also the poolings that some task lacks."""
    known = [(m.ranked_samples(), ranked) for m in manifests if (ranked := m.ranking()) is not None]
    everywhere = set.intersection(*(set(ranked.poolings) for _, ranked in known)) if known else set()
    shared = {
        (p, d): sample
        for found, ranked in known
        for (p, d), sample in found.items()
        if p in everywhere and d in ranked.datasets
    }
    left_out = dict.fromkeys(p for _, ranked in known for p in ranked.poolings if p not in everywhere)
    return ranking(shared), list(left_out)
