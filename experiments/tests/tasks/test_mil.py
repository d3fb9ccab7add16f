"""Multi-instance learning: what a run does, and what it must not see."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from uotpool_experiments.datasets import CATALOG, Bags, BagStatistics, load_bags, verify
from uotpool_experiments.runs import sweep
from uotpool_experiments.runs.worker import execute, facts
from uotpool_experiments.tasks.fingerprint import GPU_KERNELS, NOT_HASHED, closure, task_module
from uotpool_experiments.tasks.mil import settings as settings_module
from uotpool_experiments.tasks.mil import training
from uotpool_experiments.tasks.mil.settings import Settings
from uotpool_experiments.tasks.mil.task import MultiInstance
from uotpool_experiments.tasks.protocols import split, unpack
from uotpool_experiments.tasks.spec import Result, canonical

import uotpool
from experiments.tests.datasets import helpers as files
from experiments.tests.helpers import mil_spec, numbers, quiet
from uotpool.zoo import ENTRIES

UNIFORM = {"alpha0": 1e10, "alpha1": 1e10, "alpha2": 1e10}
BASE = {"epochs": 2, "lr": 2e-3, "weight_decay": 1e-4}  # one configuration, also under "fair"


def run(settings=None, **changes) -> Result:
    return training.run(mil_spec(settings, **changes), quiet)


def train_part(spec) -> Bags:
    bags = load_bags("digits")
    part = bags.subset(split(bags.y.numpy(), spec.protocol, spec.fold, spec.seed).train)
    return training._standardised(part, training.CLIP, part)[0]


# ---------------------------------------------------------------------------------------------------------
# the same spec gives the same numbers

PROCESS = """
import json, sys
from uotpool_experiments.tasks.spec import RunSpec, canonical
from uotpool_experiments.runs.worker import execute
found = []
for text in json.loads(sys.stdin.read()):
    result = execute([RunSpec(**text)], lambda done, total: None)[0]
    found.append([result.metrics, result.epochs, result.details, result.parameters])
loaded = [name for name in sys.modules if name.startswith("uotpool")]
print(canonical([found, loaded]))
"""


def test_same_numbers_again_and_in_another_process_which_loads_only_what_counts():
    specs = [
        mil_spec(pooling=name, protocol=protocol)
        for name, protocol in [
            ("mean", "fair"),
            ("mean", "paper"),
            ("uotp-sinkhorn", "fair"),
            ("mixed", "fair"),
        ]
    ]
    torch.manual_seed(1)
    first = [canonical(numbers(training.run(spec, quiet))) for spec in specs]
    torch.manual_seed(2)
    assert [canonical(numbers(training.run(spec, quiet))) for spec in specs] == first
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", PROCESS],
        input=json.dumps([spec.as_dict() for spec in specs]),
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "2", "PYTHONHASHSEED": "5"},
    )
    there, loaded = json.loads(done.stdout)
    assert [canonical(found) for found in there] == first
    # The worker runs it, and `import uotpool` brings layers that no pooling is made of.
    layers = {f"uotpool.nn.{name}" for name in (*("images", "replace", "windows", "wrapper"),)}
    ran = {
        "uotpool",
        "uotpool.nn",
        "uotpool_experiments.runs",
        "uotpool_experiments.runs.worker",
    }
    ran |= layers
    ran |= {name for name in loaded if name.startswith(GPU_KERNELS)}  # these run on a GPU only
    counted = closure((task_module("mil"), "uotpool.zoo.simple", "uotpool.nn.pooling")) | NOT_HASHED
    assert set(loaded) - counted <= ran


def test_execute_measures_the_run():
    result = execute([mil_spec()], quiet)[0]
    assert 0 < result.seconds < 60
    assert 50 < result.peak_mib < 10_000
    assert result.parameters == 64 * 256 + 256 + 256 * 128 + 128 + 128 * 64 + 64 + 64 + 1
    canonical([result.metrics, result.epochs, result.details])  # can be stored
    assert {"uotpool", "python", "torch", "numpy", "scikit-learn"} <= set(json.loads(facts()["versions"]))


def test_progress_goes_from_the_first_epoch_of_the_first_configuration_to_the_last_of_the_last():
    seen: list[tuple[int, int]] = []
    training.run(mil_spec({"epochs": 3}), lambda done, total: seen.append((done, total)))
    assert {total for _, total in seen} == {12}
    assert sorted({done for done, _ in seen}) == list(range(1, 13))
    assert seen == sorted(seen)


def test_folds_seeds_and_protocols_give_other_numbers():
    specs = [{}, {"fold": 1}, {"seed": 1}, {"protocol": "paper"}, {"pooling": "max"}]
    assert len({canonical(run(BASE, **spec).epochs) for spec in specs}) == len(specs)


# ---------------------------------------------------------------------------------------------------------
# what is chosen, and by whom

GRID = [(5e-4, 5e-3), (2e-3, 5e-3), (5e-3, 5e-3), (2e-3, 1e-4)]


@pytest.mark.parametrize(
    ("protocol", "settings", "tried"),
    [
        ("fair", {}, GRID),
        ("paper", {}, GRID[:1]),
        ("fair", {"lr": 1e-2}, [(1e-2, 5e-3), (1e-2, 1e-4)]),
        ("fair", {"weight_decay": 0.0}, [(5e-4, 0.0), (2e-3, 0.0), (5e-3, 0.0)]),
        ("fair", {"lr": 1e-2, "weight_decay": 0.0}, [(1e-2, 0.0)]),
        ("paper", {"lr": 1e-2}, [(1e-2, 5e-3)]),
    ],
)
def test_configurations(protocol, settings, tried):
    result = run({"epochs": 1} | settings, protocol=protocol)
    assert [(curve["lr"], curve["weight_decay"]) for curve in result.epochs] == tried
    assert (result.details["configuration"]["lr"], result.details["configuration"]["weight_decay"]) in tried


@pytest.mark.parametrize("protocol", ["fair", "paper"])
def test_the_least_validation_loss_chooses(protocol):
    result = run({"epochs": 8}, protocol=protocol)
    losses = {
        (c["lr"], c["weight_decay"], i): x for c in result.epochs for i, x in enumerate(c["validation_loss"], 1)
    }
    lr, decay, epoch = min(losses, key=losses.__getitem__)
    assert result.details["configuration"] == {"lr": lr, "weight_decay": decay}
    assert result.details["epoch"] == epoch
    if protocol == "paper":  # the test fold itself chose
        assert result.metrics["loss"] == pytest.approx(min(losses.values()), abs=1e-6)
        accuracies = result.epochs[0]["validation_accuracy"]
        assert result.metrics["accuracy"] == pytest.approx(accuracies[epoch - 1], abs=1e-6)
    else:
        assert abs(result.metrics["loss"] - min(losses.values())) > 1e-6


@pytest.mark.parametrize("protocol", ["fair", "paper"])
def test_the_split_is_kept_with_the_run(protocol):
    y = load_bags("digits").y.numpy()
    parts = split(y, protocol, 3, 1)
    kept = run({"epochs": 1}, protocol=protocol, fold=3, seed=1).details["split"]
    for name in ("train", "validation", "test"):
        assert np.array_equal(unpack(kept[name], len(y)), np.sort(getattr(parts, name)))


def with_garbage(bags: Bags, which: np.ndarray) -> Bags:
    rows = torch.isin(bags.index, torch.from_numpy(which))
    garbage = 50 * torch.randn(bags.X.shape, generator=torch.Generator().manual_seed(9))
    return replace(bags, X=torch.where(rows[:, None], garbage, bags.X))


@pytest.mark.parametrize(
    ("pooling", "settings"),
    [
        ("mean", {"epochs": 3}),
        ("uotp-sinkhorn", {"epochs": 3}),
        ("wegl", BASE),
    ],  # it takes references from data
)
def test_under_fair_the_test_bags_do_not_reach_training(monkeypatch, pooling, settings):
    spec = mil_spec(settings, pooling=pooling, seed=2)
    clean = training.run(spec, quiet)
    bags = load_bags("digits")
    test = split(bags.y.numpy(), "fair", 0, 2).test
    monkeypatch.setattr(training, "_bags", lambda name: with_garbage(bags, test))
    spoilt = training.run(spec, quiet)
    assert canonical(spoilt.epochs) == canonical(clean.epochs)
    for name in ("configuration", "epoch", "split", *(["weights"] if pooling.startswith("uotp") else [])):
        assert spoilt.details[name] == clean.details[name]
    assert spoilt.metrics["loss"] != clean.metrics["loss"]
    assert spoilt.metrics["majority"] == clean.metrics["majority"]


def test_under_paper_they_do(monkeypatch):
    spec = mil_spec({"epochs": 3}, protocol="paper", seed=2)
    clean = training.run(spec, quiet)
    bags = load_bags("digits")
    test = split(bags.y.numpy(), "paper", 0, 2).test
    monkeypatch.setattr(training, "_bags", lambda name: with_garbage(bags, test))
    spoilt = training.run(spec, quiet)
    assert spoilt.epochs[0]["train_loss"] != clean.epochs[0]["train_loss"]  # by the scaling
    assert spoilt.epochs[0]["validation_loss"] != clean.epochs[0]["validation_loss"]


def test_under_fair_the_hold_out_scales_and_trains_nothing(monkeypatch):
    spec = mil_spec(BASE)
    bags = load_bags("digits")
    held = split(bags.y.numpy(), "fair", 0, 0).validation
    clean = training.run(spec, quiet)
    monkeypatch.setattr(training, "_bags", lambda name: with_garbage(bags, held))
    spoilt = training.run(spec, quiet)
    assert spoilt.epochs[0]["train_loss"] == clean.epochs[0]["train_loss"]
    assert spoilt.epochs[0]["validation_loss"] != clean.epochs[0]["validation_loss"]


def test_standardised():
    bags = load_bags("digits")
    part, other = bags.subset(range(100)), bags.subset(range(100, 160))
    scaled, there = training._standardised(part, float("inf"), part, other)
    constant = part.X.std(0) == 0
    assert 0 < constant.sum() < 64  # some pixels are always 0
    assert torch.all(scaled.X[:, constant] == 0)
    assert scaled.X.mean(0).abs().max() < 1e-5
    assert (scaled.X[:, ~constant].std(0, unbiased=False) - 1).abs().max() < 1e-4
    again = (other.X - part.X.mean(0)) / torch.where(constant, 1.0, part.X.std(0, unbiased=False))
    assert torch.allclose(there.X, again, atol=1e-6)


def test_a_feature_that_hardly_varies_in_training_is_clipped_under_fair(monkeypatch):
    """Else the few test bags in which it does vary have values of thousands, and decide the result."""
    bags = load_bags("digits")
    X = bags.X.clone()
    X[:, 0] = 1e-4 * torch.arange(len(X)) % 2
    fold = split(bags.y.numpy(), "fair", 0, 0)
    far = bags.subset(fold.test)
    X[bags.ptr[fold.test[0]]] = 50.0
    monkeypatch.setattr(training, "_bags", lambda name: replace(bags, X=X))
    seen = []
    original = training.BagClassifier.forward

    def forward(self, X, ptr):
        seen.append(float(X.abs().max()))
        return original(self, X, ptr)

    monkeypatch.setattr(training.BagClassifier, "forward", forward)
    training.run(mil_spec({"epochs": 1}), quiet)
    assert max(seen) == training.CLIP
    seen.clear()
    training.run(mil_spec({"epochs": 1}, protocol="paper"), quiet)
    assert max(seen) > training.CLIP  # as published
    assert len(far) > 0


# ---------------------------------------------------------------------------------------------------------
# the label in the last column of the files


@pytest.fixture
def only_label(tmp_path, monkeypatch):
    """A data set whose features say nothing, in a file whose last column is the label."""
    random = np.random.default_rng(0)
    sizes, labels = random.integers(2, 8, 120), np.arange(120) % 2
    features = [random.normal(size=(size, 5)) for size in sizes]
    content = files.mat_bytes(labels=labels, features=features)
    statistics = BagStatistics(5, 120, 60, 60, int(sizes.sum()), int(sizes.min()), int(sizes.max()))
    made = files.mil_entry(content, path="mil/only-label.mat", statistics=statistics)
    monkeypatch.setitem(CATALOG, "only-label", replace(made, name="only-label"))
    monkeypatch.setenv("UOTPOOL_DATA", str(tmp_path))
    monkeypatch.setenv("UOTPOOL_OFFLINE", "1")
    monkeypatch.setattr(verify, "_verified", set())
    files.put(tmp_path, "mil/only-label.mat", content)
    cached = training._bags
    cached.cache_clear()
    yield "only-label"
    cached.cache_clear()


@pytest.mark.parametrize("pooling", ["mean", "max", "uotp-sinkhorn"])
def test_the_label_in_the_file_does_not_reach_the_model(only_label, monkeypatch, pooling):
    settings = {"epochs": 15, "lr": 5e-3, "weight_decay": 0.0}
    runs = [run(settings, dataset=only_label, pooling=pooling, fold=fold) for fold in range(5)]
    assert np.mean([r.metrics["accuracy"] for r in runs]) == pytest.approx(0.5, abs=0.12)
    assert np.mean([r.metrics["auc"] for r in runs]) == pytest.approx(0.5, abs=0.12)
    bags = load_bags(only_label)
    leaky = replace(bags, X=torch.cat([bags.X, bags.y[bags.index].float()[:, None]], 1))
    monkeypatch.setattr(training, "_bags", lambda name: leaky)
    assert run(settings, dataset=only_label, pooling=pooling).metrics["accuracy"] == 1  # it would be seen


# ---------------------------------------------------------------------------------------------------------
# the model and its settings


def test_poolings_start_from_the_same_features_and_see_the_same_batches():
    """Mean pooling, and UOTP with weights that make it the mean, are one training."""
    mean = run({"epochs": 5}, pooling="mean")
    for name, more in [("uotp-sinkhorn", {}), ("uotp-badmm-e", {"rho": 1e10})]:
        same = run({"epochs": 5, "pool": UNIFORM | more}, pooling=name)
        for ours, theirs in zip(same.epochs, mean.epochs, strict=True):
            assert ours["train_loss"] == pytest.approx(theirs["train_loss"], abs=1e-4)
            assert ours["validation_loss"] == pytest.approx(theirs["validation_loss"], abs=1e-4)
        assert same.details["configuration"] == mean.details["configuration"]
        assert same.metrics == pytest.approx(mean.metrics, abs=1e-3)
        assert abs(same.details["divergence"]) < 1e-6


@pytest.mark.parametrize("pooling", MultiInstance().poolings())
def test_every_pooling_runs(pooling):
    if ENTRIES[pooling].needs_pyg:
        pytest.importorskip("torch_geometric")
    result = run({"epochs": 1}, protocol="paper", pooling=pooling)
    assert set(result.metrics) == {"accuracy", "balanced_accuracy", "auc", "loss", "majority"}
    assert all(map(math.isfinite, result.metrics.values()))
    assert result.details["diverged"] == 0
    canonical([result.metrics, result.epochs, result.details])


def test_poolings_are_those_without_edges():
    assert set(ENTRIES) - set(MultiInstance().poolings()) == {"sagp", "asap", "diffpool"}


def test_all_poolings_have_the_same_initial_backbone():
    train = train_part(mil_spec())
    models = [
        training.make_model(mil_spec(pooling=p), Settings(), train) for p in ("mean", "set2set", "attention")
    ]
    first, *others = [model.features.state_dict() for model in models]
    for other in others:
        assert all(torch.equal(first[name], other[name]) for name in first)
    heads = [m.head.weight for m in models if m.pool.out_dim == 64]
    assert len(heads) == 2
    assert torch.equal(*heads)


def test_backbone_is_the_papers():
    model = training.make_model(mil_spec(), Settings(), train_part(mil_spec()))
    linear = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == [
        (64, 256),
        (256, 128),
        (128, 64),
        (64, 1),
    ]
    defaults = Settings()
    assert (defaults.epochs, defaults.batch, defaults.dropout, defaults.hidden) == (50, 128, 0.5, 64)
    assert settings_module.GRID[0] == {"lr": 5e-4, "weight_decay": 5e-3}
    assert model.pool.out_dim == 64


def test_uotp_keeps_its_diagnostics():
    found = run(BASE, pooling="uotp-sinkhorn").details
    assert found["divergence"] > 1e-5
    assert found["mass"] == pytest.approx(1, abs=1e-4)
    assert found["spread"] > 0
    assert {name: len(values) for name, values in found["weights"].items()} == {
        "alpha0": 4,
        "alpha1": 4,
        "alpha2": 4,
    }
    assert "rho" in run(BASE, pooling="uotp-badmm-q").details["weights"]
    assert "divergence" not in run(BASE, pooling="mean").details


def test_divergence_is_larger_where_the_plan_is_sharper():
    found = [
        run(BASE | {"pool": {"alpha0": a}}, pooling="uotp-sinkhorn").details["divergence"]
        for a in (0.01, 1, 100)
    ]
    assert found == sorted(found, reverse=True)
    assert found[0] > 100 * found[2]


def initial_weights(settings) -> dict[str, list[float]]:
    spec = mil_spec(settings, pooling="uotp-sinkhorn")
    pool = training.make_model(spec, Settings.of(spec), train_part(spec)).pool
    assert isinstance(pool, uotpool.UOTPooling)
    return {name: w.tolist() for name, w in pool.coefficients().items()}


def test_pool_lr_is_a_multiple_of_lr_for_the_weights_of_the_pool_alone():
    start = torch.tensor(initial_weights(BASE)["alpha0"])

    def moved(**settings):
        weights = run(BASE | {"epochs": 3} | settings, pooling="uotp-sinkhorn").details["weights"]
        return float((torch.tensor(weights["alpha0"]) - start).abs().max())

    assert moved(pool_lr=0.0) < 1e-6
    assert moved() > 1e-4
    assert moved(pool_lr=1.0) == moved()
    assert moved(pool_lr=20.0) == pytest.approx(20 * moved(), rel=0.5)

    def rates(**settings):
        spec = mil_spec(settings, pooling="uotp-sinkhorn")
        model = training.make_model(spec, Settings.of(spec), train_part(spec))
        optimizer = training.make_optimizer(model, Settings.of(spec), {"lr": 1e-3, "weight_decay": 0.1})
        named = {id(p): name for name, p in model.named_parameters()}
        assert sum(len(group["params"]) for group in optimizer.param_groups) == len(named)
        return {named[id(p)]: (g["lr"], g["weight_decay"]) for g in optimizer.param_groups for p in g["params"]}

    for name, (lr, decay) in rates(pool_lr=20.0).items():
        own = name.startswith("pool.raw_")
        assert lr == pytest.approx(2e-2 if own else 1e-3), name
        assert decay == (0 if own else 0.1), name
    assert {lr for lr, _ in rates().values()} == {1e-3}


@pytest.mark.parametrize("multiple", [0.1, 1.0, 30.0])
def test_alpha0_of_spread(multiple):
    settings = BASE | {"alpha0_of_spread": multiple}
    spec = mil_spec(settings, pooling="uotp-sinkhorn")
    train = train_part(spec)
    model = training.make_model(spec, Settings.of(spec), train).eval()
    with torch.no_grad():
        spread = float(model.features(train.X).std())
    found = initial_weights(settings)
    assert found["alpha0"] == pytest.approx([multiple * spread] * 4, rel=1e-4, abs=2e-6)
    assert found["alpha1"] == pytest.approx(initial_weights(BASE)["alpha1"])
    kept = run(settings | {"pool_lr": 0.0}, pooling="uotp-sinkhorn").details["weights"]["alpha0"]
    assert kept == pytest.approx([multiple * spread] * 4, abs=1e-5)


def test_alpha0_of_spread_does_not_change_the_features():
    a = training.make_model(mil_spec(pooling="uotp-sinkhorn"), Settings(), train_part(mil_spec()))
    b = training.make_model(
        mil_spec(pooling="uotp-sinkhorn"), Settings(alpha0_of_spread=1.0), train_part(mil_spec())
    )
    for ours, theirs in zip(a.features.parameters(), b.features.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("pooling", ["mean", "uotp-sinkhorn", "uotp-sinkhorn-paper"])
def test_a_run_that_diverges_is_recorded(pooling):
    with uotpool.check(False):  # as outside of tests: else the pooling refuses the first NaN
        result = run({"epochs": 4, "lr": 1e30}, pooling=pooling)
    assert result.details["diverged"] == 2  # both configurations
    assert [curve["diverged"] for curve in result.epochs] == [True, True]
    assert result.metrics["accuracy"] == result.metrics["majority"]  # nothing but that was learned
    assert result.metrics["auc"] == 0.5
    assert all(map(math.isfinite, result.metrics.values()))
    canonical([result.metrics, result.epochs, result.details])  # no NaN: can be stored


def test_a_configuration_that_diverges_is_not_chosen(monkeypatch):
    monkeypatch.setattr(
        settings_module, "GRID", ({"lr": 1e30, "weight_decay": 0.0}, {"lr": 1e-3, "weight_decay": 0.0})
    )
    with uotpool.check(False):
        result = run({"epochs": 2})
    assert result.details["diverged"] == 1
    assert result.details["configuration"]["lr"] == 1e-3


def test_more_training_learns():
    result = run({"epochs": 40, "lr": 2e-3, "weight_decay": 1e-4}, pooling="max")
    assert result.metrics["auc"] > 0.8
    assert result.metrics["accuracy"] > 0.7
    assert result.metrics["majority"] == 0.5


# ---------------------------------------------------------------------------------------------------------
# refused before a sweep starts


def expand(settings, pooling="uotp-sinkhorn", **more):
    return sweep.expand("mil", "digits", pooling, settings=settings, **more)


def test_unknown_settings_are_refused_before_a_sweep_starts():
    assert len(expand({"epochs": 2})) == 5
    with pytest.raises(ValueError, match=r"settings: expected names among .*got 'epoch'"):
        expand({"epoch": 2})
    with pytest.raises((TypeError, ValueError), match="bogus"):
        expand({"pool": {"bogus": 1}})
    with pytest.raises((TypeError, ValueError), match="ratio: expected an option of 'mean'"):
        expand({"pool": {"ratio": 1}}, "mean")
    with pytest.raises(ValueError, match="K"):
        expand({"pool": {"K": -1}})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("epochs", 0), ("epochs", "many"), ("epochs", 2.5), ("batch", 0), ("lr", -1.0), ("lr", "fast")),
        *(("weight_decay", -1.0), ("dropout", 1.0), ("dropout", "half"), ("pool", 3), ("hidden", 0)),
        *(("pool_lr", -1.0), ("alpha0_of_spread", 0.0)),
    ],
)
def test_values_that_cannot_be_are_refused_before_a_sweep_starts(name, value):
    with pytest.raises((TypeError, ValueError), match=name):
        expand({name: value})


def test_settings_that_a_pooling_cannot_follow_are_refused_before_a_sweep_starts():
    with pytest.raises(ValueError, match="alpha0_of_spread: expected a UOT pooling"):
        expand({"alpha0_of_spread": 1.0}, "mean")
    with pytest.raises(ValueError, match="alpha0_of_spread: expected a UOT pooling with a learned alpha0"):
        expand({"alpha0_of_spread": 1.0, "pool": {"alpha0": 1.0}})


@pytest.mark.parametrize("pooling", ["mean", "uotp-sinkhorn-paper"])
def test_pool_lr_is_not_ignored_in_silence(pooling):
    """Either it is refused, or it does something."""
    try:
        expand({"pool_lr": 50.0}, pooling)
    except ValueError:
        return
    assert run(BASE | {"pool_lr": 50.0}, pooling=pooling).epochs != run(BASE, pooling=pooling).epochs


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"folds": 7}, "fold"),
        ({"folds": [5]}, "fold"),
        ({"folds": "3"}, "fold"),
        ({"seeds": [-1]}, "seed"),
        ({"seeds": 0}, "seed"),
        ({"seeds": "5"}, "seed"),
        ({"protocol": "honest"}, "protocol: expected one of"),
    ],
)
def test_folds_and_seeds_that_cannot_be_are_refused_before_a_sweep_starts(more, message):
    with pytest.raises((TypeError, ValueError), match=message):
        expand({}, **more)


def test_wrong_names_are_refused_before_a_sweep_starts():
    with pytest.raises(ValueError, match="nearest: 'musk"):
        sweep.expand("mil", "musk", "mean")
    with pytest.raises(ValueError, match="expected one for multi-instance learning, got 'MUTAG'"):
        sweep.expand("mil", "MUTAG", "mean")
    with pytest.raises(ValueError, match="did you mean 'mean'"):
        sweep.expand("mil", "digits", "meen")
    with pytest.raises(ValueError, match="task 'mil' can use, got 'sagp'"):
        sweep.expand("mil", "digits", "sagp")
    with pytest.raises(ValueError, match="task: expected one of"):
        sweep.expand("milk", "digits", "mean")
