"""The experiment on few witnesses runs, goes on where it stopped, and the docs quote what it found."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("rich")
pytest.importorskip("sklearn")

import uotpool
from bench import witnesses
from bench.__main__ import main
from bench.witnesses import KINDS, SETTINGS, TINY, Run, Sizes

ROOT = Path(__file__).parent.parent
COMMITTED = ROOT / "results" / "witnesses"


def test_it_runs_and_goes_on(tmp_path, monkeypatch, capsys):
    command = ["bench", "witnesses", "--quick", "--out", str(tmp_path), "--seeds", "0"]
    monkeypatch.setattr(sys, "argv", command)
    main()
    path = tmp_path / "witnesses" / "runs.csv"
    first = path.read_text()
    assert {(r.kind, r.setting) for r in witnesses.read(path)} == {(k, s) for k in KINDS for s in SETTINGS}
    lines = first.splitlines(keepends=True)
    path.write_text("".join(lines[:-2]))  # killed before the last two
    capsys.readouterr()
    main()
    assert path.read_text() == first
    table = witnesses.table(witnesses.read(path))
    assert table in capsys.readouterr().out
    assert table in path.with_name("README.md").read_text()


def test_a_positive_bag_has_its_witnesses_and_the_parts_are_apart():
    parts = witnesses.make_bags(Sizes(dim=64, train=8, validation=4, test=4), "outstanding", 0)
    assert [len(part) for part in parts] == [8, 4, 4]
    rows = torch.cat([part.X for part in parts])
    assert len(rows.unique(dim=0)) == len(rows)
    train = parts[0]
    # Two instances of one type are about sqrt(2 D) NOISE apart; a witness is farther from all negative ones.
    start, end = train.ptr[:-1].tolist(), train.ptr[1:].tolist()
    negative = train.X[start[0] : end[0]]
    for b in range(1, 8):
        nearest = torch.cdist(train.X[start[b] : end[b]], negative).amin(1)
        found = int((nearest > 1.3 * math.sqrt(2 * 64) * witnesses.NOISE).sum())
        assert found == (round(0.01 * (end[b] - start[b])) if train.y[b] else 0)


def test_isotropic_bags_have_no_types_and_move_their_witnesses():
    train = witnesses.make_bags(Sizes(dim=128, train=4, validation=2, test=2), "isotropic", 0)[0]
    ptr = train.ptr.tolist()
    negative, positive = train.X[: ptr[1]], train.X[ptr[1] : ptr[2]]
    count = round(0.01 * len(positive))
    spread = math.sqrt(1 + witnesses.NOISE**2)
    # Without types no two instances are near each other.
    apart = torch.cdist(negative, negative) + 1e9 * torch.eye(len(negative))
    assert apart.amin() > 0.6 * math.sqrt(2 * 128) * spread
    along = positive[:count].mean(0) / positive[:count].mean(0).norm()
    assert (positive[:count] @ along).mean() > 4 * spread
    for rest in (positive[count:], negative):
        assert abs(float((rest @ along).mean())) < 0.3 * spread
        assert abs(float((rest @ along).std()) - spread) < 0.2 * spread


def test_a_run_that_is_not_finite_has_failed_and_is_counted():
    train, validation, test = witnesses.make_bags(TINY, "outstanding", 0)
    train.X[0, 0] = math.inf
    with uotpool.check(False):
        found = witnesses.run(TINY, "outstanding", "mean", 0, (train, validation, test))
    assert found.failed
    runs = [found, Run("outstanding", "mean", 1, 0.5, 1), Run("outstanding", "mean", 2, 1.0, 1)]
    assert witnesses.cell(runs).startswith("0.75 (")
    assert witnesses.cell(runs).endswith(", 1 of 3, failed 1")
    assert witnesses.cell(runs[:1]) == "failed 1 of 1"


def test_the_interval_is_students():
    assert witnesses.interval([0.4, 0.5, 0.6]) == pytest.approx((0.5 - 0.2484, 0.5 + 0.2484), abs=1e-4)
    assert witnesses.interval([1.0, 1.0, 0.9])[1] == 1.0


def test_the_committed_table_is_that_of_the_runs_and_the_advice_quotes_it():
    runs = witnesses.read(COMMITTED / "runs.csv")
    cases = {(r.kind, r.setting, r.seed) for r in runs}
    assert len(cases) == len(runs)
    assert cases == {(k, s, seed) for k in KINDS for s in SETTINGS for seed in range(5)}
    assert (COMMITTED / "README.md").read_text() == witnesses.page(runs, Sizes())
    assert witnesses.table(runs) in (ROOT / "docs/settings.md").read_text()
