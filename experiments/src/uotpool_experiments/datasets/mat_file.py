"""Check a MATLAB file before scipy reads it: scipy inflates and nests without a bound.

The format (version 5) has 128 bytes of header, then elements, each with an 8-byte tag (type, bytes)
and its content. A compressed element holds one other element. A matrix holds elements; those of a
cell array can be matrices.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from uotpool_experiments.datasets.errors import DatasetRefusedError

HEADER, TAG = 128, 8
MATRIX, COMPRESSED = 14, 15
ORDERS = {b"\x00\x01IM": "<", b"\x01\x00MI": ">"}  # the last bytes of the header: version and order of bytes
MOST_BYTES = 2**28  # of all elements, inflated; the largest data set, Process, has 190 MB
MOST_DEPTH = 8  # of matrices in matrices; those of the data sets have three


def check(path: Path) -> None:
    """Refuse a file that is no MATLAB file of version 5, or that would be too large or too deeply nested."""
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    order = ORDERS.get(content[HEADER - 4 : HEADER])
    if order is None or len(content) > MOST_BYTES:
        raise DatasetRefusedError(
            f"{path}: expected a MATLAB file of version 5, up to {MOST_BYTES} bytes, found another file"
        )
    try:
        _check_elements(memoryview(content)[HEADER:], order)
    except (ValueError, struct.error, zlib.error) as error:
        raise DatasetRefusedError(f"{path}: expected a MATLAB file that is sound, found {error}") from error


def _check_elements(content: memoryview, order: str) -> None:
    room = MOST_BYTES
    todo = [(content, 0)]
    while todo:
        part, depth = todo.pop()
        if depth > MOST_DEPTH:
            raise ValueError(f"matrices in matrices, more than {MOST_DEPTH} deep")
        for kind, body in _elements(part, order):
            if kind == MATRIX:
                todo.append((body, depth + 1))
            elif kind == COMPRESSED and depth == 0:
                inflated = zlib.decompressobj().decompress(body, room + 1)
                room -= len(inflated)
                if room < 0:
                    raise ValueError(f"more than {MOST_BYTES} bytes once it is inflated")
                todo.append((memoryview(inflated), depth))


def _elements(content: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """Yield the type and the content of each element."""
    at = 0
    while at + TAG <= len(content):
        kind, size = struct.unpack_from(f"{order}II", content, at)
        if kind >> 16:  # a small element has its content in the tag
            at += TAG
            continue
        at += TAG
        if size > len(content) - at:
            raise ValueError(f"an element of {size} bytes where {len(content) - at} are left")
        yield kind, content[at : at + size]
        at += size if kind == COMPRESSED else -(-size // TAG) * TAG
