"""Select the stored runs that count: those of the present code, or of one earlier version per pooling."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from uotpool.zoo import ENTRIES
from uotpool_experiments.runs import same_code
from uotpool_experiments.runs.reading import is_csv, read_rows
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.runs.same_code import SameCode
from uotpool_experiments.tasks.fingerprint import fingerprint


class MixedCodeError(ValueError):
    """Runs of several versions of the code would stand in one table."""


class NoSuchRunError(ValueError):
    """No stored run matches what was asked for."""


@dataclass(frozen=True)
class Source:
    """The runs of a file, and whether those of earlier code count."""

    store: Path
    rows: list[Row]
    stored: bool = False  # whether `--stored` was given

    @classmethod
    def read(cls, store: Path, task: str = "TASK", stored: bool = False) -> Source:
        return cls(store, read_rows(store, task), stored)

    @property
    def takes_earlier_code(self) -> bool:
        """Whether runs of earlier code count. Those of a CSV file do, as it was kept for its numbers."""
        return self.stored or is_csv(self.store)

    def select(
        self, task: str, settings: str | None = None, datasets: Collection[str] = ()
    ) -> tuple[list[Row], list[str]]:
        """Return the runs of the task that count, and notes on them.

        Args:
            task: the task of the runs.
            settings: canonical JSON that the runs have as settings; None for any settings.
            datasets: the data sets of the runs; none for all.
        """
        on_these = [row for row in self.rows if not datasets or row.spec.dataset in datasets]
        rows, notes = replace(self, rows=on_these).select_all(task, settings)
        there = {row.spec.dataset for row in rows}
        missing = [f"no runs on {name}" for name in datasets if name not in there]
        if not rows:
            settings_there = sorted({row.spec.settings for row in self.rows if row.spec.task == task})
            if not self.takes_earlier_code:
                notes = [f"{note} (--stored takes them too)" for note in notes]
            message = [
                f"store: no such run in {self.store}",
                *missing,
                *notes,
                f"settings there: {settings_there}",
            ]
            raise NoSuchRunError("; ".join(message))
        return rows, notes + missing

    def select_all(self, task: str, settings: str | None = None) -> tuple[list[Row], list[str]]:
        """Do the same as `select` on all data sets, but return no runs where there are none."""
        same = same_code.beside(self.store)
        return select(self.rows, task, stored=self.takes_earlier_code, settings=settings, same=same)


def select(
    found: Iterable[Row],
    task: str,
    *,
    stored: bool = False,
    settings: str | None = "{}",
    same: SameCode = same_code.NONE,
) -> tuple[list[Row], list[str]]:
    """Return the runs to show, and notes on them.

    Args:
        found: runs of any task, code and settings.
        task: the task of the runs to show.
        stored: whether runs of earlier code count too, if each pooling has runs of one version
            only.
        settings: canonical JSON that the runs have as settings; None for any settings.
        same: fingerprints that count as one version of the code. Of a run that two such versions
            have, the later one counts.
    """

    def code(row: Row) -> str:
        return same.code(task, row.spec.pooling, row.fingerprint)

    rows = [row for row in found if row.spec.task == task and settings in (None, row.spec.settings)]
    if stored:
        by_pooling: dict[str, set[str]] = {}
        for row in rows:
            by_pooling.setdefault(row.spec.pooling, set()).add(code(row))
        for name, codes in by_pooling.items():
            if len(codes) > 1:
                what = f"the store has runs of {name!r} by {len(codes)} versions of the code"
                raise MixedCodeError(f"{what}; run the sweep again, or show only those of the present code")
        return _once(rows), [_versions(rows), *_joined(rows)]
    names = {row.spec.pooling for row in rows if row.spec.pooling in ENTRIES}
    present = {name: same.code(task, name, fingerprint(task, name)) for name in names}
    now = [row for row in rows if code(row) == present.get(row.spec.pooling)]
    left = len(rows) - len(now)
    notes = [f"{left} runs of other versions of the code are left out"] if left else []
    return _once(now), notes + _joined(now)


def _once(rows: Iterable[Row]) -> list[Row]:
    """Return each run once, from the code that ran it last."""
    return list({row.spec: row for row in rows}.values())


def _versions(rows: Iterable[Row]) -> str:
    """Say which code made the runs: the commit, if all have the same and its files were not changed."""
    commits = {row.facts.get("commit_id", "") for row in rows}
    if len(commits) == 1 and (commit := commits.pop()).isalnum():
        return f"stored runs: all by the code of commit {commit[:7]}"
    return "stored runs: one version of the code for each pooling, perhaps not the same one for all"


def _joined(rows: Iterable[Row]) -> list[str]:
    """Say which poolings have runs of several fingerprints that are listed as the same code."""
    codes: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        codes[row.spec.pooling].add(row.fingerprint)
    names = sorted(name for name, found in codes.items() if len(found) > 1)
    what = "runs of several versions of the code, the same by a repeated run (same_code.toml)"
    return [f"{what}: {', '.join(names)}"] if names else []
