"""Regrets: known numbers give known regrets, failures and intervals, in the table and in the picture."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest
from uotpool_experiments.analysis.regret import REFERENCE, Regrets, regrets
from uotpool_experiments.analysis.samples import Sample
from uotpool_experiments.cli import run
from uotpool_experiments.datasets import images
from uotpool_experiments.datasets.errors import DatasetRefusedError
from uotpool_experiments.figures import regimes as figure
from uotpool_experiments.runs import sweep
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.tables import formats
from uotpool_experiments.tables.regret import regret_table
from uotpool_experiments.tasks.regimes.problems import REGIMES, names
from uotpool_experiments.tasks.spec import RunSpec

from uotpool.cli import make_parser
from uotpool.zoo import ENTRIES

ROOT = Path(__file__).parents[2]


def sample(*values):
    return Sample({(seed, 0): value for seed, value in enumerate(values)})


SCORES = {
    ("mean", "a"): sample(0.9, 0.8),
    ("max", "a"): sample(0.6, 0.6),
    ("uotp", "a"): sample(0.95, 0.95),
    ("mean", "b"): sample(0.5, 0.5),
    ("max", "b"): sample(0.7, 0.9),
    ("uotp", "b"): sample(0.7, 0.7),
}


def test_known_regrets():
    """The best is taken from the reference list alone, so a later pooling can be ahead of it."""
    found = regrets(SCORES)
    assert found.poolings == ["uotp", "max", "mean"]
    assert found.best_of == [2, 2]
    np.testing.assert_allclose(found.regret, [[-10, 10], [25, 0], [0, 30]], atol=1e-9)
    assert [round(one.value, 6) for one in found.mean] == [0.0, 12.5, 15.0]
    assert [round(one.value, 6) for one in found.worst] == [10.0, 25.0, 30.0]
    # The best median is 0.85 on a and 0.8 on b.
    assert found.failed.tolist() == [[0, 0], [2, 0], [0, 2]]
    assert found.share_failed(1).value == 0.5
    for one in (*found.mean, *found.worst):
        assert one.low <= one.value <= one.high or one.low <= one.high
    assert regrets(SCORES).mean == found.mean  # the bootstrap has a seed
    assert all(name in ENTRIES for name in REFERENCE)
    assert "uotp" not in REFERENCE


def test_only_common_runs_and_poolings_on_all_data_sets_count():
    more = SCORES | {("gem", "a"): sample(1.0, 1.0), ("mean", "a"): sample(0.9, 0.8, 0.0)}
    found = regrets(more)
    assert found.poolings == ["uotp", "max", "mean"]
    assert found.runs == [2, 2]
    with pytest.raises(ValueError, match="pooling: expected at least one with runs on all data sets"):
        regrets({("uotp", "a"): sample(1.0)})


def test_a_reference_pooling_counts_for_the_best_where_it_was_run():
    """So a pooling that is too dear for large sets does not vanish from the questions about small ones."""
    found = regrets(SCORES | {("gem", "a"): sample(1.0, 1.0), ("uotp-single", "a"): sample(1.0, 1.0)})
    assert found.poolings == ["uotp", "max", "mean"]
    assert found.best_of == [3, 2]
    np.testing.assert_allclose(found.regret, [[5, 10], [40, 0], [15, 30]], atol=1e-9)
    assert found.failed.tolist() == [[0, 0], [2, 0], [1, 2]]  # 0.8 is a failure where the best median is 1
    assert found.mean[2].low > regrets(SCORES).mean[2].low  # the draws know the better reference too
    # Runs that are not shared by all neither count nor take any away.
    other_seed = Sample({(7, 0): 1.0})
    for partial in ("gem", "uotp-single"):
        same = regrets(SCORES | {(partial, "a"): other_seed})
        assert (same.runs, same.best_of) == ([2, 2], [2, 2])
        np.testing.assert_array_equal(same.regret, regrets(SCORES).regret)


def test_intervals_of_failed_runs():
    """Wilson's interval for 0 of 10, 4 of 10; over data sets that differ, that of the draws is wider."""

    def shares(failed, runs):
        found = Regrets(["mean"], ["a"] * len(runs), np.zeros((1, 1)), np.array([failed]), runs, [], [], [1])
        return found.share_failed(0)

    none, some = shares([0], [10]), shares([4], [10])
    assert (none.value, none.low) == (0.0, 0.0)
    assert none.high == pytest.approx(0.2775, abs=1e-4)
    assert some.low <= 0.1682 + 1e-4
    assert some.high >= 0.6873 - 1e-4
    clustered = shares([10, 0, 0, 0, 0], [10] * 5)
    assert clustered.value == 0.2
    assert clustered.low == 0.0  # Wilson's for 10 of 50 begins at 0.11
    assert clustered.high >= 0.6


def rows(part="development", poolings=("mean", "max", "uotp")):
    random = np.random.RandomState(0)
    specs = [
        RunSpec("regimes", name, pooling, "fair", 0, seed)
        for name in names(part)[:4]
        for pooling in poolings
        for seed in range(3)
    ]
    return [
        Row(s, "code", "done", 1, None, 1.0, 1.0, 1, {"score": random.uniform(0.5, 1.0)}, {}) for s in specs
    ]


def test_the_table_has_a_line_for_each_pooling():
    text = formats.render(regret_table(rows(), "fair", "score"), "csv")
    lines = text.splitlines()
    assert lines[0] == 'pooling,mean regret,worst regret,worst on,"failed runs, %"'
    assert {line.split(",")[0] for line in lines[1:]} == {"mean", "max", "uotp"}
    some = formats.render(regret_table(rows(), "fair", "score", ["mean", "uotp", "gem"]), "csv").splitlines()
    assert sorted(some[1:]) == sorted(
        line for line in lines[1:] if not line.startswith("max")
    )  # the same regrets
    assert "gem was not run on all of them" in regret_table(rows(), "fair", "score", ["mean", "gem"]).notes
    with pytest.raises(
        ValueError, match=r"pooling: expected one with runs on all of the data sets, got \['gem'\]"
    ):
        regret_table(rows(), "fair", "score", ["gem"])
    note = formats.render(regret_table(rows(), "fair", "score"), "markdown")
    assert f"of 2 of the {len(REFERENCE)} reference poolings" in note


def test_the_picture_shows_the_parts_that_have_runs():
    both = rows() + rows("confirmation")
    parts = [(part, figure.of_part(both, part)) for part in ("development", "confirmation")]
    drawn = figure.picture([(part, found) for part, found in parts if found is not None])
    titled = [ax for ax in drawn.axes if ax.get_title()]
    assert len(titled) == 4
    assert len(drawn.axes) == 6  # each heat map has its bar of colours
    for ax in titled[1::2]:  # every pooling has its name beside its point, once
        assert sorted(text.get_text() for text in ax.texts) == ["max", "mean", "uotp"]
    assert not [text for text in titled[0].texts if text.get_text().startswith("-0")]
    assert [label.get_text() for label in drawn.axes[0].get_xticklabels()] == names("development")[:4]
    assert figure.of_part(both, "reserve") is None
    words = figure.in_words("development", parts[0][1])
    assert words[0] == "development: 3 poolings on 4 questions"
    assert any(line.startswith("uotp: ") for line in words)


def test_the_picture_has_the_questions_that_the_default_mean_and_max_were_run_on():
    """Runs of others on some questions neither add a question nor take one away."""
    every = names("development")[:4]
    few = [row for row in rows(poolings=("gem", "lse", "add", "gnp")) if row.spec.dataset in every[:3]]
    found = figure.of_part([*rows(), *few], "development")
    assert sorted(found.datasets) == sorted(every)
    assert set(found.poolings) == {"mean", "max", "uotp"}
    assert found.best_of == [6 if dataset in every[:3] else 2 for dataset in found.datasets]
    without = [row for row in rows() if row.spec.dataset != every[3] or row.spec.pooling != "max"]
    assert sorted(figure.of_part(without, "development").datasets) == sorted(every[:3])
    assert figure.of_part(few, "development") is None


def parsed(*words):
    return make_parser().parse_args(["run", *words])


def test_the_quick_runs():
    """Twelve poolings, five seeds, digits, and no bag of more than 50 samples in training."""
    chosen = run.choices_of(parsed("regimes", "--quick"))
    specs = sweep.expand("regimes", **chosen)
    assert len({spec.pooling for spec in specs}) == 12
    assert {spec.seed for spec in specs} == set(range(5))
    assert all(REGIMES[spec.dataset].images == "digits" for spec in specs)
    assert max(REGIMES[spec.dataset].size for spec in specs) == 50
    assert list(run.choices_of(parsed("regimes", "--quick", "--seeds", "1"))["seeds"]) == [0]
    with pytest.raises(ValueError, match="--quick: expected task regimes, got mil"):
        run.choices_of(parsed("mil", "--quick"))


def test_images_of_a_csv_file(tmp_path, monkeypatch):
    """One line per image: 4 pixels and the class."""
    monkeypatch.setattr(images, "MNIST_TEST", 4)
    path = tmp_path / "some.csv.gz"
    lines = [f"{i},{2 * i},0,255,{i % 2}" for i in range(12)]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    x_train, y_train, x_test, y_test = images._csv(path)
    assert x_train.shape == (8, 2, 2)
    assert x_test.shape == (4, 2, 2)
    assert sorted([*y_train, *y_test]) == [0] * 6 + [1] * 6
    assert {int(x[0, 1]) for x in (*x_train, *x_test)} == {2 * i for i in range(12)}
    for text in ("1,2,3,4,x", "1,2,3,1", "1,2,3,256,1", "1,2,3,-1,1"):
        path.write_bytes(gzip.compress(text.encode()))
        with pytest.raises(DatasetRefusedError, match="expected"):
            images._csv(path)
    path.write_bytes(b"no gzip")
    with pytest.raises(DatasetRefusedError, match="expected"):
        images._csv(path)


def test_the_table_of_the_docs_is_the_committed_one():
    """Which pooling when? The page shows the safest poolings of the confirmation part, and mean and max."""
    page = (ROOT / "docs/choosing.md").read_text()
    with (ROOT / "results/regimes/confirmation.csv").open(newline="") as file:
        _, *lines = csv.reader(file)
    shown = lines[:12] + [line for line in lines[12:] if line[0] in ("mean", "max")]
    assert "\n".join(f"| {' | '.join(line)} |" for line in shown) in page
    assert f"{len(lines)} poolings" in page
    mean, worst, _, failed = lines[[line[0] for line in lines].index("uotp")][1:]
    findings = (ROOT / "results/regimes/README.md").read_text()
    for cell in (mean, worst, failed.replace(" [", " % [")):
        assert cell in page.split("What we aimed at")[1]
        assert cell in findings
    with (ROOT / "results/regimes/confirmation_all.csv").open(newline="") as file:
        smaller = {line[0]: line[1:3] for line in csv.reader(file)}
    for pooling in ("uotp", "set2set"):  # of all poolings, on the questions with smaller bags
        cells = [cell.split()[0] for cell in smaller[pooling]]
        for text in (page, findings):
            assert " and ".join(cells) in " ".join(text.split())
    assert f"all {len(smaller) - 1} poolings" in " ".join(page.split())
