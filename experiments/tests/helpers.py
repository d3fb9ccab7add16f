"""Specs, rows, and a task of this file's own that workers can run: a worker that unpickles `Toy` imports it."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.tasks import TASKS
from uotpool_experiments.tasks import fingerprint as code
from uotpool_experiments.tasks.base import Task
from uotpool_experiments.tasks.protocols import FOLDS
from uotpool_experiments.tasks.spec import Options, Report, Result, RunSpec

from uotpool.cli import main

FACTS = {"versions": "{}", "machine": "here", "commit_id": "abc"}


def mil_spec(settings: dict[str, Any] | None = None, **changes: Any) -> RunSpec:
    choices = {"task": "mil", "dataset": "digits", "pooling": "mean", "protocol": "fair", "fold": 0, "seed": 0}
    return RunSpec.make({"epochs": 2} if settings is None else settings, **(choices | changes))


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def call(capsys, *argv):
    """(exit code, stdout, stderr)"""
    with pytest.raises(SystemExit) as exit:
        main([str(word) for word in argv])
    out, err = capsys.readouterr()
    return exit.value.code, out, err


def quiet(done: int, total: int) -> None:
    """Ignore a report of progress."""


def numbers(result: Result) -> tuple[Any, ...]:
    """Return what two runs are compared by: everything but the cost."""
    return result.metrics, result.epochs, result.details, result.parameters


def row(pooling: str, dataset: str, metrics: dict[str, float], *, seed=0, fold=0, protocol="fair") -> Row:
    spec = RunSpec("mil", dataset, pooling, protocol, fold, seed)
    return Row(spec, "code", "done", 1, None, 1.0, 1.0, 1, metrics, {})


def table_of_runs(values: dict[tuple[str, str, str], list[float]], **more: float) -> list[Row]:
    """{(pooling, data set, protocol): accuracies by seed and fold} -> rows, five folds per seed."""
    return [
        row(
            pooling,
            dataset,
            {"accuracy": value, "loss": 1 - value, "majority": 0.5} | more,
            seed=i // 5,
            fold=i % 5,
            protocol=protocol,
        )
        for (pooling, dataset, protocol), accuracies in values.items()
        for i, value in enumerate(accuracies)
    ]


# ---------------------------------------------------------------------------------------------------------
# processes


def command(*words: str) -> list[str]:
    """`uotpool` with these words; it heeds Ctrl-C, which a process of tests in the background ignores."""
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    return [sys.executable, "-c", f"{heed}; from uotpool.cli import main; main()", *words]


def children(pid: int) -> list[int]:
    """The processes that this one started (Linux)."""
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def is_worker(pid: int) -> bool:
    """Not the resource tracker of multiprocessing, which is a child too."""
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def wait_until(condition: Any, seconds: float, what: str) -> float:
    """Wait, and return how many seconds it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, f"after {seconds} s, not yet: {what}"
        time.sleep(0.02)
    return time.monotonic() - start


def cpu_seconds(pid: int) -> float:
    """What a process has computed so far; 0 of one that is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


# Of CPU: a worker that hears nothing from its driver ends after its epoch, or once it has loaded torch,
# which takes 5 seconds on a slow machine.
SECONDS_TO_END = 20


def check_they_end(pids: list[int], cpu: float) -> None:
    """Within so many seconds of computing each, however little of the machine they are given."""
    before = {pid: cpu_seconds(pid) for pid in pids}

    def ended() -> bool:
        for pid, start in before.items():
            assert cpu_seconds(pid) - start <= cpu, f"process {pid} goes on"
        return not any(map(alive, pids))

    wait_until(ended, 60, "the end of all processes")


# ---------------------------------------------------------------------------------------------------------
# the toy task


@dataclass(frozen=True)
class Toy(RunSpec):
    """A run of `run` below; what it does is in its settings."""


@dataclass(frozen=True)
class ToySettings(Options):
    do: str = "succeed"
    pool: dict[str, Any] = field(default_factory=dict)


def toy(do: str, fold: int = 0, **settings: Any) -> Toy:
    made = RunSpec.make(
        {"do": do} | settings, task="toy", dataset="none", pooling="mean", protocol="fair", fold=fold, seed=0
    )
    return Toy(**made.as_dict())


class ToyTask(Task):
    title, default_dataset, optimism = "A toy", "none", "a toy is never optimistic"
    settings = ToySettings

    def poolings(self) -> list[str]:
        return ["mean"]

    def check_dataset(self, name: str) -> None:
        assert name == "none"

    def prepare(self, dataset: str) -> None:
        assert dataset == "none"

    def check_settings(self, pooling: str, settings: Any) -> None:
        assert pooling == "mean"

    def folds(self, protocol: str, options: Any) -> int:
        return FOLDS

    def run(self, spec: RunSpec, report: Report) -> Result:
        return run(spec, report)


def run(spec: RunSpec, report: Report) -> Result:
    match spec.options.get("do", "succeed"):
        case "succeed":
            report(1, 2)
            report(2, 2)
        case "raise":
            raise ArithmeticError("the toy is broken")
        case "exit":
            os._exit(7)
        case "sleep":
            report(0, 1)
            time.sleep(600)
        case "cut":  # be killed in the middle of a message: its length is there, its end is not
            _cut_message()
    return Result({"accuracy": 1.0, "majority": 0.5}, details={"pid": os.getpid()})


def _cut_message() -> None:
    frame = sys._getframe()
    while frame.f_code.co_name != "_serve":
        assert frame.f_back is not None
        frame = frame.f_back
    os.write(frame.f_locals["pipe"].fileno(), (1000).to_bytes(4, "big") + b"not all of it")
    os.kill(os.getpid(), signal.SIGKILL)


def _path_of(module: str, find: Any = code._path) -> Path | None:
    return Path(__file__) if module == "uotpool_experiments.toy" else find(module)


code._path = _path_of
TASKS["toy"] = "uotpool_experiments.toy:ToyTask"
sys.modules["uotpool_experiments.toy"] = sys.modules[__name__]
