"""Bags of MNIST digits: what is in a bag, that no image is in two parts, and a run of a few epochs."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from uotpool_experiments.datasets import status
from uotpool_experiments.tasks import load
from uotpool_experiments.tasks.bags import drawing
from uotpool_experiments.tasks.bags.drawing import PROBLEMS, Pool, draw, problem
from uotpool_experiments.tasks.bags.task import Settings
from uotpool_experiments.tasks.seeding import seed_for
from uotpool_experiments.tasks.spec import RunSpec

needs_mnist = pytest.mark.skipif(not status(drawing.IMAGES).present, reason="mnist-5k is not at hand")


def pool(images=200):
    """The first feature of an image is its number, the second whether it is a 9."""
    target = np.arange(images) % 10 == 9
    return Pool(np.column_stack([np.arange(images), target]).astype(np.float32), target)


@pytest.mark.parametrize("size", [10, 50, 100])
def test_positive_bags_have_a_nine_and_others_none(size):
    bags = draw(pool(), problem(f"mnist-bags-{size}-50"), 300, seed=1)
    nines = torch.stack([part[:, 1].sum() for part in bags.X.split(bags.sizes.tolist())])
    assert bags.y.tolist() == [0, 1] * 150
    assert torch.equal((nines > 0).long(), bags.y)
    sizes = bags.sizes.double()
    assert abs(float(sizes.mean()) - size) < 4 * drawing.SPREADS[size] / 300**0.5
    assert float(sizes.std()) == pytest.approx(drawing.SPREADS[size], rel=0.2)
    share = float(nines[bags.y == 1].sum() / sizes[bags.y == 1].sum())
    assert share == pytest.approx(0.1 + 0.9 / size, rel=0.15)  # one 9 in any case, of the others a tenth
    again, other = (draw(pool(), problem(f"mnist-bags-{size}-50"), 300, seed=seed) for seed in (1, 2))
    assert torch.equal(bags.X, again.X)
    assert not torch.equal(bags.sizes, other.sizes)


def test_a_feature_is_a_mean_of_four_pixels():
    pixels = np.arange(2 * 4 * 4, dtype=np.uint8).reshape(2, 4, 4)
    found = drawing._features(pixels)
    assert found.shape == (2, 4)
    np.testing.assert_allclose(255 * found[0], [2.5, 4.5, 10.5, 12.5], rtol=1e-6)


def test_names():
    assert len(PROBLEMS) == 9
    assert (problem("mnist-bags-50-200").size, problem("mnist-bags-50-200").bags) == (50, 200)
    with pytest.raises(
        ValueError, match=r"dataset: expected one of mnist-bags-10-50, .*, got 'mnist-bags-10-7'"
    ):
        load("bags").check_dataset("mnist-bags-10-7")


def test_settings():
    assert [config["lr"] for config in Settings().configurations("fair")] == [5e-4, 2e-3]
    assert Settings(lr=0.1, weight_decay=0.0).configurations("fair") == [{"lr": 0.1, "weight_decay": 0.0}]


def spec(pooling="mean", **settings):
    choices = {"dataset": "mnist-bags-10-200", "protocol": "fair", "fold": 0, "seed": 0}
    return RunSpec.make(settings, task="bags", pooling=pooling, **choices)


@needs_mnist
def test_no_image_is_in_two_parts():
    parts = drawing.load("mnist-bags-10-50", partial(seed_for, spec()))
    assert [len(part) for part in parts] == [50, drawing.HELD_OUT, drawing.TEST]
    images = [{row.tobytes() for row in part.X.numpy()} for part in parts]
    assert not images[0] & images[1]
    assert not (images[0] | images[1]) & images[2]


@needs_mnist
def test_a_run():
    """It is the same each time, and the pooling that is trained learns something."""
    task, ticks = load("bags"), []
    short = {"epochs": 12, "lr": 2e-3}
    first, again = (
        task.run(spec("uotp", **short), lambda done, total: ticks.append(done / total)) for _ in range(2)
    )
    assert first.metrics == again.metrics
    assert first.metrics["auc"] > 0.8  # by chance: 0.5, with a standard error of 0.03
    assert 1 <= first.details["epoch"] <= 12
    assert first.details["configuration"] == {"lr": 2e-3, "weight_decay": 1e-4}
    assert ticks[-1] == 1.0


@needs_mnist
def test_a_run_that_diverges_says_the_larger_class():
    found = load("bags").run(spec(lr=1e30, epochs=1), lambda done, total: None)
    assert found.details["epoch"] == 0
    assert found.details["diverged"] == 1
    assert found.metrics["auc"] == 0.5
    assert found.metrics["accuracy"] == found.metrics["majority"]


def test_settings_that_a_pooling_has_no_use_for_are_refused():
    for settings in ({"pool_lr": 3.0}, {"pool_decay": True}, {"alpha0_of_spread": 0.1}):
        with pytest.raises(ValueError, match=f"{next(iter(settings))}: expected a UOT pooling"):
            load("bags").clean_settings("mean", settings)
