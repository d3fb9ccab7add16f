"""Means, tests, and the metrics below them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from uotpool_experiments.analysis.samples import Sample, samples
from uotpool_experiments.analysis.tests import Comparison, compare, holm, outcomes, together
from uotpool_experiments.tasks.mil.metrics import binary_metrics

from experiments.tests.helpers import row

# ---------------------------------------------------------------------------------------------------------
# metrics


def test_metrics_by_hand():
    logits = torch.tensor([2.0, -1.0, 0.5, -3.0, 1.0])
    y, train = torch.tensor([1, 0, 0, 0, 1]), torch.tensor([0, 0, 1])
    found = binary_metrics(logits, y, train)
    assert found["accuracy"] == pytest.approx(4 / 5)
    assert found["balanced_accuracy"] == pytest.approx((1 + 2 / 3) / 2)
    assert found["auc"] == 1.0  # every positive above every negative
    p = 1 / (1 + np.exp(-logits.double().numpy()))
    assert found["loss"] == pytest.approx(-np.mean(np.where(y.numpy() == 1, np.log(p), np.log(1 - p))))
    assert found["majority"] == pytest.approx(3 / 5)  # most training sets are 0
    assert binary_metrics(logits, y, 1 - train)["majority"] == pytest.approx(
        2 / 5
    )  # of the training, not the test


def test_metrics_of_no_opinion():
    found = binary_metrics(torch.zeros(4), torch.tensor([0, 1, 0, 1]), torch.tensor([0, 1]))
    assert (found["auc"], found["balanced_accuracy"]) == (0.5, 0.5)
    assert found["loss"] == pytest.approx(math.log(2))


# ---------------------------------------------------------------------------------------------------------
# samples


def sample(*values: float) -> Sample:
    """Make a sample with five folds per seed."""
    return Sample({(i // 5, i % 5): value for i, value in enumerate(values)})


def test_sample():
    found = sample(0.1, 0.4, 0.4, 0.7, 0.9, 0.3)
    assert found.mean == pytest.approx(2.8 / 6)
    assert found.std == pytest.approx(np.std([0.1, 0.4, 0.4, 0.7, 0.9, 0.3], ddof=1))
    assert (len(found), found.seeds) == (6, 2)
    assert (sample(0.3).mean, sample(0.3).std) == (0.3, 0.0)


def test_samples_are_by_pooling_and_data_set():
    rows = [
        row("mean", "musk1", {"accuracy": 0.5, "auc": 0.6}, seed=1, fold=2),
        row("mean", "musk1", {"accuracy": 0.7, "auc": 0.9}, seed=0, fold=2),
        row("max", "musk1", {"accuracy": 0.1, "auc": 0.2}),
        row("mean", "fox", {"accuracy": 0.2, "auc": 0.3}),
    ]
    found = samples(rows, "auc")
    assert set(found) == {("mean", "musk1"), ("max", "musk1"), ("mean", "fox")}
    assert found["mean", "musk1"].values == {(1, 2): 0.6, (0, 2): 0.9}


def test_holm_by_hand():
    """Each p is multiplied by the number of tests not yet decided, and is never less than the one before it."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


# ---------------------------------------------------------------------------------------------------------
# the corrected paired test

OURS = sample(0.80, 0.84, 0.78, 0.90, 0.86, 0.81, 0.83, 0.79, 0.88, 0.85)
THEIRS = sample(0.78, 0.80, 0.79, 0.85, 0.84, 0.77, 0.80, 0.78, 0.85, 0.80)


def differences() -> np.ndarray:
    return np.array(list(OURS.values.values())) - np.array(list(THEIRS.values.values()))


def test_compare_by_hand():
    """Nadeau and Bengio (2003): variance (1/J + n_test/n_train) s^2; with 5 folds, n_test/n_train = 1/4."""
    d = differences()
    t = d.mean() / math.sqrt((1 / 10 + 1 / 4) * d.var(ddof=1))
    found = compare(OURS, THEIRS)
    assert found is not None
    assert found.difference == pytest.approx(d.mean())
    assert found.p_value == pytest.approx(2 * (1 - stats.t.cdf(t, 9)), rel=1e-9)
    assert found.pairs == 10


def test_without_overlap_it_is_the_paired_t_test():
    found = compare(OURS, THEIRS, overlap=0.0)
    assert found is not None
    ours, theirs = list(OURS.values.values()), list(THEIRS.values.values())
    assert found.p_value == pytest.approx(stats.ttest_rel(ours, theirs).pvalue, rel=1e-6)
    corrected = compare(OURS, THEIRS)
    assert corrected is not None
    assert corrected.p_value > found.p_value


def test_compare_is_symmetric():
    one, other = compare(OURS, THEIRS), compare(THEIRS, OURS)
    assert one is not None
    assert other is not None
    assert (one.difference, one.p_value) == pytest.approx((-other.difference, other.p_value))
    assert (one.verdict, other.verdict) == ("win", "loss")


def test_compare_pairs_by_seed_and_fold():
    shuffled = Sample(dict(reversed(list(THEIRS.values.items()))))
    assert compare(OURS, shuffled) == compare(OURS, THEIRS)
    more = Sample(THEIRS.values | {(7, 0): 0.0})
    fewer = Sample({case: value for case, value in OURS.values.items() if case != (0, 0)})
    found = compare(fewer, more)
    assert found is not None
    assert found.pairs == 9
    assert found.difference == pytest.approx(differences()[1:].mean())


def test_compare_needs_two_common_runs():
    assert compare(sample(0.5), sample(0.4)) is None
    assert compare(Sample({(0, 0): 0.5, (0, 1): 0.5}), Sample({(1, 0): 0.5, (1, 1): 0.5})) is None


def test_verdicts():
    assert Comparison(0.1, 0.049, 5).verdict == "win"
    assert Comparison(-0.1, 0.049, 5).verdict == "loss"
    assert Comparison(0.1, 0.05, 5).verdict == "tie"
    assert Comparison(0.1, float("nan"), 5).verdict == "tie"


def test_equal_runs_tie():
    found = compare(OURS, OURS)
    assert found == Comparison(0.0, 1.0, 10)
    assert found.verdict == "tie"


def test_one_bag_more_in_each_of_two_folds_is_no_evidence():
    """Two equal differences have no variance, and say nothing of what a third would be."""
    found = compare(sample(0.5125, 0.6125), sample(0.5, 0.6))
    assert found is not None
    assert found.verdict == "tie"


def test_rounding_is_no_evidence():
    found = compare(sample(*[0.1 + 0.2] * 5), sample(*[0.3] * 5))
    assert found is not None
    assert found.verdict == "tie"


def test_tests_of_a_pooling_taken_together():
    found = {
        ("a", "x"): sample(0.9, 0.91, 0.92, 0.93, 0.94),
        ("b", "x"): sample(0.1, 0.11, 0.12, 0.131, 0.14),
        ("c", "x"): sample(0.9, 0.92, 0.91, 0.93, 0.95),
        ("b", "y"): sample(0.5, 0.6),  # a has no y
        ("c", "z"): sample(0.5),
        ("a", "z"): sample(0.6),  # one run only
    }
    tests = outcomes(found, "a")
    assert set(tests) == {("b", "x"), ("c", "x")}
    assert together(tests) == {("b", "x"): "win", ("c", "x"): "tie"}
    assert together(outcomes(found, "b"))["a", "x"] == "loss"
    assert together({}) == {}
