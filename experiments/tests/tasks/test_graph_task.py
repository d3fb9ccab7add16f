"""Runs on graphs: protocols, what a run must not see, and its settings."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.model_selection import KFold
from uotpool_experiments.datasets.graphs import Graphs
from uotpool_experiments.runs import sweep
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.tables.optimism import optimism_table, same_training
from uotpool_experiments.tables.results import results_table
from uotpool_experiments.tasks.fingerprint import NOT_HASHED, closure, fingerprint
from uotpool_experiments.tasks.graph import adgcl, supervised, task
from uotpool_experiments.tasks.graph.batches import Batches
from uotpool_experiments.tasks.graph.settings import Settings, make_pool
from uotpool_experiments.tasks.graph.task import GraphClassification
from uotpool_experiments.tasks.protocols import split
from uotpool_experiments.tasks.spec import Result, RunSpec, canonical

import uotpool
from experiments.tests.helpers import numbers, quiet

FAST = {"epochs": 2}


def rings_and_stars(count: int = 40) -> Graphs:
    """Class 0: rings; class 1: stars; of 4 to 8 nodes, with a node without edges at the end of every third."""
    index, ptr, edge_ptr = [], [0], [0]
    for g in range(count):
        size, start = 4 + g % 5, ptr[-1]
        pairs = {(i, (i + 1) % size) for i in range(size)} if g % 2 == 0 else {(0, i) for i in range(1, size)}
        both = sorted(pairs | {(j, i) for i, j in pairs})
        index += [(start + i, start + j) for i, j in both]
        ptr.append(start + size + (g % 3 == 0))
        edge_ptr.append(len(index))
    labels = torch.arange(ptr[-1]) % 2
    y = torch.arange(count) % 2
    edges = torch.tensor(index).T.contiguous()
    return Graphs("rings", labels, edges, torch.tensor(ptr), torch.tensor(edge_ptr), y, 2, 2)


@pytest.fixture
def graphs(monkeypatch) -> Graphs:
    made = rings_and_stars()
    monkeypatch.setattr(task, "_graphs", lambda name: made)
    return made


def spec(settings: dict[str, Any] | None = None, **changes: Any) -> RunSpec:
    choices = {"task": "graph", "dataset": "rings", "pooling": "mean", "protocol": "fair", "fold": 0, "seed": 0}
    return RunSpec.make(FAST if settings is None else settings, **(choices | changes))


def run(settings: dict[str, Any] | None = None, **changes: Any) -> Result:
    return GraphClassification().run(spec(settings, **changes), quiet)


# ---------------------------------------------------------------------------------------------------------
# runs

CASES = [
    ({}, "paper"),
    ({}, "fair"),
    ({"transductive": True}, "fair"),
    ({"backbone": "gin"}, "fair"),
    ({"features": "labels"}, "fair"),
]


@pytest.mark.parametrize(("settings", "protocol"), CASES)
@pytest.mark.parametrize("pooling", ["mean", "uotp-sinkhorn", "sagp"])
def test_a_run_and_the_same_run_again(graphs, pooling, settings, protocol):
    first = run(FAST | settings, pooling=pooling, protocol=protocol)
    assert numbers(run(FAST | settings, pooling=pooling, protocol=protocol)) == numbers(first)
    assert 0 <= first.metrics["accuracy"] <= 1
    assert 0 <= first.metrics["majority"] <= 0.5  # of 20 and 20: what is more in training is less in the test
    assert first.parameters > 0
    assert len(first.epochs) == 2
    canonical([first.metrics, first.epochs, first.details])  # can be stored
    if pooling == "uotp-sinkhorn":
        assert first.epochs[0]["divergence"] >= 0
        assert first.epochs[0]["mass"] > 0
        assert first.details["divergence"] >= 0
    if "backbone" not in settings:
        count = 10 if protocol == "paper" else 5 if settings.get("transductive") else 1
        assert len(first.details["fold_accuracy"]) == len(first.details["split"]) == count
        assert np.mean(first.details["fold_accuracy"]) == pytest.approx(first.metrics["accuracy"])


@pytest.mark.parametrize("settings", [{"epochs": 5}, {"epochs": 40, "lr": 0.01, "backbone": "gin"}])
def test_rings_are_told_from_stars(graphs, settings):
    assert run(settings | {"features": "constant"}, pooling="mean").metrics["accuracy"] == 1.0


def test_progress_is_reported(graphs):
    seen: list[tuple[int, int]] = []
    GraphClassification().run(spec({"epochs": 3}), lambda done, total: seen.append((done, total)))
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_poolings_start_from_the_same_encoder(graphs):
    states = [
        adgcl.make_model(spec(pooling=name), Settings(), Batches(graphs, "constant")).encoder.gin.state_dict()
        for name in ("mean", "set2set", "uotp-badmm-e")
    ]
    for state in states[1:]:
        assert all(torch.equal(value, states[0][name]) for name, value in state.items())


# ---------------------------------------------------------------------------------------------------------
# what a run must not see


def swap_labels(graphs: Graphs, which: np.ndarray) -> Graphs:
    y = graphs.y.clone()
    y[torch.from_numpy(which)] = 1 - y[torch.from_numpy(which)]
    return dataclasses.replace(graphs, y=y)


def test_labels_of_the_test_fold_decide_nothing(graphs, monkeypatch):
    """With inverted labels the same predictions are wrong where they were right."""
    parts = split(graphs.y.numpy(), "fair", 0, 0)
    turned = swap_labels(graphs, parts.test)
    monkeypatch.setattr(adgcl, "split", lambda y, *rest: parts)
    monkeypatch.setattr(supervised, "split", lambda y, *rest: parts)
    for settings in (FAST, FAST | {"backbone": "gin"}):
        monkeypatch.setattr(task, "_graphs", lambda name: graphs)
        right = run(settings)
        monkeypatch.setattr(task, "_graphs", lambda name: turned)
        wrong = run(settings)
        assert right.metrics["accuracy"] + wrong.metrics["accuracy"] == pytest.approx(1.0)
        assert right.details["epoch"] == wrong.details["epoch"]
        assert right.epochs == wrong.epochs


def test_inductive_training_does_not_see_the_test_graphs(graphs, monkeypatch):
    seen = []
    real = adgcl.Training

    def spy(spec, settings, model, batches):
        seen.append(batches.graphs)
        return real(spec, settings, model, batches)

    monkeypatch.setattr(adgcl, "Training", spy)
    run()
    run(FAST | {"transductive": True})
    run(protocol="paper")
    test = split(graphs.y.numpy(), "fair", 0, 0).test
    expected = graphs.subset(np.setdiff1d(np.arange(len(graphs)), test))
    for given, wanted in zip(seen, (expected, graphs, graphs), strict=True):
        assert torch.equal(given.edge_index, wanted.edge_index)
        assert torch.equal(given.ptr, wanted.ptr)


def test_references_of_a_pooling_come_from_training_graphs(graphs, monkeypatch):
    rows = []
    monkeypatch.setattr("uotpool.zoo.transport.WEGL.fit", lambda self, x: rows.append(len(x)))
    adgcl.make_model(spec(pooling="wegl"), Settings(), Batches(graphs.subset([0, 1, 2]), "constant"))
    assert rows == [int(graphs.ptr[3])]


def test_folds_of_the_papers_protocol():
    y = np.arange(60) % 2
    judge = adgcl.PaperJudge(y, 3)
    assert len(judge.folds) == 10
    assert sorted(np.concatenate([fold.test for fold in judge.folds])) == list(range(60))
    for fold, (_, test) in zip(judge.folds, KFold(10, shuffle=True, random_state=3).split(y), strict=True):
        assert np.array_equal(fold.test, test)
        assert len(fold.validation) == math.ceil(0.2 * 54)
        everything = np.concatenate([fold.train, fold.validation, fold.test])
        assert sorted(everything) == list(range(60))


def test_one_epoch_for_all_folds_by_validation():
    """Here embeddings tell the class in the second epoch only."""
    y = np.arange(60) % 2
    noise = np.random.default_rng(0)
    judge = adgcl.PaperJudge(y, 0)
    for signal in (0.0, 5.0, 0.0):
        judge.look(signal * y[:, None] + noise.normal(size=(60, 3)))
    metrics, details = judge.result()
    assert details["epoch"] == 2
    assert metrics["accuracy"] > 0.95
    assert details["last_accuracy"] < 0.8


def test_each_fair_fold_has_its_epoch():
    y = np.arange(60) % 2
    judge = adgcl.FairJudge(y, [adgcl._outer(y, 0, fold) for fold in range(5)])
    noise = np.random.default_rng(0)
    for signal in (0.0, 5.0, 0.0):
        judge.look(signal * y[:, None] + noise.normal(size=(60, 3)))
    metrics, details = judge.result()
    assert details["epochs"] == [2] * 5
    assert metrics["accuracy"] > 0.95
    tests = np.concatenate([fold.test for fold in judge.folds])
    assert sorted(tests) == list(range(60))


# ---------------------------------------------------------------------------------------------------------
# what goes wrong


@pytest.mark.parametrize(("settings", "protocol"), CASES[:4])
def test_a_run_that_diverges_says_the_larger_class(graphs, monkeypatch, settings, protocol):
    """No epoch is finite: the accuracy is that of the majority, and the run says so."""

    def broken(self, batch, weight=None):
        return batch.X.new_full((len(batch.X), 32), torch.nan) * self.mlps[0][0].weight.sum()

    monkeypatch.setattr("uotpool_experiments.tasks.graph.encoder.GIN.forward", broken)
    with uotpool.check(False):  # as outside the tests
        result = run(FAST | settings, protocol=protocol, pooling="add")
    assert result.details["diverged"] == 1
    assert result.details["epoch"] == 0
    assert result.metrics["accuracy"] == result.metrics["majority"]
    canonical([result.metrics, result.epochs, result.details])


# ---------------------------------------------------------------------------------------------------------
# settings and sweeps


def test_runs_of_a_seed():
    def count(protocol, **settings):
        return len(sweep.expand("graph", "MUTAG", "mean", protocol, 2, settings=settings))

    assert count("fair") == 10
    assert count("fair", transductive=True) == 2  # all folds in one
    assert count("paper") == 2
    assert count("fair", backbone="gin") == 10


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (
            {"protocol": "paper", "settings": {"backbone": "gin"}},
            "protocol: expected 'fair' with backbone 'gin'",
        ),
        (
            {"protocol": "paper", "settings": {"transductive": True}},
            "transductive: expected none under protocol",
        ),
        ({"settings": {"backbone": "gin", "transductive": True}}, "transductive: expected False with backbone"),
        ({"settings": {"backbone": "gcn"}}, "backbone: expected one of"),
        ({"settings": {"features": "degree"}}, "features: expected one of"),
        ({"settings": {"batch": 1}}, "batch"),
        ({"settings": {"width": 3}}, "settings: expected names among"),
        ({"dataset": "musk1"}, "expected the name of a TU data set"),
        ({"dataset": "../MUTAG"}, "expected the name of a TU data set"),
        ({"dataset": "mutag"}, "expected 'MUTAG', written exactly so"),
        ({"settings": {"dropout": 1.0}}, "dropout: expected a number >= 0 and < 1"),
    ],
)
def test_bad_choices_are_refused_before_a_sweep_starts(choices, message):
    with pytest.raises(ValueError, match=message):
        sweep.expand(**({"task": "graph", "dataset": "MUTAG", "pooling": "mean"} | choices))


def test_published_sinkhorn_has_the_alpha0_of_table_5():
    def alpha0(dataset, pooling="uotp-sinkhorn-paper", **pool):
        made = make_pool(spec(dataset=dataset, pooling=pooling), Settings(pool=pool))
        return float(made.coefficients()["alpha0"].detach()[0]), "alpha0" in made.raw_parameters()

    assert alpha0("IMDB-BINARY") == (1e12, False)
    assert alpha0("PROTEINS") == (2e3, False)
    assert alpha0("MUTAG")[1]  # learned
    assert alpha0("IMDB-BINARY", alpha0=7.0) == (7.0, False)
    assert alpha0("IMDB-BINARY", "uotp-sinkhorn")[1]  # the exact one needs no rescue


def test_epochs_of_table_4():
    assert [Settings().epochs_on(name) for name in ("MUTAG", "COLLAB", "REDDIT-BINARY")] == [20, 100, 150]
    assert Settings(backbone="gin").epochs_on("COLLAB") == 50
    assert Settings(epochs=3).epochs_on("COLLAB") == 3


def test_what_counts_for_the_fingerprint():
    used = closure(("uotpool_experiments.tasks.graph.task",)) - NOT_HASHED
    assert {
        "uotpool_experiments.tasks.graph.svm",
        "uotpool_experiments.tasks.graph.contrast",
        "uotpool_experiments.datasets.graphs",
    } <= used
    assert "uotpool_experiments.tasks.mil.task" not in used
    assert fingerprint("graph", "mean") != fingerprint("graph", "uotp-sinkhorn")


def test_a_data_set_without_node_labels(monkeypatch):
    made = dataclasses.replace(rings_and_stars(), x=None, num_node_labels=0)
    monkeypatch.setattr(task, "_graphs", lambda name: made)
    with pytest.raises(ValueError, match="features: expected 'constant', as rings has no node labels"):
        run(FAST | {"features": "labels"})


# ---------------------------------------------------------------------------------------------------------
# tables of such runs


def row(
    protocol: str, fold: int, accuracy: float, settings: dict[str, Any] | None = None, seed: int = 0
) -> Row:
    found = spec(settings or {}, dataset="MUTAG", protocol=protocol, fold=fold, seed=seed)
    return Row(found, "code", "done", 1, None, 1.0, 1.0, 1, {"accuracy": accuracy, "majority": 0.6}, {})


def test_optimism_of_graphs_compares_seeds():
    """Under "paper" a run is the mean of all folds, so it stands against the mean of the fair ones."""
    fair = [row("fair", fold, value) for fold, value in enumerate([0.6, 0.9, 0.9, 0.9, 0.95])]
    assert optimism_table([row("paper", 0, 0.85), *fair]).texts() == [["mean", "+0.00"]]


def test_which_runs_optimism_compares():
    """Under "paper" training is transductive; that of bags has the paper's configuration."""

    def kept(rows, fair):
        return [(r.spec.protocol, r.spec.options) for r in same_training(rows, fair)]

    rows = [row("paper", 0, 0.8), row("fair", 0, 0.8), row("fair", 0, 0.8, {"transductive": True})]
    assert kept(rows, {"transductive": True}) == [("paper", {}), ("fair", {"transductive": True})]
    assert kept(rows, {}) == [("paper", {}), ("fair", {})]
    slow = [row("paper", 0, 0.8), row("fair", 0, 0.8, {"lr": 5e-4})]
    assert kept(slow, {"lr": 5e-4}) == [("fair", {"lr": 5e-4})]  # not what the paper has for graphs
    bags = [dataclasses.replace(r, spec=dataclasses.replace(r.spec, task="mil")) for r in slow]
    assert kept(bags, {"lr": 5e-4}) == [("paper", {}), ("fair", {"lr": 5e-4})]


def test_a_table_says_its_settings_and_compares_only_like_with_published():
    def table(settings):
        return results_table([row("paper", 0, 0.85, settings), row("paper", 0, 0.87, settings, 1)], "paper")

    plain, short = table({}), table({"epochs": 5})
    assert plain.headings[1:3] == ["MUTAG", "MUTAG, published"]
    assert "published" not in " ".join(short.headings)
    assert "settings" not in plain.title
    assert short.title.endswith('settings {"epochs":5}')
    assert "over seeds" in plain.notes[0]
    assert plain.texts()[0][1] == "86.00 ± 1.41"
    assert results_table([row("paper", 0, 0.85)], "paper").texts()[0][1] == "85.00"  # one run has no deviation


def test_a_metric_that_these_runs_do_not_have():
    with pytest.raises(ValueError, match="metric: expected one that these runs have, got 'auc'"):
        results_table([row("paper", 0, 0.85)], "paper", "auc")


def test_folds_of_runs_that_have_none():
    with pytest.raises(ValueError, match="folds: expected 0"):
        sweep.expand("graph", "MUTAG", "mean", "paper", folds=[1])
