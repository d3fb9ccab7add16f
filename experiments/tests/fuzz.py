"""Hostile files for the readers of the experiments: `python -m experiments.tests.fuzz COUNT [SEED]`.

A case is a sound file of some kind, changed at random, and the command or reader that takes it. It may be read
or refused in words, and nothing else. Run by the suite with few cases, within the bound of memory set here.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import sqlite3
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import scipy.io
import scipy.sparse
from uotpool_experiments.datasets import DatasetRefusedError, digests
from uotpool_experiments.datasets.graphs import read as read_graphs
from uotpool_experiments.datasets.mil import read_csv, read_mat
from uotpool_experiments.runs import export
from uotpool_experiments.runs.store import Store
from uotpool_experiments.tasks.spec import Result, RunSpec

from experiments.tests.datasets import helpers as files
from uotpool.cli import main

MOST_MEMORY = 2**30  # bytes above what stood when the cases began
MOST_SECONDS = 20.0  # for one case
TEXTS = ("=1+1", "\x1b[31mred\x07", "a\nb", "\u202eabc", "'=x", "-0.5", "@SUM(A1)", "\\input{x}", "é|<b>", "")
NUMBERS: tuple[object, ...] = (
    0,
    -1,
    2**31,
    2**63,
    2**64,
    10**400,
    1e308,
    float("nan"),
    float("inf"),
    -0.5,
    True,
    None,
    [],
    {},
    "x",
)
Random = random.Random


def flipped(content: bytes, rng: Random) -> bytes:
    """Bytes changed, cut off, doubled or put elsewhere."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        at = rng.randrange(len(data)) if data else 0
        match rng.randrange(6):
            case 0:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del data[at : at + rng.choice((1, 16, 4096))]
            case 2:
                data[at:at] = data[at : at + rng.choice((1, 16, 4096))]
            case 3:
                data = data[:at] if rng.random() < 0.3 else data
            case 4:
                data[at : at + 4] = rng.choice(
                    (b"\xff" * 4, b"\x00" * 4, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f")
                )
            case 5:
                data[at:at] = rng.choice(TEXTS).encode()
    return bytes(data)


def sound_rows(rng: Random, folder: Path) -> Path:
    """A store of a few runs."""
    path = folder / "runs.sqlite"
    with closing(Store(path)) as store:
        for pooling in ("mean", "max", "uotp-sinkhorn"):
            for fold in range(2):
                spec = RunSpec("mil", rng.choice(("musk1", "tiger")), pooling, "fair", fold, 0)
                metrics = {"accuracy": rng.random(), "loss": rng.random(), "majority": 0.5}
                facts = {"versions": '{"torch":"2"}', "machine": "here", "commit_id": "abc"}
                store.save(spec, "code", Result(metrics, details={"epoch": 3}), facts, 1.0)
    return path


def hostile_store(rng: Random, folder: Path) -> Path:
    """Bytes of the file, or values of its columns, or the table itself."""
    path = sound_rows(rng, folder)
    if rng.random() < 0.5:
        path.write_bytes(flipped(path.read_bytes(), rng))
        return path
    with closing(sqlite3.connect(path)) as db:
        columns = [name for _, name, *_ in db.execute("PRAGMA table_info(runs)")]
        for _ in range(rng.randrange(1, 4)):
            column = rng.choice(columns)
            value = rng.choice(
                (
                    rng.choice(TEXTS),
                    json.dumps({rng.choice(("accuracy", "seed", "=x", "a b")): _number(rng)}),
                    "[" * 5000,
                    b"\xff\x00",
                    rng.choice((0, -1, 2**62, 1e308, float("inf"), None)),
                )
            )
            with contextlib.suppress(sqlite3.Error):  # a bound of the table itself
                db.execute(f"UPDATE runs SET {column} = ? WHERE rowid % 2 = ?", (value, rng.randrange(2)))
        if rng.random() < 0.1:
            db.execute("ALTER TABLE runs RENAME TO hidden")
            endless = (
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT hidden.* FROM hidden, n"
            )
            db.execute(f"CREATE VIEW runs AS {endless}")
        db.commit()
    return path


def _number(rng: Random) -> object:
    value = rng.choice(NUMBERS)
    return str(value) if isinstance(value, int) and value > 2**64 else value


def hostile_csv(rng: Random, folder: Path) -> Path:
    store, path = sound_rows(rng, folder), folder / "runs.csv"
    with closing(Store(store)) as opened, path.open("w") as file:
        export.write(opened.rows(), file)
    if rng.random() < 0.5:
        path.write_bytes(flipped(path.read_bytes(), rng))
        return path
    lines = [line.split(",") for line in path.read_text().splitlines()]
    for _ in range(rng.randrange(1, 4)):
        line = rng.choice(lines)
        line[rng.randrange(len(line))] = rng.choice((*TEXTS, *map(str, NUMBERS), "1" * 5000, "[" * 5000, '"'))
    path.write_text("\n".join(map(",".join, lines)))
    return path


def hostile_toml(rng: Random, folder: Path) -> Path:
    path = folder / "sweep.toml"
    values = {
        "task": '"mil"',
        "dataset": '["digits", "musk1"]',
        "pooling": '["mean", "exact"]',
        "protocol": '"fair"',
        "seeds": "3",
        "folds": "[0, 1]",
        "settings": "[{}, { pool = { K = 8 } }]",
    }
    odd = (
        "1000000000",
        "9" * 40,
        "9" * 5000,
        "true",
        "1979-05-27",
        "inf",
        "nan",
        "-1",
        "1.5",
        "[[1]]",
        "{}",
        "[]",
    )
    more = (
        '"\\u001b[31m"',
        "[{hidden = 1000000000000}]",
        "{lr = nan}",
        "[" * 3000,
        "{a.b.c = 1}",
        '"all"',
        "''''''",
    )
    for _ in range(rng.randrange(1, 4)):
        values[rng.choice((*values, "other"))] = rng.choice((*odd, *more))
    if rng.random() < 0.1:
        values["settings" + ".a" * rng.choice((20, 40, 5000))] = "1"
    text = "\n".join(["[[runs]]", *(f"{name} = {value}" for name, value in values.items())])
    text = "\n".join([text] * rng.choice((1, 1, 1, 30)))
    path.write_bytes(text.encode() if rng.random() < 0.5 else flipped(text.encode(), rng))
    return path


def hostile_tu(rng: Random, folder: Path) -> Path:
    """Lines of the texts, or bytes of the archive."""
    path = folder / "SMALL.zip"
    texts = dict(files.TEXTS)
    kind = rng.choice(tuple(texts))
    lines = texts[kind].splitlines()
    odd = (
        b"99, 1",
        b"-1",
        b"0",
        b"9" * 30,
        b"9223372036854775807, 1",
        b"nan",
        b"",
        b"1 2 3 4",
        b"\xff",
        b"1e9",
    )
    lines[rng.randrange(len(lines))] = rng.choice(odd)
    texts[kind] = b"\n".join(lines)
    if rng.random() < 0.1:
        texts[kind] = b"1\n" * 10_000_000  # small, once packed
    content = files.tu_bytes(rng.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED)), **texts)
    path.write_bytes(content if rng.random() < 0.6 else flipped(content, rng))
    return path


def hostile_mat(rng: Random, folder: Path) -> Path:
    path = folder / "small.mat"
    if rng.random() < 0.3:
        data = np.empty((2, 2), dtype=object)
        side = rng.choice((3, 1000, 40_000, 2**31 - 1))
        for bag in range(2):
            sparse = scipy.sparse.csc_matrix(([1.0], ([0], [0])), shape=(side, 6))
            data[bag] = (sparse, bag)
        for _ in range(rng.choice((0, 0, 5, 3000))):
            data[0, 1] = np.array([[data[0, 1]]], dtype=object)
        file = io.BytesIO()
        with contextlib.suppress(RecursionError, ValueError, MemoryError):  # of the writer
            scipy.io.savemat(file, {"data": data}, do_compression=rng.random() < 0.5)
        content = file.getvalue()
    else:
        content = files.mat_bytes(cast=scipy.sparse.csc_matrix if rng.random() < 0.5 else lambda cell: cell)
    path.write_bytes(content if rng.random() < 0.3 else flipped(content, rng))
    return path


def hostile_bags(rng: Random, folder: Path) -> Path:
    path = folder / "bags.csv"
    lines = [f"{i % 2},{i},{rng.random()},{rng.random()}" for i in range(6)]
    cells = lines[2].split(",")
    cells[rng.randrange(4)] = rng.choice((*TEXTS, "1e400", "nan", "-1e39", "9" * 5000))
    lines[2] = ",".join(cells)
    text = "\n".join(lines).encode(errors="surrogateescape")
    path.write_bytes(text if rng.random() < 0.5 else flipped(text, rng))
    return path


def command(*words: str) -> str:
    """Say how the command ends; its output must not hold control characters."""
    out, err = io.StringIO(), io.StringIO()
    out.fileno = lambda: 1  # type: ignore[method-assign]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(list(words))
            status = 0
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else 1
    shown = out.getvalue() + err.getvalue()
    assert status in (0, 2), (status, shown[-300:])
    assert "Traceback" not in shown
    assert not set("\x1b\x07\x9b\u202e\x00") & set(shown), "control characters on the terminal"
    return "read" if status == 0 else "refused"


def _tables(path: Path, rng: Random) -> str:
    store = ["--store", str(path), "--stored"]
    form = rng.choice(("terminal", "markdown", "latex", "csv"))
    kind = rng.choice(("results", "results", "comparison", "settings", "cost"))
    ends = [command("table", "mil", *store, "--format", form, "--kind", kind), command("export", "mil", *store)]
    return max(ends)


def _sweep(path: Path, rng: Random) -> str:
    return command("sweep", str(path), "--dry-run", "--store", str(path.with_name("none.sqlite")))


def _read(reader: Callable[[Path], object]) -> Callable[[Path, Random], str]:
    def read(path: Path, rng: Random) -> str:
        try:
            reader(path)
        except DatasetRefusedError:
            return "refused"
        return "read"

    return read


def _graphs(path: Path) -> None:
    digests.graph_digest(path)
    read_graphs(path)


KINDS: dict[str, tuple[Callable[[Random, Path], Path], Callable[[Path, Random], str]]] = {
    "store": (hostile_store, _tables),
    "csv": (hostile_csv, _tables),
    "toml": (hostile_toml, _sweep),
    "tu": (hostile_tu, _read(_graphs)),
    "mat": (hostile_mat, _read(lambda path: read_mat(path, "small"))),
    "bags": (hostile_bags, _read(lambda path: read_csv(path, "small"))),
}


def run(count: int, seed: int = 0) -> Counter[str]:
    """Run so many cases, of each kind in turn; count how they ended. Raise at the first bad end."""
    ends: Counter[str] = Counter()
    with _bounded_memory():
        for case in range(count):
            ends[_end_of(case, seed)] += 1
    return ends


def _end_of(case: int, seed: int) -> str:
    kind = list(KINDS)[case % len(KINDS)]
    make, use = KINDS[kind]
    rng = Random(f"{seed} {case}")
    with tempfile.TemporaryDirectory() as folder:
        path = make(rng, Path(folder))
        start = time.monotonic()
        try:
            end = use(path, rng)
        except BaseException as error:
            kept = Path(tempfile.gettempdir()) / f"fuzz-{seed}-{case}{path.suffix}"
            kept.write_bytes(path.read_bytes())
            raise AssertionError(f"case {case} of seed {seed}, {kind}, kept in {kept}: {error!r}") from error
        assert time.monotonic() - start < MOST_SECONDS, f"case {case} of seed {seed}: {kind} takes too long"
    return f"{kind} {end}"


@contextlib.contextmanager
def _bounded_memory() -> Iterator[None]:
    """Of this process: what asks for more gets a MemoryError, which no reader may end with."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore")
    for end, number in sorted(run(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0).items()):
        print(f"{end}: {number}")
    print(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
