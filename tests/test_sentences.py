"""The measurement on sentence encoders runs, goes on where it stopped, and the docs quote what it found."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("rich")
pytest.importorskip("sentence_transformers")

from bench import reviews, sentences
from bench.__main__ import main
from bench.report import markdown
from bench.reviews import FIRST, LAST, PER_CLASS, Sizes
from bench.sentences import LEARNING_RATES, MEAN, POOLINGS, Run

ROOT = Path(__file__).parent.parent
COMMITTED = ROOT / "results" / "sentences"


def test_it_runs_and_goes_on(tmp_path, monkeypatch, capsys):
    command = ["bench", "sentences", "--quick", "--out", str(tmp_path), "--seeds", "0", "1"]
    monkeypatch.setattr(sys, "argv", command)
    main()
    path = tmp_path / "sentences" / "runs.csv"
    first = path.read_text()
    runs = sentences.read(path)
    assert [(run.pooling, run.seed) for run in runs] == [(name, seed) for name in POOLINGS for seed in (0, 1)]
    for name in POOLINGS:  # the first seed chooses for the others
        assert len({run.learning_rate for run in runs if run.pooling == name}) == 1
    assert {run.learning_rate for run in runs} <= set(LEARNING_RATES)
    lines = first.splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))  # killed before the last one
    capsys.readouterr()
    main()
    assert path.read_text() == first
    table = markdown(sentences.lines(sentences.read(path)))
    assert table in capsys.readouterr().out
    assert table in path.with_name("README.md").read_text()


def test_training_and_test_reviews_are_from_the_two_ends_of_each_class():
    texts = {label: [f"{label} {i}" for i in range(PER_CLASS)] for label in (0, 1)}
    parts = reviews._draw(texts, Sizes(train=40, validation=20, test=30))
    for (chosen, y), count, begin, end in (
        (parts[0], 60, 0, FIRST),
        (parts[1], 30, PER_CLASS - LAST, PER_CLASS),
    ):
        places = [tuple(map(int, text.split())) for text in chosen]
        assert len(set(places)) == count
        assert torch.equal(torch.tensor([label for label, _ in places]), y)
        assert int(y.sum()) == count // 2
        assert all(begin <= place < end for _, place in places)
    assert FIRST + 30 < PER_CLASS - LAST  # a film has at most 30 reviews


def test_differences_are_those_of_the_same_seeds():
    runs = [
        *(Run(MEAN, seed, 1e-3, 1, 0.5, value) for seed, value in enumerate((0.70, 0.80, 0.90))),
        *(Run("max", seed, 1e-3, 1, 0.5, value) for seed, value in enumerate((0.71, 0.81, 0.91))),
    ]
    mean, other = sentences.lines(runs)
    assert mean["accuracy"] == "80.00 (55.16 to 104.84)"
    assert (mean["difference from mean"], other["difference from mean"]) == ("", "+1.00 (+1.00 to +1.00)")


def test_what_is_committed_is_what_the_docs_show():
    runs = sentences.read(COMMITTED / "runs.csv")
    assert {(run.pooling, run.seed) for run in runs} == {(name, seed) for name in POOLINGS for seed in range(5)}
    table = markdown(sentences.lines(runs))
    assert table in (COMMITTED / "README.md").read_text()
    assert table in (ROOT / "docs/use/sentence-transformers.md").read_text()
