"""Small files in the formats of the data sets, and a server that gives them out."""

from __future__ import annotations

import hashlib
import io
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import scipy.io
from uotpool_experiments.datasets import digests
from uotpool_experiments.datasets.catalog import (
    Address,
    BagStatistics,
    DataFile,
    Entry,
    GraphStatistics,
    Source,
    Wheel,
)

SIZES = (3, 1, 4, 2)
LABELS = (1, 0, 1, 0)
DIM = 5
STATISTICS = BagStatistics(DIM, 4, 2, 2, 10, 1, 4)
TEXTS = {
    "A": b"1, 2\n2, 1\n2, 3\n3, 2\n4, 5\n5, 4\n",
    "graph_indicator": b"1\n1\n1\n2\n2\n",
    "graph_labels": b"1\n-1\n",
    "node_labels": b"0\n1\n0\n2\n2\n",
}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def bag_features() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.normal(size=(size, DIM)) for size in SIZES]


def mat_bytes(
    labels=LABELS, column=None, nest=lambda label: label, features=None, cast=lambda cell: cell
) -> bytes:
    """The bytes of a .mat file of four bags; `column` is the last column, by default the label."""
    features = bag_features() if features is None else features
    column = (
        [np.full(len(x), label) for x, label in zip(features, labels, strict=True)]
        if column is None
        else column
    )
    data = np.empty((len(features), 2), dtype=object)
    for bag, (x, last, label) in enumerate(zip(features, column, labels, strict=True)):
        data[bag, 0] = cast(np.column_stack([x, last]))
        data[bag, 1] = nest(label)
    file = io.BytesIO()
    scipy.io.savemat(file, {"data": data}, do_compression=True)
    return file.getvalue()


def put(folder: Path, path: str, content: bytes) -> Path:
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    return target


def mil_entry(content: bytes | None, *sources: Source, path="mil/small.mat", statistics=STATISTICS) -> Entry:
    digest = None if content is None else sha256(content)
    return Entry("small", "mil", (DataFile(path, digest, sources=sources),), statistics)


def zip_bytes(members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def tu_bytes(compression: int = zipfile.ZIP_DEFLATED, **changed: bytes) -> bytes:
    texts = TEXTS | changed
    return zip_bytes({f"SMALL/SMALL_{kind}.txt": text for kind, text in texts.items()}, compression)


def tu_entry(folder: Path, *sources: Source) -> Entry:
    """Make the entry of the archive `tu_bytes()`; its digests are taken with a copy in `folder`."""
    path = put(folder, "SMALL.zip", tu_bytes())
    file = DataFile("tu/SMALL.zip", digests.content_digest(path), digests.graph_digest(path), sources)
    return Entry("SMALL", "graph", (file,), GraphStatistics(2, 2.5, 1.5, 2))


def make_wheel(folder: Path, members: dict[str, bytes], member: str) -> Wheel:
    """A wheel of a package that no index has."""
    info = "uotpool_test_data-1.0.dist-info"
    about = {
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: uotpool-test-data\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    content = zip_bytes(members | about)
    put(folder, "uotpool_test_data-1.0-py3-none-any.whl", content)
    return Wheel("uotpool-test-data", "1.0", sha256(content), member)


def tree(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


class Server:
    """Gives out `content`: after `delay` seconds, half of it if `cut`, announced in full if `length`."""

    def __init__(self) -> None:
        self.content, self.requests = b"", 0
        self.delay, self.cut, self.length, self.status = 0.0, False, True, 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests += 1
                time.sleep(outer.delay)
                self.send_response(outer.status)
                if outer.length:
                    self.send_header("Content-Length", str(len(outer.content)))
                self.end_headers()
                self.wfile.write(outer.content[: len(outer.content) // 2] if outer.cut else outer.content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def address(self, max_bytes: int = 10**6) -> Address:
        return Address(f"http://127.0.0.1:{self._server.server_port}/small", max_bytes)
