"""Every measurement runs, and what its numbers rest on: right answers, turns, the fit of exponents."""

from __future__ import annotations

import csv
import math
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

pytest.importorskip("matplotlib")
pytest.importorskip("ot")
pytest.importorskip("rich")
pytest.importorskip("sentence_transformers")
pytest.importorskip("torch_geometric")

from uotpool_experiments.datasets import status

from bench import measurements, sentences, witnesses, zoo
from bench.__main__ import main
from bench.cases import WrongAnswerError, layer, truth, verify
from bench.growth import Sweep
from bench.report import markdown
from bench.rows import at_least, at_most, judge
from bench.timing import Job, interleaved, samples

ROOT = Path(__file__).parent.parent
NEEDS = {"graph": "MUTAG", "retrieval": "cifar10-subset", "retrieval-settings": "fashion-mnist"}


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Return the folder that a quick run of all measurements wrote to."""
    folder = tmp_path_factory.mktemp("bench")
    command = [sys.executable, "-m", "bench", "--quick", "--out", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("name", sorted(measurements.default()))
def test_every_measurement_runs(quick, name):
    if name in NEEDS and not status(NEEDS[name]).present:
        pytest.skip(f"{NEEDS[name]} is not at hand")
    with (quick / f"{name}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows
    assert all(row[fact] for row in rows for fact in ("machine", "isa", "python", "torch", "commit", "repeats"))
    assert all(math.isfinite(float(row["ratio"])) for row in rows if "ratio" in row)


@pytest.mark.parametrize(
    ("name", "page", "begin"),
    [
        ("heat_maps", "docs/use/pathology.md", "| model"),
        ("retrieval", "docs/use/retrieval.md", "| head"),
        ("retrieval_settings", "docs/use/retrieval.md", "| head"),
    ],
)
def test_a_page_shows_the_committed_measurement(name, page, begin):
    with (ROOT / f"results/bench/{name}.csv").open(newline="") as file:
        shown = markdown(import_module(f"bench.{name}").summary(list(csv.DictReader(file))))
    assert shown[shown.index(begin) :].strip() in (ROOT / page).read_text()


def test_the_table_of_costs_is_that_of_the_committed_measurement():
    with (ROOT / "results/bench/zoo.csv").open(newline="") as file:
        assert zoo.table(list(csv.DictReader(file))) in (ROOT / "docs/poolings.md").read_text()


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
        with pytest.raises(WrongAnswerError):
            verify(pool, wrong, X)


def test_candidates_take_turns_and_keep_threads():
    threads, log = torch.get_num_threads(), []
    jobs = {
        name: Job(lambda name=name: log.append((name, torch.get_num_threads())), n)
        for name, n in (("one", 1), ("two", 2))
    }
    assert set(interleaved(jobs, repeats=4, min_sample=0.0)) == {"one", "two"}
    assert {n for name, n in log if name == "one"} == {1}
    assert {n for name, n in log if name == "two"} == {2}
    turns = [name for name, _ in log[-12:]]
    assert min(turns.count("one"), turns.count("two")) >= 4
    assert torch.get_num_threads() == threads


def test_targets_and_exponents():
    assert judge(at_least(8), 8.0)[1] == "ok"
    assert judge(at_least(8), 7.9)[1] == "miss"
    assert judge(at_most(2.5), 2.6)[1] == "miss"
    assert judge(None, 1.0) == ("", "")
    values = [1, 2, 4, 8, 16, 32, 64]
    assert Sweep(values, [3e-6 * v**2 for v in values]).exponent == pytest.approx(2)
    assert Sweep(values, [1.0, 1.0, 1.0, 8.0, 16.0, 32.0, 64.0]).exponent == pytest.approx(1)


@pytest.mark.parametrize("name", ["witnesses", "sentences"])
def test_a_measurement_with_runs_goes_on_where_it_stopped(name, tmp_path, monkeypatch, capsys):
    module = import_module(f"bench.{name}")
    monkeypatch.setattr(sys, "argv", ["bench", name, "--quick", "--out", str(tmp_path), "--seeds", "0"])
    main()
    path = tmp_path / name / "runs.csv"
    first = path.read_text()
    path.write_text("".join(first.splitlines(keepends=True)[:-1]))  # killed before the last one
    main()
    assert path.read_text() == first
    assert {run.seed for run in module.read(path)} == {0}


def test_pages_show_the_committed_runs():
    runs = witnesses.read(ROOT / "results/witnesses/runs.csv")
    assert (ROOT / "results/witnesses/README.md").read_text() == witnesses.page(runs, witnesses.Sizes())
    assert witnesses.table(runs) in (ROOT / "docs/settings.md").read_text()
    table = markdown(sentences.lines(sentences.read(ROOT / "results/sentences/runs.csv")))
    for page in ("results/sentences/README.md", "docs/use/sentence-transformers.md"):
        assert table in (ROOT / page).read_text()


def test_drawn_bags_have_their_witnesses():
    """Two instances of one type are about sqrt(2 D) NOISE apart; a witness is farther from negative ones."""
    sizes = witnesses.Sizes(dim=64, train=8, validation=4, test=4)
    train, *_ = witnesses.make_bags(sizes, "outstanding", 0)
    start, end = train.ptr[:-1].tolist(), train.ptr[1:].tolist()
    negative = train.X[start[0] : end[0]]
    for b in range(1, 8):
        nearest = torch.cdist(train.X[start[b] : end[b]], negative).amin(1)
        far = int((nearest > 1.3 * math.sqrt(2 * 64) * witnesses.NOISE).sum())
        assert far == (round(0.01 * (end[b] - start[b])) if train.y[b] else 0)
