"""Ranks over data sets, their interval, and what tests tell apart."""

from __future__ import annotations

import math
from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import pytest
from scipy import stats
from uotpool_experiments.analysis.ranking import Ranking, ranking
from uotpool_experiments.analysis.samples import Sample
from uotpool_experiments.figures import ranks as figure


@pytest.fixture(autouse=True)
def close_figures() -> Iterator[None]:
    yield
    plt.close("all")


def samples(table: dict[str, list[float]]):
    return {
        (p, f"d{i}"): Sample({(0, 0): value}) for p, values in table.items() for i, value in enumerate(values)
    }


def test_ranks_and_what_is_behind():
    found = ranking(samples({"a": [0.5, 0.6], "b": [0.9, 0.6], "c": [0.8, 0.9]}))
    assert found is not None
    assert found.poolings == ["c", "b", "a"]
    assert found.ranks.tolist() == [[2, 1, 3], [1, 2.5, 2.5]]
    assert found.mean.tolist() == [1.5, 1.75, 2.75]
    np.testing.assert_allclose(found.behind, [[0.1, 0, 0.4], [0, 0.3, 0.3]], atol=1e-12)


def test_less_is_better_for_a_loss():
    found = ranking(samples({"a": [0.5], "b": [0.9]}), better=-1)
    assert found is not None
    assert found.poolings == ["a", "b"]
    np.testing.assert_allclose(found.behind, [[0, 0.4]])


def test_only_data_sets_that_all_have_and_only_common_runs():
    table = samples({"a": [0.5, 0.6, 0.1], "b": [0.6, 0.5, 0.2], "c": [0.6, 0.9]})
    table["a", "d0"] = Sample({(0, 0): 0.5, (1, 0): 1.0})  # the others have no seed 1
    found = ranking(table)
    assert found is not None
    assert found.datasets == ["d0", "d1"]
    assert dict(zip(found.poolings, found.mean, strict=True)) == {"a": 2.5, "b": 2.25, "c": 1.25}
    assert ranking({("a", "x"): Sample({(0, 0): 0.9}), ("b", "y"): Sample({(0, 0): 0.8})}) is None
    assert ranking({}) is None
    apart = {("a", "d"): Sample({(0, 0): 0.5}), ("b", "d"): Sample({(1, 0): 0.5})}
    assert ranking(apart) is None


def test_interval_is_that_of_student_and_stays_among_ranks():
    ranks = np.array([[1.0, 2, 3], [1, 3, 2], [1, 2, 3], [2, 1, 3]])
    found = Ranking(["a", "b", "c"], ["w", "x", "y", "z"], ranks, np.zeros((4, 3)))
    intervals = found.interval()
    assert intervals is not None
    low, high = stats.t.interval(0.95, 3, ranks[:, 1].mean(), stats.sem(ranks[:, 1]))
    assert intervals[1] == (pytest.approx(max(1, low)), pytest.approx(min(3, high)))
    assert all(1 <= a <= b <= 3 for a, b in intervals)
    assert Ranking(["a", "b"], ["w"], np.array([[1.0, 2]]), np.zeros((1, 2))).interval() is None


def test_critical_difference_is_that_of_demsar():
    """Table 5a of Demšar (2006): q = 2.343 for three and 3.164 for ten classifiers."""
    for k, q in ((3, 2.343), (10, 3.164)):
        found = Ranking(
            [str(i) for i in range(k)], ["d"] * 14, np.tile(np.arange(1.0, k + 1), (14, 1)), np.zeros((14, k))
        )
        assert found.critical_difference() == pytest.approx(q * math.sqrt(k * (k + 1) / (6 * 14)), rel=1e-3)


def test_groups_join_what_is_not_told_apart():
    k, n = 4, 60
    ranks = np.tile(np.arange(1.0, k + 1), (n, 1))
    apart = Ranking(list("abcd"), ["d"] * n, ranks, np.zeros((n, k)))
    critical = apart.critical_difference()
    assert critical is not None
    assert critical < 1
    assert apart.groups() == []
    few = Ranking(list("abcd"), ["d"] * 8, ranks[:8], np.zeros((8, k)))
    critical = few.critical_difference()
    assert critical is not None
    assert 1 < critical < 2
    assert few.groups() == [(0, 1), (1, 2), (2, 3)]
    two = Ranking(list("abcd"), ["d"] * 2, ranks[:2], np.zeros((2, k)))
    assert two.groups() == [(0, 3)]


def test_places_share_ties():
    ranks = np.array([[1.0, 2.5, 2.5, 4.0]])
    assert Ranking(list("abcd"), ["d"], ranks, np.zeros((1, 4))).places() == ["1", "2-3", "2-3", "4"]


def test_friedman():
    ranks = np.tile(np.arange(1.0, 5), (6, 1))
    assert Ranking(list("abcd"), ["d"] * 6, ranks, np.zeros((6, 4))).friedman() < 0.01
    same = np.full((6, 4), 2.5)
    assert Ranking(list("abcd"), ["d"] * 6, same, np.zeros((6, 4))).friedman() is None


def test_diagram_and_words():
    found = ranking(
        samples(
            {
                "mean": [0.5, 0.6],
                "max": [0.9, 0.7],
                "uotp-sinkhorn": [0.8, 0.65],
                "uotp-badmm-e-paper": [0.1, 0.1],
            }
        )
    )
    assert found is not None
    axes = figure.diagram(found).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "max  1.0",
        "uotp-sinkhorn  2.0",
        "mean  3.0",
        "uotp-badmm-e-paper  4.0",
    ]
    words = figure.in_words(found)
    assert words[0] == "4 poolings on 2 data sets: d0, d1"
    assert words[2] == (
        "uotp-sinkhorn: mean rank 2.0 (95 % interval 2.0 to 2.0), place 2, on average 7.5 points behind the "
        "best of each data set"
    )
    assert "critical difference" in words[-1]
    assert figure.in_words(found, ["gem"])[0].endswith("; not on all of them, so left out: gem")
    assert [figure.kind(p) for p in found.poolings] == ["other", "exact", "other", "published"]


def test_names_from_data_are_drawn_as_they_are():
    odd = ["$\\bad$", "é" * 80, "mean"]
    found = ranking(samples({name: [0.1 * i, 0.2 * i] for i, name in enumerate(odd)}))
    assert found is not None
    drawn = figure.diagram(found)
    drawn.draw_without_rendering()
    labels = [label.get_text() for label in drawn.axes[0].get_yticklabels()]
    assert any(label.startswith("$\\bad$") for label in labels)
    assert max(map(len, labels)) < 45
