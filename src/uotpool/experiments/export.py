"""Runs as a CSV file, a line each: for readers without the store, and for tables from committed results."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, TextIO

from uotpool.experiments.spec import RunSpec, canonical
from uotpool.experiments.store import FACTS, Row, Store

CHOICES = tuple(field.name for field in fields(RunSpec))
COSTS = ("seconds", "cpu_seconds", "peak_mib", "parameters")
LEFT_OUT = ("split",)  # long, and made again from the seed
DIGITS = 7
COMMIT = 12  # letters that tell it from others


def write(rows: Iterable[Row], file: TextIO) -> None:
    """Choices, fingerprint, cost and origin of each run, its metrics, and its details as `details.NAME`."""
    lines = [_line(row) for row in rows]
    known = [*CHOICES, "fingerprint", *COSTS, *FACTS]
    more = sorted(
        {name for line in lines for name in line} - set(known), key=lambda n: (n.startswith("details."), n)
    )
    writer = csv.DictWriter(file, [*known, *more], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)


def write_epochs(rows: Iterable[Row], store: Store, file: TextIO) -> None:
    """The accuracies after each epoch, as far as a run kept them: choices, epoch, and what was measured."""
    lines = []
    for row in rows:
        choices = {name: value for name, value in row.spec.as_dict().items() if name != "task"}
        for number, epoch in enumerate(store.epochs(row.spec.key(row.fingerprint)), 1):
            found = {n: _short(v) for n, v in epoch.items() if n.endswith("accuracy")}
            if found:
                lines.append(choices | {"epoch": number} | found)
    known = [name for name in CHOICES if name != "task"] + ["epoch"]
    more = sorted({name for line in lines for name in line} - set(known))
    writer = csv.DictWriter(file, [*known, *more], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)


def _line(row: Row) -> dict[str, Any]:
    costs = {name: _short(getattr(row, name)) for name in COSTS}
    metrics = {name: _short(value) for name, value in row.metrics.items()}
    details = {
        f"details.{name}": canonical(value) if isinstance(value, (dict, list)) else _short(value)
        for name, value in row.details.items()
        if name not in LEFT_OUT
    }
    facts = row.facts | {"commit_id": row.facts.get("commit_id", "")[:COMMIT]}
    return row.spec.as_dict() | {"fingerprint": row.fingerprint} | costs | facts | metrics | details


def _short(value: Any) -> Any:
    return f"{value:.{DIGITS}g}" if isinstance(value, float) else value


def read(path: Path) -> list[Row]:
    """The runs that `write` wrote; refuses another file."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = {*CHOICES, "fingerprint", *COSTS} - set(reader.fieldnames or ())
        if missing:
            raise ValueError(
                f"{path}: expected runs with the columns {sorted(missing)}, got none of those columns"
            )
        try:
            return list(_rows(reader))
        except (TypeError, ValueError, csv.Error) as error:  # a line too short or too long, or no number
            raise ValueError(f"{path}: line {reader.line_num}: not a run: {error}") from error


def _rows(reader: csv.DictReader[str]) -> Iterator[Row]:
    for line in reader:
        if None in line.values() or None in line:
            raise ValueError(f"expected {len(reader.fieldnames or ())} values, got another number")
        choices: dict[str, Any] = {name: line[name] for name in CHOICES}
        spec = RunSpec(**choices | {name: int(choices[name]) for name in ("fold", "seed")})
        values = {name: _value(text) for name, text in line.items() if text != "" and name not in CHOICES}
        known = {"fingerprint", *COSTS, *FACTS}
        details = {
            name.removeprefix("details."): v for name, v in values.items() if name.startswith("details.")
        }
        metrics = {n: v for n, v in values.items() if n not in known and not n.startswith("details.")}
        for name, value in metrics.items():
            if type(value) not in (int, float) or not math.isfinite(value):
                raise ValueError(f"{name}: expected a finite number, got {value!r}")
        yield Row(
            spec=spec,
            fingerprint=line["fingerprint"],
            status="done",
            attempts=1,
            error=None,
            **{name: values.get(name) for name in COSTS},
            metrics=metrics,
            details=details,
            facts={name: line[name] for name in FACTS if line.get(name)},
        )


def _value(text: str) -> Any:
    """A number, or JSON, or the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
