"""Find a data set in the folder UOTPOOL_DATA or in the user's cache, or fetch it from its sources."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from uotpool_experiments.datasets import sources
from uotpool_experiments.datasets.catalog import DataFile, Entry, Source
from uotpool_experiments.datasets.errors import DatasetMissingError, DatasetRefusedError
from uotpool_experiments.datasets.verify import SUMS, verify

try:
    import fcntl
except ImportError:  # Windows has no fcntl: only the temporary names keep files of several processes apart
    fcntl = None  # type: ignore[assignment]

LEFTOVER_SECONDS = 3600


def cache_folder() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "uotpool"


def folders() -> list[Path]:
    """Return the folders that are searched, in order."""
    data = os.environ.get("UOTPOOL_DATA")
    return [*([Path(data).expanduser()] if data else []), cache_folder()]


def offline() -> bool:
    return os.environ.get("UOTPOOL_OFFLINE", "").lower() not in ("", "0", "false", "no")


def find(entry: Entry) -> Path | None:
    """Return the verified file of a data set in the folders, None if there is none.

    A wrong file is an error.
    """
    for folder in folders():
        for file in entry.files:
            path = folder / file.path
            if os.path.lexists(path):
                verify(path, file, folder)
                return path
    return None


def locate(entry: Entry) -> Path:
    """Return the verified file of a data set; fetch it if it is not there.

    Raises:
        DatasetMissingError: the file is not there and cannot be fetched.
        DatasetRefusedError: the file that is there is not the one of the catalogue.
    """
    if not entry.files:
        raise ValueError(f"entry: expected a data set with a file, got {entry.name!r}, which is embedded")
    return find(entry) or _fetch(entry)


def locate_all(entry: Entry) -> list[Path]:
    """Return the verified file of a data set, and those that are needed beside it."""
    alone = [replace(entry, files=(part,), parts=()) for part in entry.parts]
    return [locate(each) for each in (entry, *alone)]


def _fetch(entry: Entry) -> Path:
    reasons = []
    for file in entry.files:
        for source in file.sources:
            if offline():
                reasons.append(f"{source}: UOTPOOL_OFFLINE forbids it")
                continue
            try:
                return _fetch_from(source, file, entry)
            except sources.FAILURES as error:
                reasons.append(f"{source}: {error or type(error).__name__}")
    raise DatasetMissingError(missing(entry, reasons))


def _fetch_from(source: Source, file: DataFile, entry: Entry) -> Path:
    folder = _writable_folder(file)
    target = folder / file.path
    with locked(target):
        if found := find(entry):  # another process has fetched it meanwhile
            return found
        _remove_leftovers(target)
        # The part gets a folder of its own, since its name must be the target's: the name says how
        # to verify the file.
        part = target.parent / f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.part" / target.name
        part.parent.mkdir()
        try:
            sources.write(source, part)
            _verify_fetched(part, file, folder)
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)
            part.parent.rmdir()
        verify(target, file, folder)
        return target


def _remove_leftovers(target: Path) -> None:
    """Remove what killed processes left. Without locks a young folder may be in use, so it stays."""
    for folder in target.parent.glob(f".{target.name}.*.part"):
        if time.time() - folder.stat().st_mtime > LEFTOVER_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)


def _verify_fetched(part: Path, file: DataFile, folder: Path) -> None:
    try:
        verify(part, file, folder)
    except DatasetRefusedError as error:
        reason = without_advice(error, part)
        raise sources.SourceError(f"what came is not the known data: {reason}") from error


def without_advice(error: DatasetRefusedError, part: Path) -> str:
    """Say why a fetched file is refused, without the advice to delete it: it is deleted at once."""
    return str(error).removeprefix(f"{part}: ").partition(" Delete it")[0]


def _writable_folder(file: DataFile) -> Path:
    """Return the first folder that can be written to, or the last one, the cache, without a test."""
    *first, last = folders()
    for folder in first:
        parent = (folder / file.path).parent
        with suppress(OSError):
            parent.mkdir(parents=True, exist_ok=True)
            if os.access(parent, os.W_OK):
                return folder
    (last / file.path).parent.mkdir(parents=True, exist_ok=True)
    return last


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Let one process at a time make a file; the last one removes the lock file."""
    if fcntl is None:
        yield
        return
    path = target.with_name(f".{target.name}.lock")
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                break
        os.close(handle)  # the process that held the lock has removed the file, so we lock the new one
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def missing(entry: Entry, reasons: list[str]) -> str:
    """Say what to put where."""
    file = entry.files[0]
    if file.digest is None:
        which = f"{file.path} (no checksum of it is known: add yours to {SUMS} there, as sha256sum prints it)"
    elif file.path.endswith(".gz"):
        which = f"{file.path} (its content with the sha256 {file.digest})"
    elif file.path.endswith(".zip"):
        which = f"{file.path} (the TU archive, its texts with the digest {file.digest})"
    else:
        which = f"{file.path} (sha256 {file.digest})"
    where = " or ".join(str(folder) for folder in folders())
    tried = "".join(f"\n  {reason}" for reason in reasons) or "\n  no public source of it is known"
    return f"{entry.name}: expected {which} in {where}, found none. Put it there. Tried:{tried}"
