"""The committed list of versions of the code that give the same numbers, each with a repeated run as evidence.

A change of code gives runs another fingerprint even where it changes no number, and tables do not
mix fingerprints. They treat the versions that this list joins as one. The list is a TOML file with
tables `[[same]]`:

    task, pooling   the task and the pooling that the fingerprints belong to
    old, new        two fingerprints; a = b and b = c make a = c
    run             the stored run that was repeated
    agreement       "equal" to all digits that are stored, or "rounding": within ROUNDING, relative
    old_metrics, new_metrics    the metrics of that run before and now
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from uotpool_experiments import toml_file
from uotpool_experiments.tasks import TASKS

NAME = "same_code.toml"
ROUNDING = 1e-5  # the relative change of a metric that the rounding of a step may cause
DIGITS = 1e-6  # relative; a CSV file has seven digits
AGREEMENTS = ("equal", "rounding")


@dataclass(frozen=True)
class Entry:
    """One pair of fingerprints and its evidence."""

    task: str
    pooling: str
    old: str
    new: str
    run: str
    agreement: str
    old_metrics: Mapping[str, float]
    new_metrics: Mapping[str, float]

    def __post_init__(self) -> None:
        for name in ("task", "pooling", "run"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ValueError(f"{name}: expected a text, got {getattr(self, name)!r}")
        if self.task not in TASKS:
            raise ValueError(f"task: expected one of {tuple(TASKS)}, got {self.task!r}")
        for name in ("old", "new"):
            if not re.fullmatch("[0-9a-f]{16}", str(getattr(self, name))):
                raise ValueError(
                    f"{name}: expected a fingerprint, 16 hexadecimal digits, got {getattr(self, name)!r}"
                )
        for name in ("old_metrics", "new_metrics"):
            found = getattr(self, name)
            if not isinstance(found, Mapping) or not found or not all(_is_number(v) for v in found.values()):
                raise ValueError(f"{name}: expected a table of finite numbers, got {found!r}")
        if self.agreement not in AGREEMENTS:
            raise ValueError(f"agreement: expected one of {AGREEMENTS}, got {self.agreement!r}")
        if agreement(self.old_metrics, self.new_metrics) not in (self.agreement, "equal"):
            raise ValueError(
                f"agreement: expected metrics that are as near as {self.agreement!r} says, got others"
            )


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def agreement(old: Mapping[str, float], new: Mapping[str, float]) -> str | None:
    """Say how well two results agree; None if they do not. All metrics count, and each must be in both."""
    if set(old) != set(new):
        return None
    for name, tolerance in (("equal", DIGITS), ("rounding", ROUNDING)):
        if all(math.isclose(old[m], new[m], rel_tol=tolerance, abs_tol=tolerance**2) for m in old):
            return name
    return None


class SameCode:
    """Knows which fingerprints of a task and a pooling count as one."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries = list(entries)
        self._parent: dict[tuple[str, str, str], str] = {}
        for entry in self.entries:
            old, new = (self.code(entry.task, entry.pooling, f) for f in (entry.old, entry.new))
            if old != new:
                self._parent[entry.task, entry.pooling, old] = new

    def code(self, task: str, pooling: str, fingerprint: str) -> str:
        """Return the fingerprint that stands for all that count as one with this one."""
        while (after := self._parent.get((task, pooling, fingerprint))) is not None:
            fingerprint = after
        return fingerprint


NONE = SameCode()


def read(path: Path) -> SameCode:
    """Read the list from a file; raise a ValueError for another file."""
    content = toml_file.read(path)
    tables = content.get("same", [])
    if set(content) - {"same"} or not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        raise ValueError(f"{path}: expected tables [[same]], got {sorted(content)}")
    names = {field.name for field in fields(Entry)}
    entries = []
    for i, table in enumerate(tables):
        if set(table) != names:
            raise ValueError(
                f"{path}: [[same]] {i + 1}: expected the names {sorted(names)}, got {sorted(table)}"
            )
        try:
            entries.append(Entry(**table))
        except ValueError as error:
            raise ValueError(f"{path}: [[same]] {i + 1}: {error}") from error
    return SameCode(entries)


def beside(store: Path) -> SameCode:
    """Read the list for the runs in this file. It is in the folder of the file or in the one above."""
    for folder in store.resolve().parents[:2]:
        if (folder / NAME).is_file():
            return read(folder / NAME)
    return NONE


def append(entry: Entry, path: Path) -> None:
    """Add an entry to the file, and make the file if there is none."""
    lines = ["[[same]]"]
    for field in fields(Entry):
        value = getattr(entry, field.name)
        if isinstance(value, Mapping):
            inner = ", ".join(f"{_quoted(name)} = {number!r}" for name, number in value.items())
            lines.append(f"{field.name} = {{ {inner} }}")
        else:
            lines.append(f"{field.name} = {_quoted(value)}")
    with path.open("a", encoding="utf-8") as file:
        file.write(("\n" if file.tell() else "") + "\n".join(lines) + "\n")


def _quoted(text: str) -> str:
    """Quote a text for TOML, whose strings are written as in JSON."""
    return json.dumps(text, ensure_ascii=False)
