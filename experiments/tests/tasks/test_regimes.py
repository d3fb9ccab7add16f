"""Regimes ask what they say, from images that no two parts share; a seed comes out the same in any company."""

from __future__ import annotations

import numpy as np
import pytest
from uotpool_experiments.runs.executors import Failed, Finished, LocalExecutor, Started
from uotpool_experiments.runs.executors.base import batches, quietly
from uotpool_experiments.tasks import load
from uotpool_experiments.tasks.regimes import images, training
from uotpool_experiments.tasks.regimes.bags import draw
from uotpool_experiments.tasks.regimes.problems import PARTS, REGIMES, names, regime
from uotpool_experiments.tasks.spec import RunSpec

from experiments.tests.helpers import mil_spec, numbers, quiet

SHORT = {"steps": 20, "bags": 128, "lrs": [0.01]}


def spec(pooling="mean", seed=0, dataset="digits-presence-10", settings=SHORT):
    choices = {"task": "regimes", "dataset": dataset, "protocol": "fair", "fold": 0}
    return RunSpec.make(settings, pooling=pooling, seed=seed, **choices)


def test_the_parts_share_no_question():
    """A question is about images, classes and a scalar; nothing that a design was chosen by may judge it."""
    asked = {part: {(r.images, r.classes, r.scalar) for r in map(regime, names(part))} for part in PARTS}
    assert all(asked.values())
    for part in PARTS:
        for other in set(PARTS) - {part}:
            assert not asked[part] & asked[other]
    images_of = {part: {r.images for r in map(regime, names(part))} for part in PARTS}
    assert not images_of["development"] & images_of["confirmation"]
    assert {r.family for r in map(regime, names("development"))} == {r.family for r in REGIMES.values()}
    assert all(name == found.name for name, found in REGIMES.items())


@pytest.fixture(scope="module")
def pool():
    return images.pools("digits", "brightness", 0)[0]


def counts_of(question, pool, size=None, bags=400):
    """Return the labels, and the counts of each class of the question, one row per bag."""
    drawn = draw(question, pool, bags, size or question.size, seed=1)
    assert drawn.members.shape == (bags, size or question.size)
    found = pool.labels[drawn.members]
    return drawn.y.astype(bool), np.stack([(found == kind).sum(1) for kind in question.classes], 1)


def test_half_of_the_bags_are_positive_and_have_what_the_question_is_about(pool):
    for rate in (10, 50, 500):
        y, count = counts_of(regime(f"digits-presence-{rate}"), pool)
        assert y.mean() == 0.5
        assert (count[:, 0] == y).all()
    for name, inside in (
        ("majority", lambda share: share > 0.5),
        ("fifth", lambda share: share > 0.2),
        ("between", lambda share: (share > 0.3) & (share < 0.7)),
    ):
        for size in (20, 200):
            y, count = counts_of(regime(f"digits-{name}"), pool, size)
            assert (inside(count[:, 0] / size) == y).all(), (name, size)
            assert len(np.unique(count[:, 0])) > 5  # many shares, also near the threshold
    y, count = counts_of(regime("digits-conjunction"), pool)
    assert (((count[:, 0] == 1) & (count[:, 1] > 10)) == y).all()
    alone = count[~y]  # neither of the two tells the label
    assert ((alone[:, 0] == 1) & (alone[:, 1] < 10)).any()
    assert ((alone[:, 0] == 0) & (alone[:, 1] > 10)).any()
    for needed, of in ((2, 3), (3, 4)):
        y, count = counts_of(regime(f"digits-kinds-{needed}-of-{of}"), pool)
        assert (((count > 0).sum(1) >= needed) == y).all()
        assert (count.sum(1) == 2 * of).all()  # their number tells nothing


def test_the_order_in_a_bag_tells_nothing(pool):
    question = regime("digits-presence-20")
    drawn = draw(question, pool, 2000, 20, seed=0)
    places = (pool.labels[drawn.members[1::2]] == question.classes[0]).argmax(1)
    assert np.bincount(places, minlength=20).min() > 20  # 50 expected, and 20 is 4 standard deviations less


def test_values_are_statistics_of_the_scalar_that_the_features_hold():
    train, _, test = images.pools("digits", "brightness", 3)
    design = np.column_stack([train.features, np.ones(len(train.labels))])
    weights, *_ = np.linalg.lstsq(design, train.scalar, rcond=None)
    predicted = np.column_stack([test.features, np.ones(len(test.labels))]) @ weights
    np.testing.assert_allclose(predicted, test.scalar, atol=1e-4)
    for family, statistic in (("mean", np.mean), ("max", np.max), ("range", np.ptp)):
        drawn = draw(regime(f"digits-{family}"), test, 50, 20, seed=0)
        np.testing.assert_allclose(drawn.y, statistic(test.scalar[drawn.members], axis=1))
    drawn = draw(regime("digits-quantile"), test, 50, 20, seed=0)
    below = (test.scalar[drawn.members] <= drawn.y[:, None]).mean(1)
    assert ((below >= 0.85) & (below <= 0.95)).all()


def test_training_validation_and_test_have_images_of_their_own():
    parts = images.pools("digits", "", 0)
    assert [len(part.labels) for part in parts] == [898, 360, 539]  # of 1797
    rows = {tuple(row) for part in parts for row in part.features.round(5)}
    assert len(rows) == 1797
    other = images.pools("digits", "", 1)
    assert not np.array_equal(parts[0].labels, other[0].labels)
    np.testing.assert_allclose(parts[0].features.std(0), 1.0, rtol=1e-3)


@pytest.mark.parametrize("pooling", ["mean", "half-mean-max", "gated-mixed", "gem", "uotp-sinkhorn", "wegl"])
def test_a_seed_comes_out_the_same_alone_and_among_others(pooling):
    together = training.run([spec(pooling, seed) for seed in range(3)], quiet)
    alone = training.run([spec(pooling, 1)], quiet)
    assert numbers(alone[0]) == numbers(together[1])
    assert together[0].metrics != together[1].metrics


def test_a_model_that_diverges_keeps_its_last_good_state():
    wild = training.run([spec("add", settings=SHORT | {"lrs": [1e30]})], quiet)[0]
    assert wild.details["diverged"] > 0
    assert 0 <= wild.metrics["score"] <= 1


def test_a_batch_goes_through_a_worker(tmp_path):
    seeds = [spec("max", seed) for seed in range(3)]
    events = list(LocalExecutor(1).run(seeds))
    assert [e for e in events if isinstance(e, Started)] == [Started(seeds[0], others=2)]
    done = {event.spec: numbers(event.result) for event in events if isinstance(event, Finished)}
    assert list(done) == seeds
    assert done[seeds[2]] == numbers(training.run([seeds[2]], quiet)[0])


def test_only_runs_that_differ_in_their_seeds_are_done_together():
    few = [spec("mean", 0), spec("max", 0), spec("mean", 1), mil_spec(seed=0), mil_spec(seed=1)]
    assert batches(few) == [(few[0], few[2]), (few[1],), (few[3],), (few[4],)]
    many = [spec("mean", seed) for seed in range(23)]
    assert [len(batch) for batch in batches(many)] == [10, 10, 3]
    assert batches([]) == []


def test_what_fails_fails_for_every_run_of_a_batch(monkeypatch):
    def broken(specs, report):
        raise RuntimeError("it broke")

    monkeypatch.setattr(training, "run", broken)
    events = quietly((spec(seed=0), spec(seed=1)))
    assert [type(event) for event in events] == [Failed, Failed]
    assert all("it broke" in event.error for event in events)


def test_refusals():
    task = load("regimes")
    with pytest.raises(ValueError, match=r"dataset: expected a regime, such as digits-presence-20.*got"):
        task.check_dataset("digits-presense-20")
    with pytest.raises(ValueError, match="protocol: expected fair"):
        task.check_protocol("paper", {})
    for settings, message in (
        ({"lrs": []}, "lrs: expected a list of learning rates"),
        ({"lrs": [0.0]}, "lrs: expected"),
        ({"steps": 3}, "steps: expected"),
        ({"bags": 1}, "bags: expected"),
        ({"pool": 3}, "pool: expected a table"),
        ({"pool": {"nope": 1}}, "nope: expected"),
    ):
        with pytest.raises(ValueError, match=message):
            task.clean_settings("mean", settings)
