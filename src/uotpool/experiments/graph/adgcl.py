"""One run of AD-GCL: contrastive training without labels; after each epoch an SVM on the embeddings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.model_selection import KFold, train_test_split

from uotpool.experiments.data.graphs import Graphs
from uotpool.experiments.graph import svm
from uotpool.experiments.graph.batches import Batch, in_order, shuffled
from uotpool.experiments.graph.contrast import Contrasted, Trainer, ViewLearner
from uotpool.experiments.graph.encoder import GraphEncoder
from uotpool.experiments.graph.metrics import Ints, by_fold, class_metrics, majority, plan_facts, some_of
from uotpool.experiments.graph.models import LARGE_BATCH, make_encoder, make_gin
from uotpool.experiments.graph.settings import Settings
from uotpool.experiments.protocols import FOLDS, Split, split
from uotpool.experiments.spec import Report, Result, RunSpec
from uotpool.experiments.training import seed_for

PAPER_FOLDS = 10  # of the authors' code; their text says 5
PAPER_VALIDATION = 0.2

Embeddings = npt.NDArray[np.float64]


def run(spec: RunSpec, settings: Settings, graphs: Graphs, report: Report) -> Result:
    """Train, evaluate after each epoch, choose the epoch, test."""
    y = graphs.y.numpy()
    if spec.protocol == "paper":
        judge: _PaperJudge | _FairJudge = _PaperJudge(y, spec.seed)
    else:
        numbers = range(FOLDS) if settings.transductive else [spec.fold]
        judge = _FairJudge(y, [_outer(y, spec.seed, fold) for fold in numbers])
    inductive = spec.protocol == "fair" and not settings.transductive
    seen = graphs.subset(judge.folds[0].train) if inductive else graphs
    model = make_model(spec, settings, seen)
    shown = Batch.of(graphs, settings.features, some_of(graphs))
    curves: list[dict[str, Any]] = []
    facts: dict[str, Any] = {}
    diverged = False
    for epoch in training(spec, settings, model, seen, report):
        found = embed(model.encoder, graphs, settings.features)
        diverged = not np.isfinite(found).all() or not math.isfinite(epoch["contrast"] + epoch["dropped"])
        if diverged:
            break  # a parameter that is NaN stays so
        facts = plan_facts(model.encoder, shown)
        curves.append(epoch | judge.look(found) | facts)
    metrics, details = judge.result()
    details |= facts | {"split": [fold.packed(len(graphs)) for fold in judge.folds]}
    return Result(
        metrics=metrics,
        epochs=curves,
        details=details | {"diverged": int(diverged)},
        parameters=sum(p.numel() for p in model.parameters()),
    )


def make_model(spec: RunSpec, settings: Settings, graphs: Graphs) -> Contrasted:
    encoder = make_encoder(spec, settings, graphs)
    torch.manual_seed(seed_for(spec, "head"))
    return Contrasted(encoder)


def training(
    spec: RunSpec, settings: Settings, model: Contrasted, graphs: Graphs, report: Report
) -> Iterator[dict[str, Any]]:
    """Train epoch by epoch; yields the mean losses of each."""
    torch.manual_seed(seed_for(spec, "view"))
    view = ViewLearner(make_gin(settings, graphs))
    trainer = Trainer(model, view, settings.lr)
    order = torch.Generator().manual_seed(seed_for(spec, "order"))
    torch.manual_seed(seed_for(spec, "training"))
    epochs = settings.epochs_on(spec.dataset)
    for epoch in range(1, epochs + 1):
        steps = [trainer.step(batch) for batch in shuffled(graphs, settings.features, settings.batch, order)]
        contrast, dropped = np.mean([(step.contrast, step.dropped) for step in steps], axis=0)
        report(epoch, epochs)
        yield {"epoch": epoch, "contrast": round(float(contrast), 6), "dropped": round(float(dropped), 6)}


@torch.no_grad()
def embed(encoder: GraphEncoder, graphs: Graphs, kind: str) -> Embeddings:
    """(graphs, out_dim): before the projection head."""
    encoder.eval()
    found = torch.cat([encoder(batch) for batch in in_order(graphs, kind, LARGE_BATCH)])
    return found.double().numpy()


def _outer(y: Ints, seed: int, fold: int) -> Split:
    """Cross-validation within the training graphs makes the choices, so there is no hold-out."""
    parts = split(y, "fair", fold, seed)
    train = np.sort(np.concatenate([parts.train, parts.validation]))
    return Split(train, y[:0], parts.test, train)


class _PaperJudge:
    """As the authors' code: C = 1, 10 folds; of the rest 20 % for validation; one epoch for all, by validation.

    Unlike there, the folds stay the same from epoch to epoch. Validation graphs of one fold are test graphs of
    another, so the choice of the epoch has seen them.
    """

    def __init__(self, y: Ints, seed: int) -> None:
        self._y = y
        self.folds = []
        for rest, test in KFold(PAPER_FOLDS, shuffle=True, random_state=seed).split(y):
            train, validation = train_test_split(rest, test_size=PAPER_VALIDATION, random_state=seed)
            self.folds.append(Split(train, validation, test, train))
        self._epoch = 0
        self._best: tuple[float, int, list[dict[str, float]]] = (-1.0, 0, [])
        self._last = 0.0

    def look(self, X: Embeddings) -> dict[str, float]:
        self._epoch += 1
        scores, found = [], []
        for fold in self.folds:
            parts = {"validation": fold.validation, "test": fold.test}
            said = svm.classify(X, self._y, fold.train, parts)
            scores.append(float((said["validation"] == self._y[fold.validation]).mean()))
            found.append(class_metrics(said["test"], self._y[fold.test], self._y[fold.train]))
        score, self._last = float(np.mean(scores)), float(np.mean([f["accuracy"] for f in found]))
        if score > self._best[0]:
            self._best = (score, self._epoch, found)
        return {"validation_accuracy": round(score, 6), "test_accuracy": round(self._last, 6)}

    def result(self) -> tuple[dict[str, float], dict[str, Any]]:
        score, epoch, found = self._best
        if epoch == 0:
            found = [_by_majority(self._y, fold) for fold in self.folds]
        means, each = by_fold(found)
        facts = {"validation_accuracy": score, "last_accuracy": self._last} if epoch else {}
        return means, facts | {"epoch": epoch, "fold_accuracy": each["accuracy"]}


class _FairJudge:
    """Each outer fold by itself: cross-validation within its training graphs chooses C and epoch."""

    def __init__(self, y: Ints, folds: list[Split]) -> None:
        self._y = y
        self.folds = folds
        self._epoch = 0
        self._best: list[tuple[float, int, float, Ints]] = [(-1.0, 0, 0.0, y[:0])] * len(folds)

    def look(self, X: Embeddings) -> dict[str, float]:
        self._epoch += 1
        scores = []
        for i, fold in enumerate(self.folds):
            scored = svm.evaluate(X, self._y, fold.train, {"test": fold.test})
            scores.append(float(scored.accuracies.max()))
            if scores[-1] > self._best[i][0]:
                self._best[i] = (scores[-1], self._epoch, scored.C, scored.predictions["test"])
        return {"validation_accuracy": round(float(np.mean(scores)), 6)}

    def result(self) -> tuple[dict[str, float], dict[str, Any]]:
        found = [
            class_metrics(said, self._y[fold.test], self._y[fold.train])
            if epoch
            else _by_majority(self._y, fold)
            for fold, (_, epoch, _, said) in zip(self.folds, self._best, strict=True)
        ]
        means, each = by_fold(found)
        epochs = [epoch for _, epoch, _, _ in self._best]
        facts: dict[str, Any] = {"epoch": min(epochs), "fold_accuracy": each["accuracy"]}
        if min(epochs) > 0:
            facts |= {
                "epochs": epochs,
                "C": [c for _, _, c, _ in self._best],
                "validation_accuracy": float(np.mean([score for score, *_ in self._best])),
            }
        return means, facts


def _by_majority(y: Ints, fold: Split) -> dict[str, float]:
    """No epoch was finite: nothing was learned but which class is the largest."""
    said = np.full(len(fold.test), majority(y[fold.train]))
    return class_metrics(said, y[fold.test], y[fold.train])
