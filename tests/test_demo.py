"""The demo: fair data, reproducible numbers, a table and a picture."""

from __future__ import annotations

import pytest
import torch
from matplotlib.image import imread

from examples.digit_bags import DIGITS, POOLINGS, main, make_bags

TINY = ["--seeds", "2", "--epochs", "2", "--bags", "24"]


def accuracies(results):
    return {name: [run.accuracy for run in runs] for name, runs in results.items()}


@pytest.fixture
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")  # rich wraps lines at the width of the terminal


@pytest.mark.usefixtures("_here")
def test_table_picture_and_reproducibility(tmp_path, capsys):
    first = main(TINY)
    printed = capsys.readouterr().out
    for name in POOLINGS:
        assert any(line.startswith(f"│ {name} ") and "±" in line for line in printed.splitlines()), name
    assert "out/digit_bags_plans.png" in printed

    picture = imread(tmp_path / "out" / "digit_bags_plans.png")
    assert min(picture.shape[:2]) > 500
    assert picture[..., :3].std() > 0.1

    second = main([*TINY, "--out", "again"])
    assert accuracies(first) == accuracies(second)
    assert (tmp_path / "again" / "digit_bags_plans.png").stat().st_size > 10_000
    for name, runs in first.items():
        assert len(runs) == 2
        for run in runs:
            assert (run.divergence is not None) == name.startswith("UOT")
            if run.divergence is not None:
                assert 0 <= run.divergence <= torch.tensor(15.0).log()


@pytest.mark.parametrize("target", [0, 9])
def test_bags_are_fair(target):
    train, test = make_bags(target, 200, seed=3)
    shared = set(torch.cat(train.members).tolist()) & set(torch.cat(test.members).tolist())
    assert not shared
    for bags in (train, test):
        assert bags.labels.mean() == 0.5
        sizes = {len(bag) for bag in bags.members}
        assert sizes == set(range(5, 16))
        for bag, label in zip(bags.members, bags.labels, strict=True):
            assert len(bag.unique()) == len(bag)
            assert bool((DIGITS[bag] == target).any()) == bool(label)


def test_batches_are_ragged():
    bags, _ = make_bags(9, 10, seed=0)
    which = torch.tensor([7, 2, 2])
    rows, index = bags.ragged(which)
    assert index.bincount().tolist() == [len(bags.members[i]) for i in which]
    assert rows.shape == (len(index), 64)


@pytest.mark.parametrize("options", [["--digit", "10"], ["--digit", "-1"], ["--bags", "0"], ["--epochs", "x"]])
def test_wrong_option_is_an_error(options, capsys):
    with pytest.raises(SystemExit) as stop:
        main(options)
    assert stop.value.code == 2
    assert f"argument {options[0]}" in capsys.readouterr().err
