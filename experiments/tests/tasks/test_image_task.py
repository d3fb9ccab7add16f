"""Runs on images: recipes, what they train and see, and their settings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from uotpool_experiments.runs import sweep
from uotpool_experiments.tasks import checkpoints
from uotpool_experiments.tasks.fingerprint import NOT_HASHED, closure, fingerprint
from uotpool_experiments.tasks.image import features, loop, metrics, models, recipes, task
from uotpool_experiments.tasks.image.settings import Settings
from uotpool_experiments.tasks.image.task import ImageClassification
from uotpool_experiments.tasks.spec import Result, RunSpec, canonical

import uotpool
from experiments.tests.helpers import numbers, quiet

pytest.importorskip("transformers")

FAST = {"epochs": 2, "size": 8, "train_size": 200, "batch": 50}
TWO = FAST | {"recipe": "two-stage", "batch2": 50}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("UOTPOOL_CHECKPOINTS", str(tmp_path / "checkpoints"))
    monkeypatch.setattr(features, "_kept", {})
    return tmp_path / "checkpoints"


def spec(settings: dict[str, Any] | None = None, **changes: Any) -> RunSpec:
    choices = {
        "task": "image",
        "dataset": "digits",
        "pooling": "mean",
        "protocol": "fair",
        "fold": 0,
        "seed": 0,
    }
    return RunSpec.make(FAST if settings is None else settings, **(choices | changes))


def run(settings: dict[str, Any] | None = None, **changes: Any) -> Result:
    result = ImageClassification().run(spec(settings, **changes), quiet)
    result.details.pop("seconds_per_epoch", None)  # the only one that differs from run to run
    return result


# ---------------------------------------------------------------------------------------------------------
# runs


@pytest.mark.parametrize("settings", [FAST, TWO])
@pytest.mark.parametrize("pooling", ["mean", "uotp-badmm-e", "uotp-sinkhorn-paper"])
def test_a_run_and_the_same_run_again(folder, pooling, settings):
    first = run(settings, pooling=pooling)
    assert numbers(run(settings, pooling=pooling)) == numbers(first)
    assert set(first.metrics) == {"accuracy", "balanced_accuracy", "majority", "loss", "top5"}
    assert 0 <= first.metrics["accuracy"] <= first.metrics["top5"] <= 1
    assert len(first.epochs) == (2 if settings is FAST else 3)
    canonical([first.metrics, first.epochs, first.details])  # can be stored
    if pooling != "mean":
        assert first.details["divergence"] >= 0
        assert first.details["mass"] > 0
        assert "alpha0" in first.details["weights"]
        assert ("scale" in first.details) == (settings is TWO)
    left = [path.name.partition("-")[0] for path in folder.iterdir()]
    assert left == ([] if settings is FAST else ["stage"])


def test_digits_are_learned():
    result = run({"epochs": 6, "size": 8, "lr": 0.05}, pooling="uotp-sinkhorn")
    assert result.metrics["accuracy"] > 0.9
    assert result.epochs[-1]["train_loss"] < 0.5 * result.epochs[0]["train_loss"]


def test_progress_is_reported():
    for settings, count in ((FAST, 2), (TWO, 3)):
        seen: list[tuple[int, int]] = []
        ImageClassification().run(
            spec(settings, pooling="uotp-sinkhorn"), lambda done, total, seen=seen: seen.append((done, total))
        )
        assert seen == sorted(seen)
        assert set(seen) == {(done, count) for done in range(count + 1)}


def test_poolings_start_from_the_same_network():
    def state(pooling):
        made = spec(pooling=pooling)
        images = task._images("digits").of_size(200)
        job = recipes.Job.of(made, Settings.from_options(made.options), images, quiet)
        job.put_pool()
        return {n: v for n, v in job.network.state_dict().items() if "pooler" not in n or "embedder" in n}

    mean = state("mean")
    for pooling in ("attention", "uotp-badmm-q"):
        found = state(pooling)
        assert found.keys() == mean.keys()
        assert all(torch.equal(found[name], value) for name, value in mean.items())


def test_seeds_differ():
    assert run(seed=1).metrics["loss"] != run().metrics["loss"]


def test_bfloat16_is_near_float32():
    plain, half = run(pooling="uotp-sinkhorn"), run(FAST | {"precision": "bfloat16"}, pooling="uotp-sinkhorn")
    assert plain.epochs[0] != half.epochs[0]
    assert half.epochs[0]["train_loss"] == pytest.approx(plain.epochs[0]["train_loss"], rel=0.1)


def test_no_decay_of_the_weights_of_a_pooling():
    network = models.make("resnet-tiny", 1, 10, 8, small_stem=True, trained=False, weights=None)
    network.put(uotpool.AdaptiveUOTPool2d(64, scale=uotpool.Learned(0.0)))
    rest, weights = loop.make_optimizer(
        network, loop.Phase("x", 1, 2, lr=0.1, weight_decay=0.01, pool_lr=3)
    ).param_groups
    assert (rest["weight_decay"], weights["weight_decay"]) == (0.01, 0.0)
    assert weights["lr"] == pytest.approx(0.3)
    assert any(p is network.pool.pool.raw_scale for p in weights["params"])


def test_the_learning_rate_falls_along_a_cosine():
    phase = loop.Phase("x", 1, 2, lr=0.1)
    assert [phase.factor(step, 4) for step in range(5)] == pytest.approx(
        [1, 0.853553, 0.5, 0.146447, 0], abs=1e-6
    )


# ---------------------------------------------------------------------------------------------------------
# two stages


def test_only_the_pool_is_trained(monkeypatch):
    seen = []
    real = loop.train

    def spy(model, learning, source, phase, *rest):
        before = {name: value.clone() for name, value in model.state_dict().items()}
        out = real(model, learning, source, phase, *rest)
        changed = {n for n, value in model.state_dict().items() if not torch.equal(value, before[n])}
        seen.append((phase.name, changed))
        return out

    monkeypatch.setattr(recipes, "train", spy)
    result = run(TWO | {"lr2": 0.1}, pooling="uotp-sinkhorn")
    (one, first), (two, second) = seen
    assert (one, two) == ("one", "two")
    assert any("running_mean" in name for name in first)
    assert {name.partition(".")[0] for name in second} == {"pool"}
    assert "pool.pool.raw_scale" in second
    # It begins as what it replaces, and leaves that.
    assert result.details["accuracy_swapped"] == result.details["accuracy_before"]
    assert result.details["scale"] != [0.0, 0.0, 0.0]
    assert result.details["divergence"] > 1e-6
    assert [row["stage"] for row in result.epochs] == [1, 1, 2]


def test_a_drawn_start_changes_what_the_network_says():
    mean, drawn = (run(TWO | {"start": start}, pooling="uotp-sinkhorn") for start in ("mean", "drawn"))
    assert drawn.details["divergence"] > mean.details["divergence"]
    assert "scale" not in drawn.details


def test_the_control_trains_everything_further(monkeypatch):
    phases = []
    real = loop.train

    def spy(model, learning, source, phase, *rest):
        phases.append((phase, sum(p.numel() for p in model.parameters() if p.requires_grad)))
        return real(model, learning, source, phase, *rest)

    monkeypatch.setattr(recipes, "train", spy)
    result = run(TWO)
    (one, count), (two, same) = phases
    assert count == same == result.parameters
    assert (one.epochs, one.batch, one.lr, one.cosine) == (2, 50, 0.1, True)
    assert (two.epochs, two.batch, two.lr, two.cosine) == (1, 50, 0.001, False)
    assert "accuracy_swapped" not in result.details


def test_a_pool_without_parameters_is_only_put_in():
    result = run(TWO, pooling="max")
    assert result.metrics["accuracy"] == result.details["accuracy_swapped"]
    assert [row["stage"] for row in result.epochs] == [1, 1]


def test_stage_one_is_trained_once_for_all_poolings(monkeypatch, folder):
    names = []
    real = loop.train
    monkeypatch.setattr(recipes, "train", lambda *a: (names.append(a[3].name), real(*a))[1])
    first = run(TWO, pooling="uotp-sinkhorn")
    second = run(TWO, pooling="uotp-badmm-e")
    run(TWO | {"lr2": 0.01, "pool": {"K": 2}}, pooling="uotp-sinkhorn")
    assert names == ["one", "two", "two", "two"]
    assert first.details["accuracy_before"] == second.details["accuracy_before"]
    run(TWO | {"lr": 0.05}, pooling="uotp-sinkhorn")
    run(TWO, pooling="uotp-sinkhorn", seed=1)
    assert names[4:] == ["one", "two"] * 2
    assert len(list(folder.glob("stage-*.pt"))) == 3


@pytest.mark.parametrize("pooling", ["uotp-sinkhorn", "attention"])
def test_kept_features_give_what_the_plain_way_gives(monkeypatch, pooling):
    """A frozen network without random changes: computed once, or for each batch, or in the whole network."""
    kept = run(TWO, pooling=pooling)
    monkeypatch.setattr(features, "of", lambda *_: None)
    assert numbers(run(TWO, pooling=pooling)) == numbers(kept)

    def whole(network):  # pool and head as the network calls them
        return network

    monkeypatch.setattr(recipes, "Tail", whole)
    monkeypatch.setattr(recipes, "_inputs", lambda job, augment: (job.train, job.test))
    plain = run(TWO, pooling=pooling)
    assert plain.metrics["loss"] == pytest.approx(kept.metrics["loss"], rel=1e-6)
    assert plain.epochs[-1]["train_loss"] == pytest.approx(kept.epochs[-1]["train_loss"], rel=1e-6)


def test_features_are_kept_in_what_precision_there_is_room_for():
    shape = (1, 64, 2**10, 4)  # 2 ** 18 numbers: a MiB each
    assert features.dtype_within(10, shape, 10) is torch.float32
    assert features.dtype_within(9, shape, 10) is torch.float16
    assert features.dtype_within(4, shape, 10) is None


def test_half_precision_is_near(monkeypatch):
    full = run(TWO, pooling="uotp-sinkhorn")
    monkeypatch.setattr(features, "_kept", {})
    monkeypatch.setattr(features, "dtype_within", lambda *_: torch.float16)
    assert run(TWO, pooling="uotp-sinkhorn").metrics["loss"] == pytest.approx(full.metrics["loss"], rel=1e-3)


def test_random_changes_in_stage_two():
    plain, changed = (run(TWO | {"augment2": two}, pooling="uotp-sinkhorn") for two in (False, True))
    assert plain.details["accuracy_before"] == changed.details["accuracy_before"]
    assert plain.epochs[-1] != changed.epochs[-1]


def test_trained_weights_learn_a_new_head(tmp_path, monkeypatch):
    network = models.make("resnet18", 3, 5, 64, small_stem=False, trained=False, weights=None)
    network.net.save_pretrained(tmp_path / "weights")
    settings = {"arch": "resnet18", "weights": str(tmp_path / "weights"), "size": 32}
    trained = []
    real = loop.train

    def spy(model, *rest):
        trained.append(sum(p.numel() for p in model.parameters() if p.requires_grad))
        return real(model, *rest)

    monkeypatch.setattr(recipes, "train", spy)
    result = run(TWO | settings | {"train_size": 50}, pooling="uotp-sinkhorn")
    assert trained == [512 * 10 + 10, 512 + 12]
    assert result.details["accuracy_swapped"] == result.details["accuracy_before"]
    run(TWO | settings | {"train_size": 50}, pooling="mean")
    assert trained[2:] == [512 * 10 + 10]  # stage one was kept, and goes on
    with pytest.raises(ValueError, match="head: expected 'new', as the trained network has 5 classes"):
        run(TWO | settings | {"head": "kept"})


# ---------------------------------------------------------------------------------------------------------
# protocols


def test_under_fair_the_test_images_are_looked_at_once(monkeypatch):
    calls = []
    real = loop.predict
    monkeypatch.setattr(recipes, "predict", lambda *a: (calls.append(1), real(*a))[1])
    assert "test_accuracy" not in run().epochs[0]
    assert len(calls) == 1


def test_under_paper_the_best_epoch_counts():
    result = run(FAST | {"epochs": 3}, protocol="paper")
    each = [row["test_accuracy"] for row in result.epochs]
    assert result.metrics["accuracy"] == max(each)
    assert result.details["epoch"] == each.index(max(each)) + 1
    assert result.details["last_accuracy"] == each[-1]
    assert run(FAST | {"epochs": 3}).metrics["accuracy"] == each[-1]


def test_a_run_that_diverges_goes_back(monkeypatch):
    """It goes back to the last finite epoch; here there is none, and the network is as it began."""
    real = loop.cross_entropy
    monkeypatch.setattr(loop, "cross_entropy", lambda *a, **k: real(*a, **k) * torch.nan)
    result = run()
    assert result.details["diverged"] == 1
    assert result.epochs == []
    canonical([result.metrics, result.epochs, result.details])


def test_metrics():
    """Against counts by hand: classes 0 and 1, six in all, one image without finite logits."""
    logits = torch.eye(6)[[0, 0, 1, 2]] - 0.01 * torch.arange(6)
    y, train_y = torch.tensor([0, 0, 0, 1]), torch.tensor([1, 1, 0])
    found = metrics.class_metrics(logits, y, train_y)
    assert found["accuracy"] == 0.5
    assert found["balanced_accuracy"] == pytest.approx((2 / 3 + 0) / 2)
    assert found["majority"] == 0.25
    assert found["top5"] == 1.0
    assert found["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(logits.double(), y)))
    logits[0, 0] = torch.nan
    found = metrics.class_metrics(logits, y, train_y)
    assert found["accuracy"] == 0.25
    assert "loss" not in found
    assert "top5" not in metrics.class_metrics(logits[:, :5], y, train_y)


# ---------------------------------------------------------------------------------------------------------
# settings and sweeps


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"settings": {"arch": "vgg"}}, "arch: expected one of 'resnet-tiny'"),
        ({"settings": {"recipe": "one-stage"}}, "recipe: expected one of"),
        ({"settings": {"epochs": 0}}, "epochs"),
        ({"settings": {"start": "max"}}, "start: expected one of"),
        ({"settings": {"precision": "float16"}}, "precision: expected one of"),
        ({"settings": {"momentum": 1.0}}, "momentum: expected a number >= 0 and < 1"),
        ({"settings": {"head": "kept"}}, "head: expected 'new' without trained weights"),
        ({"settings": {"weights": "x"}}, "weights: expected none but with recipe 'two-stage'"),
        (
            {"settings": {"weights": "nowhere", "recipe": "two-stage", "arch": "resnet18"}},
            "weights: expected a folder with",
        ),
        ({"settings": {"pool": {"start": "mean"}}}, "pool: expected no start"),
        ({"settings": {"pool": {"K": 2}}, "pooling": "max"}, "K: expected an option of 'max'"),
        ({"settings": {"width": 3}}, "settings: expected names among"),
        ({"pooling": "covariance"}, "pooling: expected one that task 'image' can use"),
        ({"dataset": "musk1"}, "dataset: expected one of digits"),
        ({"folds": [1]}, "folds: expected 0"),
    ],
)
def test_bad_choices_are_refused_before_a_sweep_starts(choices, message):
    with pytest.raises(ValueError, match=message):
        sweep.expand(**({"task": "image", "dataset": "digits", "pooling": "mean"} | choices))


def test_one_run_of_a_seed():
    found = sweep.expand("image", "digits", ["mean", "exact"], seeds=3, settings={"lr": 0.1, "epochs": 5})
    assert len(found) == 12
    assert {s.settings for s in found} == {'{"epochs":5}'}


def test_sizes():
    assert Settings().size_of("digits", 8) == 16
    assert Settings().size_of("fashion-mnist", 28) == 28
    assert Settings(arch="efficientnet-lite0").size_of("cifar10-subset", 32) == 128
    assert Settings(arch="resnet18").size_of("./photos", None) == 224
    assert Settings(size=64).size_of("digits", 8) == 64
    assert [Settings(epochs=n).stage_two_epochs for n in (5, 20, 100)] == [1, 2, 10]


def test_what_counts_for_the_fingerprint():
    used = closure(("uotpool_experiments.tasks.image.task",)) - NOT_HASHED
    assert {
        "uotpool_experiments.tasks.image.loop",
        "uotpool_experiments.tasks.image.models",
        "uotpool_experiments.datasets.images",
    } <= used
    assert (
        not {
            "uotpool_experiments.tasks.mil.task",
            "uotpool_experiments.tasks.graph.task",
            "uotpool_experiments.tasks.image.checkpoints",
        }
        & used
    )
    assert {
        "uotpool.nn.images",
        "uotpool.nn.pooling",
        "uotpool.nn.windows",
    } <= used  # of the local pools of "cnn"
    assert len({fingerprint("image", name) for name in ("mean", "max", "uotp-sinkhorn")}) == 3


def test_a_checkpoint_that_is_broken_is_named(folder):
    path = checkpoints.folder() / "x.pt"
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match=r"x\.pt: expected a checkpoint of uotpool.*Delete it"):
        checkpoints.read(path)
