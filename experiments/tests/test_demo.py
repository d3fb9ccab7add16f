"""`uotpool demo`: a table, a picture, a page; the same again, and at once. What plans of bags show."""

from __future__ import annotations

import re

import pytest
import torch
from matplotlib.image import imread
from sklearn.datasets import load_digits
from uotpool_experiments.cli import demo
from uotpool_experiments.datasets import digits
from uotpool_experiments.figures import FORMATS, bag_plans
from uotpool_experiments.runs.store import Store
from uotpool_experiments.tasks.mil import training
from uotpool_experiments.tasks.spec import RunSpec

from uotpool.cli import main


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["demo", "--quick", "--seeds", "2", "--workers", "1", *words])
    assert isinstance(stop.value.code, int)
    return stop.value.code


def test_demo(tmp_path, capsys):
    assert run("--output", str(tmp_path / "a")) == 0
    out = capsys.readouterr().out
    for name in demo.POOLINGS:
        assert any(line.startswith(f"  {name} ") and "±" in line for line in out.splitlines()), name
    assert re.search(r"^Points behind the best pooling at worst: (\S+ \d+\.\d,? ?){6}$", out, re.MULTILINE)
    drawn = {form: (tmp_path / "a" / f"{demo.FIGURE}.{form}").read_bytes() for form in FORMATS}
    assert all(len(content) > 10_000 for content in drawn.values())
    assert str(tmp_path / "a" / "report.html") in out
    assert out.rstrip().endswith(demo.NEXT[-1])
    assert re.search(r"^  \S*uotpool run image \(pip install |^  \S*uotpool run regimes", out, re.MULTILINE)
    picture = imread(tmp_path / "a" / "regimes.png")
    assert min(picture.shape[:2]) > 500
    assert picture[..., :3].std() > 0.1
    page = (tmp_path / "a" / "report.html").read_text()
    assert "digits-presence-50" in page
    assert "data:image/png;base64," in page
    assert "What next" in page
    assert "Points behind the best pooling at worst: " in page

    runs = len(demo.REGIMES) * len(demo.POOLINGS) * 2
    assert len(Store(tmp_path / "a" / "runs.sqlite", readonly=True).rows()) == runs
    assert run("--output", str(tmp_path / "a")) == 0
    captured = capsys.readouterr()
    assert f"0 runs to do, {runs} done before" in captured.err
    assert captured.out == out
    assert {form: (tmp_path / "a" / f"{demo.FIGURE}.{form}").read_bytes() for form in FORMATS} == drawn


def test_members_are_the_rows_of_the_bags():
    bags, data = digits.make(), load_digits()
    members = digits.members()
    assert [len(m) for m in members] == bags.sizes.tolist()
    rows = torch.from_numpy(data.data[[image for bag in members for image in bag]] / 16).float()
    assert torch.equal(rows, bags.X)
    assert [
        any(data.target[image] == digits.TARGET for image in bag) for bag in members
    ] == bags.y.bool().tolist()


def test_plan_of_a_bag_is_that_of_the_bag_alone():
    spec = RunSpec.make(
        {"epochs": 1}, task="mil", dataset="digits", pooling="uotp-badmm-e", protocol="fair", fold=0, seed=0
    )
    found = training.fit(spec, lambda done, total: None)
    shares, chances, divergence = bag_plans._plans(found)
    share, chance = shares[3], chances[3]
    alone = found.test.subset([3])
    with torch.no_grad():
        P = found.model.pool.plan(found.model.features(alone.X))
        torch.testing.assert_close(share, P / P.sum(0))
        assert chance == pytest.approx(float(found.model(alone.X, alone.ptr).sigmoid()))
    assert divergence > 0


@pytest.mark.parametrize(
    ("words", "message"), [(["--seeds", "0"], "--seeds"), (["--workers", "x"], "--workers")]
)
def test_wrong_arguments(words, message, capsys):
    assert run(*words) == 2
    assert message in capsys.readouterr().err
