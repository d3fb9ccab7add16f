"""The run store: a SQLite file that only the driver writes.

A finished run is committed at once and never repeated; a run that failed is kept with its error and
tried again. The file is in WAL mode, so tables and figures can read it while a sweep goes on.
"""

from __future__ import annotations

import fcntl
import math
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from uotpool_experiments.runs.rows import FACTS, Row, read_json
from uotpool_experiments.tasks.spec import Result, RunSpec, canonical

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
# The additions to the schema since then, in order. `user_version` of a file says how many of them
# it has. Earlier versions of uotpool must still be able to write the file, so we add only columns
# that may be empty.
MIGRATIONS = ("ALTER TABLE runs ADD COLUMN cpu_seconds REAL",)
# With these errors the file itself is sound: the disk is full, for example, or the user may not write.
DISK_ERRORS = {
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY),
    *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PERM),
}
CANNOT_OPEN = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}
MOST_TEXT = 64 * 2**20  # bytes of a value; SQLite itself allows 10^9


class StoreBusyError(OSError):
    """Another sweep is writing to this store."""


class StoreWriteError(OSError):
    """The file cannot be written, for example on a full disk."""


def in_words(versions: str) -> str:
    """Write `{"torch": "2.13.0"}` as `torch 2.13.0`."""
    found = read_json("versions", versions, dict)
    return ", ".join(f"{name} {version}" for name, version in found.items())


class Store:
    """The runs in a file. A sweep writes them inside `with store.writing():`."""

    def __init__(self, path: Path | str, *, readonly: bool = False) -> None:
        self.path, self._readonly = Path(path), readonly  # ":memory:" for one that is not kept
        if not readonly:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._refusing():
            if readonly:
                self._db = self._open_to_read()
            else:
                self._db = sqlite3.connect(self.path, timeout=30)
            self._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_TEXT)
            self._db.execute("PRAGMA trusted_schema=OFF")
            self._migrations = self._version()
            self._check_schema()
            if not readonly:
                self._prepare()

    def _open_to_read(self) -> sqlite3.Connection:
        """Open the file, even where SQLite may not write the journal that it puts beside it."""
        where = f"file:{quote(str(self.path))}?mode=ro"
        opened = sqlite3.connect(where, uri=True, timeout=30)
        try:
            opened.execute("SELECT count(*) FROM sqlite_master")
            return opened
        except sqlite3.OperationalError as error:
            opened.close()
            if error.sqlite_errorcode & 0xFF not in CANNOT_OPEN or not os.access(self.path, os.R_OK):
                raise
            journal = self.path.with_name(self.path.name + "-wal")
            if journal.exists() and journal.stat().st_size:
                raise OSError(
                    f"store: cannot read {self.path}: {journal.name} beside it has runs that are not in it, "
                    "and the folder cannot be written: copy both files to one that can, and read them there"
                ) from error
        return sqlite3.connect(f"{where}&immutable=1", uri=True)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Translate what SQLite says about the file into errors of this project."""
        try:
            yield
        except sqlite3.Error as error:
            if not self._readonly and getattr(error, "sqlite_errorcode", 0) & 0xFF in DISK_ERRORS:
                raise self._cannot_write(error) from error
            raise ValueError(f"store: expected a run store of uotpool, got {self.path}: {error}") from error

    def _check_schema(self) -> None:
        """Refuse views, triggers and computed columns: those of a foreign file could compute forever."""
        computed = self._db.execute("SELECT name FROM sqlite_master WHERE coalesce(rootpage, 0) = 0").fetchall()
        columns = self._db.execute("SELECT name FROM pragma_table_xinfo('runs') WHERE hidden != 0").fetchall()
        if found := [name for (name,) in computed + columns]:
            raise ValueError(
                f"store: expected a run store of uotpool, got {self.path} with views, triggers or computed "
                f"columns: {found[:3]}"
            )

    def _version(self) -> int:
        version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        if not 0 <= version <= len(MIGRATIONS):
            raise ValueError(
                f"store: expected one of version 0 to {len(MIGRATIONS)}, got {self.path} of version {version}, "
                "written by a newer uotpool: use that one, or another --store"
            )
        return version

    def _prepare(self) -> None:
        """Make the tables, and add what an older file lacks."""
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")  # a finished run survives a crash of the machine too
        self._db.executescript(SCHEMA)
        if self._migrations < len(MIGRATIONS):
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                for migration in MIGRATIONS[self._version() :]:  # another process may have done some just now
                    self._db.execute(migration)
                self._db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
            self._migrations = len(MIGRATIONS)

    def _cannot_write(self, error: sqlite3.Error) -> StoreWriteError:
        return StoreWriteError(
            f"store: cannot write to {self.path}: {error}. The runs in it are kept. Make room on the disk, or "
            "allow writing, or end the program that holds the file; then the same command continues from here"
        )

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Lock the store: two sweeps at once would do the same runs."""
        with self.path.with_name(self.path.name + ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                busy = f"store: another sweep is writing to {self.path}; wait for it, or use another --store"
                raise StoreBusyError(busy) from error
            yield

    def finished(self, keys: Iterable[str]) -> set[str]:
        """Return the keys whose runs are done."""
        with self._refusing():
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
        values |= dict.fromkeys(FACTS) | outcome  # replaces the facts of an earlier attempt
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
        except OverflowError as error:
            raise ValueError(f"a number beyond 64 bits: {error}") from error
        except sqlite3.Error as error:
            raise self._cannot_write(error) from error

    def rows(self, status: str = "done", **where: str) -> list[Row]:
        """Return the runs with this status and these values, for example `task="mil", dataset="musk1"`."""
        known = ("task", "dataset", "pooling", "protocol", "settings", "fingerprint")
        if not set(where) <= set(known):
            raise ValueError(f"where: expected columns among {known}, got {sorted(where)}")
        columns = "task, dataset, pooling, protocol, fold, seed, settings, fingerprint, status, attempts, error"
        costs = "seconds, cpu_seconds, peak_mib, parameters"
        if not self._migrations:  # an old file, opened for reading
            costs = costs.replace("cpu_seconds", "NULL")
        query = f"SELECT {columns}, {costs}, metrics, details, {', '.join(FACTS)} FROM runs WHERE status = ?"
        query += "".join(f" AND {name} = ?" for name in where)
        rows: list[Row] = []
        room = self._bytes()
        with self._refusing():
            for line in self._db.execute(f"{query} ORDER BY rowid", [status, *where.values()]):
                room -= sum(len(value) for value in line if isinstance(value, (str, bytes)))
                if room < 0:  # a damaged file can give one place as the value of many runs
                    raise ValueError(f"store: {self.path} is damaged: its runs have more text than the file")
                try:
                    rows.append(_row(line))
                except ValueError as error:
                    raise ValueError(f"store: {self.path}: run {len(rows) + 1} is damaged: {error}") from error
        return rows

    def _bytes(self) -> float:
        """Return the size of the file with its journal."""
        files = (self.path, self.path.with_name(self.path.name + "-wal"))
        return sum(file.stat().st_size for file in files if file.exists()) or math.inf  # or it is in memory

    def epochs(self, key: str) -> list[dict[str, float]]:
        """Return what a finished run kept of its epochs; each task decides what that is."""
        with self._refusing():
            found = self._db.execute("SELECT epochs FROM runs WHERE key = ?", [key]).fetchone()
        epochs: list[dict[str, float]] = read_json("epochs", found[0], list) if found and found[0] else []
        return epochs


def _row(line: tuple[Any, ...]) -> Row:
    *choices, code, state, attempts, error, wall, cpu, peak, parameters, metrics, details = line[:-3]
    numbers = read_json("metrics", metrics or "{}", dict)
    more = read_json("details", details or "{}", dict)
    facts = {name: value for name, value in zip(FACTS, line[-3:], strict=True) if value}
    facts["versions"] = in_words(facts.get("versions", "{}"))
    spec, cost = RunSpec(*choices), (wall, peak, parameters)
    return Row(spec, code, state, attempts, error, *cost, numbers, more, cpu, facts)
