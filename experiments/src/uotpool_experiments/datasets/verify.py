"""Verify a file each time it is used. A process remembers the files that have not changed since."""

from __future__ import annotations

from pathlib import Path

from uotpool_experiments.datasets import digests
from uotpool_experiments.datasets.catalog import DataFile
from uotpool_experiments.datasets.errors import DatasetRefusedError

SUMS = "SHA256SUMS"
_verified: set[tuple[object, ...]] = set()


def verify(path: Path, file: DataFile, folder: Path) -> None:
    """Refuse a file that is not the one of the catalogue.

    Args:
        path: the file.
        file: what it must be.
        folder: the data folder. Its SHA256SUMS vouches for a file that has no checksum in the
            catalogue.
    """
    if not path.is_file():
        raise DatasetRefusedError(f"{path}: expected a file, found a folder or a link to nothing. Remove it.")
    expected = file.digest or _vouched(path, file, folder)
    stat = path.stat()
    changes = (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
    key = (path.absolute(), *changes, expected)
    if key in _verified:
        return
    try:
        _compare(path, file, expected, stat.st_size)
    except OSError as error:
        raise DatasetRefusedError(f"{path}: expected a file that can be read, found: {error}") from error
    _verified.add(key)


def _compare(path: Path, file: DataFile, expected: str, size: int) -> None:
    if path.suffix == ".gz" and file.digest is not None:
        what, found = "a content with the sha256", digests.gzip_digest(path)
    elif path.suffix != ".zip" or file.digest is None:  # SHA256SUMS is about files, also for archives
        what, found = "the sha256", digests.file_digest(path)
    else:
        what, found = "texts with the digest", digests.content_digest(path)
        if found != expected and file.graph_digest is not None:
            what, expected, found = "graphs with the digest", file.graph_digest, digests.graph_digest(path)
    if found != expected:
        raise DatasetRefusedError(
            f"{path}: expected {what} {expected}, found {found} in {size} bytes: the file is truncated, broken "
            "or another one. Delete it, or put the right one there."
        )


def read_sums(path: Path) -> dict[str, str]:
    """Read {path: sha256} from a file as the command sha256sum writes it. The first line of a path counts."""
    lines = path.read_text().splitlines() if path.is_file() else []
    pairs = (line.partition(" ")[::2] for line in reversed(lines))
    return {name.strip().removeprefix("*").removeprefix("./"): digest.lower() for digest, name in pairs}


def _vouched(path: Path, file: DataFile, folder: Path) -> str:
    """Return the checksum that SHA256SUMS has for the file."""
    sums = folder / SUMS
    if (digest := read_sums(sums).get(file.path)) is not None:
        return digest
    raise DatasetRefusedError(
        f"{path}: expected a line for {file.path} in {sums}, found none. No checksum of this file is known; to "
        f"vouch for it: cd '{folder}' && sha256sum {file.path} >> {SUMS}"
    )
