"""Checksums: of a file, of the texts in a TU archive, and of the graphs that those texts describe.

An archive of the same texts may be compressed in another way, so the texts are hashed and not the
archive. The same graphs are also written in other ways (order of the edges, spaces, line ends): six
of the eight copies that the catalogue was made from were written anew from another collection.
`graph_digest` is the same for all of them. It costs more, so we compute it only where the texts
differ.
"""

from __future__ import annotations

import gzip
import hashlib
import zipfile
import zlib
from pathlib import Path

import numpy as np

from uotpool_experiments.datasets import archives
from uotpool_experiments.datasets.errors import DatasetRefusedError

REQUIRED = ("A", "graph_indicator", "graph_labels")
OPTIONAL = ("node_labels", "node_attributes")
_COMMAS_TO_SPACES = bytes.maketrans(b",", b" ")


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def gzip_digest(path: Path) -> str:
    """Return the sha256 of the content of a `.gz`, which may be compressed in another way."""
    total, size = hashlib.sha256(), 0
    try:
        with gzip.open(path) as file:
            while piece := file.read(archives.CHUNK):
                size += len(piece)
                if size > archives.MAX_MEMBER:
                    raise DatasetRefusedError(f"{path}: expected up to {archives.MAX_MEMBER} bytes, found more")
                total.update(piece)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DatasetRefusedError(
            f"{path}: expected a sound gzip file, found a broken or truncated one ({error}). "
            "Delete it, or put the right one there."
        ) from error
    return total.hexdigest()


def members(archive: zipfile.ZipFile, name: str) -> dict[str, str]:
    """Return the texts of a TU data set that we use: {"A": "MUTAG/MUTAG_A.txt", ...}."""
    there = set(archive.namelist())
    wanted = {kind: f"{name}/{name}_{kind}.txt" for kind in (*REQUIRED, *OPTIONAL)}
    missing = [wanted[kind] for kind in REQUIRED if wanted[kind] not in there]
    if missing:
        raise DatasetRefusedError(f"{archive.filename}: expected the members {', '.join(missing)}, found none")
    return {kind: member for kind, member in wanted.items() if member in there}


def content_digest(path: Path) -> str:
    """Hash the (name, sha256 of its bytes) of the texts of a TU archive `NAME.zip`, sorted by name."""
    total = hashlib.sha256()
    with archives.opened(path) as archive:
        for member in sorted(members(archive, path.stem).values()):
            text = hashlib.sha256()
            for piece in archives.chunks(archive, member):
                text.update(piece)
            total.update(f"{member} {text.hexdigest()}\n".encode())
    return total.hexdigest()


def graph_digest(path: Path) -> str:
    """Hash the numbers of a TU archive `NAME.zip`, with its edges as a set of undirected ones."""
    total = hashlib.sha256()
    with archives.opened(path) as archive:
        for kind, member in sorted(members(archive, path.stem).items()):
            text = archives.read(archive, member)
            try:
                values = _numbers(text, np.float64 if kind == "node_attributes" else np.int64)
                values = _undirected(values) if kind == "A" else values
            except (ValueError, OverflowError) as error:
                raise DatasetRefusedError(f"{path}: expected numbers in {member}, found: {error}") from error
            total.update(f"{kind} {len(values)}\n".encode())
            total.update(values.astype(values.dtype.newbyteorder("<")).tobytes())
    return total.hexdigest()


def _numbers(text: bytes, dtype: type[np.number]) -> np.ndarray:
    return np.fromstring(text.translate(_COMMAS_TO_SPACES), dtype=dtype, sep=" ")  # any white space separates


def _undirected(ends: np.ndarray) -> np.ndarray:
    """Return each edge once, as one number, sorted."""
    if len(ends) % 2:
        raise ValueError("an edge without an end")
    low, high = np.minimum(ends[::2], ends[1::2]), np.maximum(ends[::2], ends[1::2])
    keys = low * (int(high.max(initial=0)) + 1) + high
    keys.sort()
    return keys[np.append(True, keys[1:] != keys[:-1])] if len(keys) else keys
