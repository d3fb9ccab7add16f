"""Runs as a CSV file with one line per run, for readers without the store and for committed results."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from uotpool_experiments.csv_cells import safe, stored
from uotpool_experiments.files import check_readable
from uotpool_experiments.runs.rows import CHOICES, COSTS, FACTS, Row, read_json
from uotpool_experiments.runs.store import Store
from uotpool_experiments.tasks.spec import RunSpec, canonical

LEFT_OUT = ("split",)  # the split is long, and the seed gives it again
DIGITS = 7
DIGITS_OF_A_SEED = 19
COMMIT = 12  # so many letters are enough to tell commits apart


def write(rows: Iterable[Row], file: TextIO) -> None:
    """Write choices, fingerprint, cost, origin and metrics of each run, and its details as `details.NAME`."""
    lines = [_line(row) for row in rows]
    known = [*CHOICES, "fingerprint", *COSTS, *FACTS]
    more = sorted(
        {name for line in lines for name in line} - set(known), key=lambda n: (n.startswith("details."), n)
    )
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([safe(name) for name in (*known, *more)])
    writer.writerows([_cell(line.get(name)) for name in (*known, *more)] for line in lines)


def _cell(value: Any) -> Any:
    return safe(value) if isinstance(value, str) else value


def write_epochs(rows: Iterable[Row], store: Store, file: TextIO) -> None:
    """Write choices, epoch and accuracies of each epoch that a run kept."""
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
    """Read the runs that `write` wrote; refuse another file."""
    check_readable(path, "a CSV file that uotpool export wrote")
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        try:
            names = [stored(name) for name in next(reader, [])]
            missing = sorted({*CHOICES, "fingerprint", *COSTS} - set(names))
            if missing or len(set(names)) < len(names):
                what = f"got none of the columns {missing}" if missing else "got one of them twice"
                raise ValueError(f"expected the columns of uotpool export, each once, {what}")
            return list(_rows(reader, names))
        except (ValueError, csv.Error) as error:  # a line too short or too long, no number, not UTF-8
            raise ValueError(f"{path}: line {reader.line_num}: not a run: {error}") from error


def _rows(reader: Any, names: list[str]) -> Iterator[Row]:
    lines: dict[tuple[RunSpec, str], int] = {}
    for cells in reader:
        if not cells:  # an empty line
            continue
        if len(cells) != len(names):
            raise ValueError(f"expected {len(names)} values, got {len(cells)}")
        row = _row(dict(zip(names, map(stored, cells), strict=True)))
        before = lines.setdefault((row.spec, row.fingerprint), reader.line_num)
        if before != reader.line_num:
            raise ValueError(f"expected every run once, got that of line {before} again")
        yield row


def _row(line: dict[str, str]) -> Row:
    choices: dict[str, Any] = {name: line[name] for name in CHOICES}
    choices |= {name: _whole(name, line[name]) for name in ("fold", "seed")}
    choices["settings"] = canonical(read_json("settings", line["settings"], dict))
    values = {name: _value(text) for name, text in line.items() if text != "" and name not in CHOICES}
    known = {"fingerprint", *COSTS, *FACTS}
    details = {name.removeprefix("details."): v for name, v in values.items() if name.startswith("details.")}
    return Row(
        spec=RunSpec(**choices),
        fingerprint=line["fingerprint"],
        status="done",
        attempts=1,
        error=None,
        **{name: values.get(name) for name in COSTS},
        metrics={n: v for n, v in values.items() if n not in known and not n.startswith("details.")},
        details=details,
        facts={name: line[name] for name in FACTS if line.get(name)},
    )


def _whole(name: str, text: str) -> int:
    if not text.isdecimal() or len(text) > DIGITS_OF_A_SEED:
        raise ValueError(f"{name}: expected a whole number >= 0 of at most 64 bits, got {text[:40]!r}")
    return int(text)


def _value(text: str) -> Any:
    """Return the text as a number or as JSON if it is one, else the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
