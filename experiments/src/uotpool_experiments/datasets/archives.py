"""Archives are read in place and never unpacked: members by exact name, up to a size, from sound archives."""

from __future__ import annotations

import lzma
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from uotpool_experiments.datasets.errors import DatasetRefusedError

MAX_MEMBER = 512 * 2**20  # the largest, COLLAB_A.txt, has 363 MB
# COLLAB_A.txt is 35 times as large as when packed. Smaller members with long runs of one number
# reach 900 times.
LARGE, MAX_RATIO = 64 * 2**20, 100
CHUNK = 2**20

# The errors that zipfile raises for a damaged archive. RuntimeError means an encrypted member.
_DAMAGE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, RuntimeError, OSError)


@contextmanager
def opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open the archive; refuse one that is damaged, or has a name twice or one that leads out of its folder."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            for name in names:
                parts = PurePosixPath(name.replace("\\", "/"))
                if parts.is_absolute() or ".." in parts.parts or ":" in name:
                    raise DatasetRefusedError(f"{path}: expected members below one folder, found {name!r}")
            if len(set(names)) < len(names):
                raise DatasetRefusedError(f"{path}: expected members with different names, found one twice")
            yield archive
    except _DAMAGE as error:
        raise DatasetRefusedError(
            f"{path}: expected a sound zip archive, found a broken or truncated one ({error}). "
            "Delete it, or put the right one there."
        ) from error


def chunks(archive: zipfile.ZipFile, name: str) -> Iterator[bytes]:
    """Yield a member in pieces. zipfile gives no more than the announced size and checks the CRC."""
    size, packed = archive.getinfo(name).file_size, archive.getinfo(name).compress_size
    if size > MAX_MEMBER or (size > LARGE and size > MAX_RATIO * packed):
        raise DatasetRefusedError(
            f"{archive.filename}: expected members up to {MAX_MEMBER} bytes, and up to {MAX_RATIO} times their "
            f"packed size where they have more than {LARGE}, found {name} with {size} from {packed}"
        )
    with archive.open(name) as member:
        while piece := member.read(CHUNK):
            yield piece


def read(archive: zipfile.ZipFile, name: str) -> bytes:
    return b"".join(chunks(archive, name))
