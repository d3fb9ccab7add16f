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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

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
# What was added since, step by step; `user_version` of the file says how many of them it has. Earlier versions
# of uotpool must be able to go on writing: only columns that may be empty.
STEPS = ("ALTER TABLE runs ADD COLUMN cpu_seconds REAL",)
FACTS = ("versions", "machine", "commit_id")
# Not what is in the file is wrong, but the disk, or who may write.
CANNOT = {
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY),
    *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PERM),
}


class StoreBusyError(OSError):
    """Another sweep is writing to this store."""


class StoreWriteError(OSError):
    """The file cannot be written: a full disk, say."""


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
    cpu_seconds: float | None = None
    facts: dict[str, str] = field(default_factory=dict)  # `FACTS`, those that are known, in words


def in_words(versions: str) -> str:
    """`{"torch": "2.13.0"}` as `torch 2.13.0`."""
    return ", ".join(f"{name} {version}" for name, version in json.loads(versions).items())


class Store:
    """The runs in a file; `with store.writing():` for a sweep."""

    def __init__(self, path: Path | str, *, readonly: bool = False) -> None:
        self.path = Path(path)  # ":memory:" for one that is not kept
        if not readonly:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            if readonly:
                self._db = sqlite3.connect(f"file:{quote(str(self.path))}?mode=ro", uri=True, timeout=30)
            else:
                self._db = sqlite3.connect(self.path, timeout=30)
            self._steps = self._version()
            if not readonly:
                self._prepare()
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in CANNOT:
                raise self._cannot_write(error) from error
            raise ValueError(f"store: expected a run store of uotpool, got {self.path}: {error}") from error

    def _version(self) -> int:
        version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        if version > len(STEPS):
            raise ValueError(
                f"store: expected one of version {len(STEPS)} at most, got {self.path} of version {version}, "
                "written by a newer uotpool: use that one, or another --store"
            )
        return version

    def _prepare(self) -> None:
        """Make the tables, and what an older file lacks."""
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")  # a finished run survives a crash of the machine too
        self._db.executescript(SCHEMA)
        if self._steps < len(STEPS):
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                for step in STEPS[self._version() :]:  # asked again: another process may have done it just now
                    self._db.execute(step)
                self._db.execute(f"PRAGMA user_version = {len(STEPS)}")
            self._steps = len(STEPS)

    def _cannot_write(self, error: sqlite3.Error) -> StoreWriteError:
        return StoreWriteError(
            f"store: cannot write to {self.path}: {error}. The runs in it are kept. Make room on the disk, or "
            "allow writing, or end the program that holds the file; then the same command goes on from here"
        )

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

    def save(
        self,
        spec: RunSpec,
        fingerprint: str,
        result: Result,
        facts: dict[str, str],
        cpu_seconds: float | None = None,
    ) -> None:
        """Keep a finished run."""
        outcome = {
            "status": "done",
            "error": None,
            "seconds": result.seconds,
            "cpu_seconds": cpu_seconds,
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
        values = spec.as_dict() | {"key": spec.key(fingerprint), "fingerprint": fingerprint}
        values |= dict.fromkeys(FACTS) | outcome  # those of an earlier attempt are not of this one
        names = list(values)
        update = ", ".join(f"{name} = excluded.{name}" for name in names if name != "key")
        query = (
            f"INSERT INTO runs ({', '.join(names)}) VALUES ({', '.join('?' * len(names))}) "
            f"ON CONFLICT (key) DO UPDATE SET {update}, attempts = attempts + 1, "
            "finished = strftime('%Y-%m-%dT%H:%M:%SZ', 'now') WHERE status = 'failed'"
        )
        try:
            with self._db:
                self._db.execute(query, list(values.values()))
        except sqlite3.Error as error:
            raise self._cannot_write(error) from error

    def rows(self, status: str = "done", **where: str) -> list[Row]:
        """The runs with this status and these columns, for example `task="mil", dataset="musk1"`."""
        known = ("task", "dataset", "pooling", "protocol", "settings", "fingerprint")
        if not set(where) <= set(known):
            raise ValueError(f"where: expected columns among {known}, got {sorted(where)}")
        columns = "task, dataset, pooling, protocol, fold, seed, settings, fingerprint, status, attempts, error"
        costs = "seconds, cpu_seconds, peak_mib, parameters"
        if not self._steps:  # an old file, opened for reading
            costs = costs.replace("cpu_seconds", "NULL")
        query = f"SELECT {columns}, {costs}, metrics, details, {', '.join(FACTS)} FROM runs WHERE status = ?"
        query += "".join(f" AND {name} = ?" for name in where)
        try:
            found = self._db.execute(f"{query} ORDER BY rowid", [status, *where.values()])
        except sqlite3.DatabaseError as wrong:
            raise ValueError(f"store: expected a run store of uotpool, got {self.path}: {wrong}") from wrong
        rows = []
        for line in found:
            *choices, code, state, attempts, error, wall, cpu, peak, parameters, metrics, details = line[:-3]
            numbers, more = json.loads(metrics or "{}"), json.loads(details or "{}")
            facts = {name: value for name, value in zip(FACTS, line[-3:], strict=True) if value}
            facts["versions"] = in_words(facts.get("versions", "{}"))
            spec, cost = RunSpec(*choices), (wall, peak, parameters)
            rows.append(Row(spec, code, state, attempts, error, *cost, numbers, more, cpu, facts))
        return rows

    def epochs(self, key: str) -> list[dict[str, float]]:
        """What a finished run kept of its epochs; for "mil" a dictionary of curves for each configuration."""
        found = self._db.execute("SELECT epochs FROM runs WHERE key = ?", [key]).fetchone()
        return json.loads(found[0]) if found and found[0] else []
