"""The run store: a SQLite file that only the driver writes.

A finished run is committed at once and never repeated; a run that failed is kept with its error and tried
again. Readers (tables, figures) can look while a sweep goes on: the file is in WAL mode.
"""

from __future__ import annotations

import fcntl
import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uotpool.experiments.spec import Result, RunSpec, canonical

SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    key TEXT PRIMARY KEY,
    task TEXT NOT NULL, dataset TEXT NOT NULL, pooling TEXT NOT NULL, protocol TEXT NOT NULL,
    fold INTEGER NOT NULL, seed INTEGER NOT NULL, settings TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('done', 'failed')),
    attempts INTEGER NOT NULL DEFAULT 1,
    error TEXT,
    finished TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now')),
    seconds REAL, peak_mib REAL, parameters INTEGER,
    metrics TEXT, epochs TEXT, details TEXT,
    versions TEXT, machine TEXT, commit_id TEXT
);
CREATE INDEX IF NOT EXISTS by_choice ON runs (task, dataset, protocol, pooling);
"""


class StoreBusyError(OSError):
    """Another sweep is writing to this store."""


@dataclass(frozen=True)
class Row:
    """A stored run."""

    spec: RunSpec
    fingerprint: str
    status: str
    attempts: int
    error: str | None
    seconds: float | None
    peak_mib: float | None
    parameters: int | None
    metrics: dict[str, float]
    details: dict[str, Any]


class Store:
    """The runs in a file; `with store.writing():` for a sweep."""

    def __init__(self, path: Path | str, *, readonly: bool = False) -> None:
        self.path = Path(path)  # ":memory:" for one that is not kept
        if readonly:
            self._db = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True, timeout=30)
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._db = sqlite3.connect(self.path, timeout=30)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")  # a finished run survives a crash of the machine too
            self._db.executescript(SCHEMA)
        except sqlite3.DatabaseError as error:
            raise ValueError(f"store: expected a run store of uotpool, got {self.path}: {error}") from error

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Only one process at a time: two sweeps at once would run the same runs."""
        with self.path.with_name(self.path.name + ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                busy = f"store: another sweep is writing to {self.path}; wait for it, or use another --store"
                raise StoreBusyError(busy) from error
            yield

    def finished(self, keys: Iterable[str]) -> set[str]:
        """Those of the keys that are done."""
        done = {key for (key,) in self._db.execute("SELECT key FROM runs WHERE status = 'done'")}
        return done.intersection(keys)

    def save(self, spec: RunSpec, fingerprint: str, result: Result, facts: dict[str, str]) -> None:
        """Keep a finished run."""
        outcome = {
            "status": "done",
            "error": None,
            "seconds": result.seconds,
            "peak_mib": result.peak_mib,
            "parameters": result.parameters,
            "metrics": canonical(result.metrics),
            "epochs": canonical(result.epochs),
            "details": canonical(result.details),
        }
        self._write(spec, fingerprint, outcome | facts)

    def save_failure(self, spec: RunSpec, fingerprint: str, error: str, facts: dict[str, str]) -> None:
        """Keep the error of a run, to be tried again."""
        self._write(spec, fingerprint, {"status": "failed", "error": error} | facts)

    def _write(self, spec: RunSpec, fingerprint: str, outcome: dict[str, Any]) -> None:
        values = spec.as_dict() | {"key": spec.key(fingerprint), "fingerprint": fingerprint} | outcome
        names = list(values)
        update = ", ".join(f"{name} = excluded.{name}" for name in names if name != "key")
        with self._db:
            self._db.execute(
                f"INSERT INTO runs ({', '.join(names)}) VALUES ({', '.join('?' * len(names))}) "
                f"ON CONFLICT (key) DO UPDATE SET {update}, attempts = attempts + 1, "
                "finished = strftime('%Y-%m-%dT%H:%M:%SZ', 'now') WHERE status = 'failed'",
                list(values.values()),
            )

    def rows(self, status: str = "done", **where: str) -> list[Row]:
        """The runs with this status and these columns, for example `task="mil", dataset="musk1"`."""
        known = ("task", "dataset", "pooling", "protocol", "settings", "fingerprint")
        if not set(where) <= set(known):
            raise ValueError(f"where: expected columns among {known}, got {sorted(where)}")
        columns = "task, dataset, pooling, protocol, fold, seed, settings, fingerprint, status, attempts, error"
        query = f"SELECT {columns}, seconds, peak_mib, parameters, metrics, details FROM runs WHERE status = ?"
        query += "".join(f" AND {name} = ?" for name in where)
        try:
            found = self._db.execute(f"{query} ORDER BY rowid", [status, *where.values()])
        except sqlite3.DatabaseError as wrong:
            raise ValueError(f"store: expected a run store of uotpool, got {self.path}: {wrong}") from wrong
        rows = []
        for *choices, code, state, attempts, error, seconds, peak, parameters, metrics, details in found:
            numbers, facts = json.loads(metrics or "{}"), json.loads(details or "{}")
            rows.append(
                Row(RunSpec(*choices), code, state, attempts, error, seconds, peak, parameters, numbers, facts)
            )
        return rows

    def epochs(self, key: str) -> list[dict[str, float]]:
        """What a finished run kept of its epochs; for "mil" a dictionary of curves for each configuration."""
        found = self._db.execute("SELECT epochs FROM runs WHERE key = ?", [key]).fetchone()
        return json.loads(found[0]) if found and found[0] else []
