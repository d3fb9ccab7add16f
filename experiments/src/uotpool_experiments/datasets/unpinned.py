"""Find a TU data set that the catalogue does not have, so that no checksum is known."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

from uotpool_experiments.datasets import catalog, digests, fetch, sources
from uotpool_experiments.datasets.catalog import DataFile
from uotpool_experiments.datasets.errors import DatasetMissingError, DatasetRefusedError
from uotpool_experiments.datasets.verify import SUMS, read_sums, verify


def locate(name: str, check: Callable[[Path], object]) -> Path:
    """Return the file if SHA256SUMS beside it vouches for it, or fetch one that `check` does not refuse.

    `fetch.locate` cannot do this, as it needs a checksum to compare a fetched file with.
    """
    file = catalog.unlisted_graphs(name)
    for folder in fetch.folders():
        if os.path.lexists(folder / file.path):
            verify(folder / file.path, file, folder)
            return folder / file.path
    try:
        return _fetch(name, file, check)
    except sources.FAILURES as error:
        reason = str(error) or type(error).__name__
    raise DatasetMissingError(_missing(name, file, reason))  # without a cause, which could hold a connection


def _fetch(name: str, file: DataFile, check: Callable[[Path], object]) -> Path:
    """Fetch the file into the cache and pin it there: we may write the SHA256SUMS of the cache."""
    if fetch.offline():
        raise sources.SourceError("UOTPOOL_OFFLINE forbids it")
    folder = fetch.cache_folder()
    target, sums = folder / file.path, folder / SUMS
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as temporary:
        part = Path(temporary) / target.name
        sources.write(file.sources[0], part)
        _check_fetched(part, check)
        found, pinned = digests.file_digest(part), read_sums(sums).get(file.path)
        if pinned not in (None, found):
            raise sources.SourceError(f"expected the sha256 {pinned}, as {sums} has it, found {found}")
        if pinned is None:
            warnings.warn(
                f"{name}: no checksum of it is known. What came from {file.sources[0]} is taken as it is, and "
                f"its sha256 is noted in {sums}.",
                stacklevel=5,  # who called `graphs.load`
            )
            with sums.open("a") as lines:
                lines.write(f"{found}  {file.path}\n")
        os.replace(part, target)
    return target


def _check_fetched(part: Path, check: Callable[[Path], object]) -> None:
    try:
        check(part)
    except DatasetRefusedError as error:
        reason = fetch.without_advice(error, part)
        raise sources.SourceError(f"what came is no TU data set: {reason}") from error


def _missing(name: str, file: DataFile, reason: str) -> str:
    where = " or ".join(str(folder) for folder in fetch.folders())
    near = catalog.nearest(name, cutoff=0.7)
    hint = f"\nThe nearest known names: {', '.join(near)}" if near else ""
    return (
        f"{name}: expected {file.path} (no checksum of it is known: add yours to {SUMS} there, as sha256sum "
        f"prints it) in {where}, found none. Put it there. Tried:\n  {file.sources[0]}: {reason}{hint}"
    )
