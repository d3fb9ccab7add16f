"""`kill -9` of sweeps at random moments: `python -m experiments.tests.kills COUNT [SEED]`.

The same sweep is started again and again and killed: the driver, a worker of it, or all at once. What the store
had must stay as it was, and workers must end with their driver. At the end the sweep is let run: every run is
there once.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from experiments.tests.helpers import SECONDS_TO_END, check_they_end, children, is_worker
from uotpool.cli import main

STARTING = 0.25  # share of the kills that come while it starts, whose seconds are many and all alike
SWEEP = """
[[runs]]
task = "mil"
dataset = "digits"
pooling = ["mean", "max", "attention", "mixed"]
protocol = "paper"
seeds = {seeds}
settings = {{ epochs = 1 }}
"""


def stored(path: Path) -> dict[str, tuple[object, ...]]:
    """All of each finished run but its number in the file, by its key; the file itself must be sound."""
    if not path.exists():
        return {}
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'runs'").fetchone():
            return {}
        return {row[0]: row for row in db.execute("SELECT * FROM runs WHERE status = 'done'")}


def workers_of(driver: subprocess.Popen[bytes]) -> list[int]:
    return [pid for pid in children(driver.pid) if is_worker(pid)]


def kill(driver: subprocess.Popen[bytes], rng: random.Random) -> str:
    """The driver, one worker, or the whole group; a worker's death alone does not end the sweep."""
    what = rng.choice(("driver", "driver", "worker", "group"))
    workers = workers_of(driver)
    if what == "worker" and workers:
        os.kill(rng.choice(workers), signal.SIGKILL)
        time.sleep(rng.uniform(0, 1))
        workers = workers_of(driver)
    if what == "group":
        os.killpg(driver.pid, signal.SIGKILL)
    else:
        driver.kill()
    driver.wait()
    check_they_end(workers, SECONDS_TO_END)
    return what


def _wait_for_a_run(driver: subprocess.Popen[bytes], store: Path, before: int) -> None:
    """Wait until the sweep has finished another run."""
    end = time.monotonic() + 300
    while driver.poll() is None and len(stored(store)) <= before:
        assert time.monotonic() < end, "no run was finished in five minutes"
        time.sleep(0.05)


def _let_run(words: list[str]) -> None:
    """Run a command in this process, which has loaded all that the command needs."""
    code: object = None
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            main(words)
        except SystemExit as end:
            code = end.code
    assert code == 0, errors.getvalue()


def run(count: int, seed: int = 0) -> dict[str, int]:
    """Kill the sweep so many times; count what was killed. Raise if a run is lost, changed or done twice."""
    rng, seeds = random.Random(seed), 2 + count
    total, done = 4 * 5 * seeds, {"kills": 0, "of a finished sweep": 0}
    with tempfile.TemporaryDirectory() as folder:
        file, store = Path(folder, "sweep.toml"), Path(folder, "runs.sqlite")
        file.write_text(SWEEP.format(seeds=seeds))
        argv = [sys.executable, "-m", "uotpool", "sweep", str(file), "--store", str(store), "--workers", "2"]
        options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
        before: dict[str, tuple[object, ...]] = {}
        for _ in range(count):
            driver = subprocess.Popen(argv, **options)  # type: ignore[call-overload]
            if rng.random() >= STARTING:
                _wait_for_a_run(driver, store, len(before))
            time.sleep(rng.uniform(0.0, 2.0))
            done["of a finished sweep"] += driver.poll() is not None
            name = kill(driver, rng)
            done[name] = done.get(name, 0) + 1
            done["kills"] += 1
            after = stored(store)
            assert before.items() <= after.items(), "a finished run was lost or changed"
            before = after
        done["runs before the last start"] = len(before)
        assert 0 < len(before) < total, "all kills came too early or too late to show anything"
        _let_run(["sweep", str(file), "--store", str(store), "--workers", "1"])
        after = stored(store)
        assert before.items() <= after.items(), "a finished run was lost or changed"
        with contextlib.closing(sqlite3.connect(store)) as db:
            choices = db.execute("SELECT DISTINCT pooling, fold, seed FROM runs").fetchall()
        assert len(after) == len(choices) == total, (len(after), len(choices), total)
        done["runs in the end"] = len(after)
    return done


if __name__ == "__main__":
    for name, number in run(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0).items():
        print(f"{name}: {number}")
