"""Every benchmark runs and says what it must; what the figures are is not for a test on a shared machine.

`--quick` takes tiny sizes and leaves out torch.compile, which takes minutes (`--compile` has it).
"""

from __future__ import annotations

import csv
import math
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("matplotlib")
pytest.importorskip("ot")
pytest.importorskip("rich")
pytest.importorskip("torch_geometric")

from uotpool_experiments.datasets import status
from uotpool_experiments.figures.timing import Job, fastest, interleaved, samples

from bench.__main__ import main
from bench.cases import WrongAnswerError, layer, truth, verify
from bench.growth import Sweep
from bench.report import at_least, at_most, judge
from uotpool import resolve_impl

ROOT = Path(__file__).parent.parent
NAMES = (
    "speed",
    "pools",
    "pot",
    "memory",
    "ragged",
    "latency",
    "growth",
    "zoo",
    "mil",
    "graph",
    "svm",
    "windows",
    "swap",
    "deploy",
)
COLUMNS = {
    *("benchmark", "size", "solver", "mode", "threads", "candidate", "baseline", "candidate_us", "baseline_us"),
    *("ratio", "target", "met", "machine", "isa", "python", "torch", "torch_geometric", "pot", "uotpool"),
    *("commit", "repeats"),
}


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Standard output of a quick run of everything, and the folder it wrote to."""
    folder = tmp_path_factory.mktemp("bench")
    command = [sys.executable, "-m", "bench", "--quick", "--out", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, folder


@pytest.mark.parametrize("name", NAMES)
def test_rows(quick, name):
    _, folder = quick
    if name == "graph" and not status("MUTAG").present:
        pytest.skip("MUTAG is not at hand")
    with (folder / f"{name}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows
    assert set(rows[0]) >= COLUMNS
    for row in rows:
        assert row["benchmark"] == name
        assert row["met"] == ("" if not row["target"] else row["met"])
        assert row["met"] in ("", "ok", "miss")
        ratio = float(row["ratio"])
        if name == "growth":  # exponents, of a sweep that fixed costs swamp here
            assert math.isfinite(ratio)
        else:
            assert 0 < ratio < math.inf
        memory = row["candidate_mib"] != ""
        assert memory or name != "memory"
        for column in ("candidate_mib", "baseline_mib") if memory else ("candidate_us", "baseline_us"):
            assert 0 < float(row[column]) < math.inf
        assert all(row[column] for column in ("size", "solver", "mode", "threads", "candidate", "baseline"))
        assert all(row[column] for column in ("machine", "isa", "python", "torch", "commit", "repeats"))
    if name not in ("pot", "zoo", "mil", "graph", "svm", "swap", "deploy"):  # nothing was promised there
        assert any(row["target"] for row in rows)


def test_all_solvers_and_modes_are_there(quick):
    _, folder = quick
    for name in ("speed", "pools", "ragged", "latency"):
        text = (folder / f"{name}.csv").read_text()
        for expected in ("sinkhorn", "badmm-e", "badmm-q", ",forward,", ",forward+backward,"):
            assert expected in text, (name, expected)


def test_printed(quick):
    printed, folder = quick
    assert f"implementation {resolve_impl(torch.empty(1, 1, 1), 'sinkhorn')}" in printed
    for expected in ("SetTransformer", "POT numpy", "eager", "padded + mask", "weights (softplus)", "exponent"):
        assert expected in printed
    for picture in ("growth.png", "runtime.png"):
        assert (folder / picture).stat().st_size > 10_000


def test_unknown_name_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench", "sped"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "unknown benchmark 'sped'; there are: speed" in capsys.readouterr().err


def test_a_wrong_answer_is_not_timed():
    X = samples((3, 5, 4))
    pool = layer(4, "sinkhorn")
    expected = truth(pool, X)
    verify(pool, expected, X)
    for wrong in (
        expected._replace(y=expected.y * 1.001),
        expected._replace(dX=expected.dX * 1.001),
        expected._replace(dX=expected.dX * math.nan),
    ):
        with pytest.raises(WrongAnswerError, match="is off the exact reference"):
            verify(pool, wrong, X)


def test_interleaved_takes_turns_and_keeps_threads():
    threads = torch.get_num_threads()
    log: list[tuple[str, int]] = []
    jobs = {
        name: Job(lambda name=name: log.append((name, torch.get_num_threads())), n)
        for name, n in (("one", 1), ("two", 2))
    }
    seconds = interleaved(jobs, repeats=4, min_sample=0.0)
    assert set(seconds) == {"one", "two"}
    assert all(s > 0 for s in seconds.values())
    assert {n for name, n in log if name == "one"} == {1}
    assert {n for name, n in log if name == "two"} == {2}
    turns = [name for name, _ in log[-12:]]
    assert turns.count("one") >= 4
    assert turns.count("two") >= 4
    assert torch.get_num_threads() == threads


def test_samples_are_long_enough():
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            time.sleep(0.1)  # a first call that compiles must not pass for a slow one

    interleaved({"call": Job(call, torch.get_num_threads())}, repeats=1, min_sample=1e-3)
    assert calls > 1000  # a call of nothing takes some 50 ns


def test_fastest():
    def slow() -> object:
        return [i * i for i in range(20_000)]

    assert fastest({"slow": slow, "quick": lambda: None}, torch.get_num_threads(), budget=1e-2) == "quick"


def test_targets():
    assert judge(at_least(8), 8.0) == (">= 8", "ok")
    assert judge(at_least(8), 7.9) == (">= 8", "miss")
    assert judge(at_most(2.5), 2.6) == ("<= 2.5", "miss")
    assert judge(None, 1.0) == ("", "")


def test_exponent():
    values = [1, 2, 4, 8, 16, 32, 64]
    assert Sweep(values, [3e-6 * v**2 for v in values]).exponent == pytest.approx(2)
    assert Sweep(values, [1.0, 1.0, 1.0, 8.0, 16.0, 32.0, 64.0]).exponent == pytest.approx(1)
