"""Tables that belong together: those of a folder's `tables.toml`, or those that fit a store.

A table is given by what stands after `uotpool table TASK --store FILE`, so that a command prints whatever a
report shows.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from uotpool_experiments import toml_file
from uotpool_experiments.analysis.ranking import Ranking, ranking
from uotpool_experiments.analysis.statistics import Sample, samples, together
from uotpool_experiments.cli import table as table_command
from uotpool_experiments.runs import same_code
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.tables.kinds import select
from uotpool_experiments.tables.swap import BEFORE
from uotpool_experiments.tables.table import Table
from uotpool_experiments.tasks import TASKS, load
from uotpool_experiments.tasks.spec import canonical

FILE, RUNS = "tables.toml", "runs.csv"
FOLDER = "UOTPOOL_RESULTS"  # environment variable: where TASK/runs.csv is; default: ./results
KEYS = {"title", "about", "ranking", "table"}
TABLE_KEYS = {"name", "about", "arguments", "shown"}


@dataclass(frozen=True)
class Entry:
    """A table: its name, what it shows, and the arguments of `uotpool table` that make it."""

    name: str
    about: str
    arguments: tuple[str, ...]
    shown: bool = True  # in a report: open at once


@dataclass(frozen=True)
class Listing:
    """The tables of one task, with its runs."""

    task: str
    store: Path
    rows: list[Row]
    title: str
    about: str = ""
    ranked: tuple[str, ...] | None = None  # arguments for the runs whose accuracy is ranked
    entries: list[Entry] = field(default_factory=list)
    stored: bool = False

    def words(self, arguments: Sequence[str]) -> list[str]:
        """What stands after `uotpool table`."""
        return [self.task, f"--store={self.store}", *(["--stored"] if self.stored else []), *arguments]

    def command(self, entry: Entry) -> str:
        return shlex.join(["uotpool", "table", *self.words(entry.arguments)])

    def page(self, entry: Entry) -> str:
        """The table in Markdown with the command that prints it, as seen from the root of a project."""
        here = replace(self, store=Path(self.store.resolve().parents[1].name, self.task, RUNS))
        return f"{self.table(entry).render('markdown')}\n    {here.command(entry)}\n"

    def table(self, entry: Entry) -> Table:
        return table_command.make(table_command.parse(self.words(entry.arguments)), self.rows)

    def verdicts(self, entry: Entry) -> Counter[str]:
        """Of a table of a UOT pooling against others: "win", "tie", "loss", all its tests taken together."""
        args = table_command.parse(self.words(entry.arguments))
        if args.kind != "comparison" or not table_command.compared(args)[0].startswith("uotp-"):
            return Counter()
        return Counter(together(table_command.tests(args, self.rows)).values())

    def found(self) -> dict[tuple[str, str], Sample]:
        """Accuracy of the runs that are to be ranked; none if there are no such runs."""
        if self.ranked is None:
            return {}
        args = table_command.parse(self.words(self.ranked))
        try:
            rows, _ = table_command.chosen(args, self.rows)
        except table_command.NoSuchRunError:
            return {}
        return samples([row for row in rows if row.spec.protocol == args.protocol], "accuracy")

    def protocol(self) -> str:
        """Of the runs that are ranked."""
        return str(table_command.parse(self.words(self.ranked or ())).protocol)

    def ranking(self) -> Ranking | None:
        return ranking(self.found())


def read(folder: Path) -> Listing:
    """The listing of a folder with `tables.toml` and `runs.csv`, whose name is that of the task."""
    task, path = folder.resolve().name, folder / FILE
    if task not in TASKS:
        raise ValueError(f"folder: expected one named as a task, {tuple(TASKS)}, got {folder}")
    given = toml_file.read(path)
    _refuse_unknown(path, given, KEYS)
    entries = [_entry(path, table) for table in given.get("table", [])]
    ranked = tuple(shlex.split(_text(path, given, "ranking"))) if "ranking" in given else None
    store = folder / RUNS
    rows = [row for row in table_command.read_rows(store) if row.spec.task == task]
    given = {"title": load(task).title, "about": ""} | given
    return Listing(task, store, rows, _text(path, given, "title"), _text(path, given, "about"), ranked, entries)


def _entry(path: Path, table: Any) -> Entry:
    if not isinstance(table, dict):
        raise ValueError(f"{path}: expected every table as [[table]], got {table!r}")
    _refuse_unknown(path, table, TABLE_KEYS)
    name, about = _text(path, table, "name"), _text(path, table, "about")
    if not re.fullmatch(r"[\w-]+", name):  # it becomes the name of a file
        raise ValueError(f"{path}: expected names of letters, digits, _ and -, got {name!r}")
    words = tuple(shlex.split(_text(path, {"arguments": ""} | table, "arguments")))
    return Entry(name, about, words, bool(table.get("shown", True)))


def _text(path: Path, given: dict[str, Any], key: str) -> str:
    value = given.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{path}: expected a text for {key}, got {'none' if value is None else repr(value)}")
    return value


def results_folder() -> Path:
    """The one that the environment variable names, else that of the project."""
    return Path(os.environ.get(FOLDER, "results"))


def committed() -> list[Listing]:
    """Of the folder of results."""
    folder = results_folder()
    found = [read(folder / task) for task in TASKS if (folder / task / FILE).is_file()]
    if not found:
        raise FileNotFoundError(
            f"expected TASK/{FILE} in {folder}, got no such file: run it in the root of the project, or set "
            f"{FOLDER} to the folder of the results"
        )
    return found


def overall(listings: Sequence[Listing]) -> tuple[Ranking | None, list[str]]:
    """Over the data sets of all tasks, and the poolings that are left out as they are not in all of them."""
    known = [(listing.found(), ranked) for listing in listings if (ranked := listing.ranking()) is not None]
    everywhere = set.intersection(*(set(ranked.poolings) for _, ranked in known)) if known else set()
    shared = {
        (p, d): sample
        for found, ranked in known
        for (p, d), sample in found.items()
        if p in everywhere and d in ranked.datasets
    }
    left_out = dict.fromkeys(p for _, ranked in known for p in ranked.poolings if p not in everywhere)
    return ranking(shared), list(left_out)


def _refuse_unknown(path: Path, given: dict[str, Any], known: set[str]) -> None:
    if not set(given) <= known:
        raise ValueError(f"{path}: expected keys among {sorted(known)}, got {sorted(set(given) - known)}")


def by_default(store: Path, rows: Sequence[Row], stored: bool = False) -> list[Listing]:
    """For a store that no file describes: for each task, what its runs allow."""
    found = []
    for task in TASKS:
        old, same = stored or table_command.is_csv(store), same_code.beside(store)
        own, _ = select(rows, task, stored=old, settings=None, same=same)
        if own:
            ranked, entries = _fitting(own)
            listing = Listing(task, store, own, load(task).title, ranked=ranked, entries=entries, stored=stored)
            found.append(listing)
    return found


def _fitting(rows: Sequence[Row]) -> tuple[tuple[str, ...] | None, list[Entry]]:
    """Results for each protocol and settings; optimism, comparisons and swaps where there is something to show.

    Settings of the pooling itself are put side by side in one table.
    """
    entries: list[Entry] = []
    ranked: tuple[str, ...] | None = None
    cases = list(dict.fromkeys((row.spec.protocol, row.spec.settings) for row in rows))
    for i, (protocol, text) in enumerate(cases):
        settings = json.loads(text)
        own = [row for row in rows if (row.spec.protocol, row.spec.settings) == (protocol, text)]
        if load(own[0].spec.task).pooling_settings & set(settings):
            continue
        words = ["--protocol", protocol]
        for name, value in settings.items():
            words += ["--set", f"{name}={value if isinstance(value, str) else canonical(value)}"]
        named = "" if text == "{}" else f", settings {text}"
        entries.append(Entry(f"results-{i}", f"Accuracy under the protocol {protocol}{named}", tuple(words)))
        if ranked is None or (protocol == "fair" and text == "{}"):
            ranked = tuple(words)
        if any(BEFORE in row.details for row in own):
            for dataset in dict.fromkeys(row.spec.dataset for row in own):
                more = ("--kind", "swap", "--dataset", dataset, *words)
                entries.append(Entry(f"swap-{i}-{dataset}", f"What the swap did on {dataset}{named}", more))
        poolings = {row.spec.pooling for row in own}
        for name in sorted(p for p in poolings if p.startswith("uotp-") and len(poolings) > 1):
            more = ("--kind", "comparison", "--pooling", name, *words)
            about = f"{name} against each other pooling, protocol {protocol}{named}"
            entries.append(Entry(f"against-{i}-{name}", about, more, shown=False))
    if {("fair", "{}"), ("paper", "{}")} <= set(cases):
        about = "What the paper's protocol shows above the fair one"
        entries.append(Entry("optimism", about, ("--kind", "optimism")))
    of_the_pooling = load(rows[0].spec.task).pooling_settings
    for protocol in dict.fromkeys(p for p, text in cases if of_the_pooling & set(json.loads(text))):
        more = ("--kind", "settings", "--protocol", protocol)
        entries.append(Entry(f"settings-{protocol}", f"By settings, protocol {protocol}", more, shown=False))
    return ranked, entries
