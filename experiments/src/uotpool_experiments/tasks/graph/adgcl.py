"""One run of AD-GCL: contrastive training without labels, and an SVM on the embeddings after each epoch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.model_selection import KFold, train_test_split

from uotpool_experiments.datasets.graphs import Graphs
from uotpool_experiments.tasks.graph import svm
from uotpool_experiments.tasks.graph.batches import Batch, Batches
from uotpool_experiments.tasks.graph.contrast import Contrasted, Trainer, ViewLearner
from uotpool_experiments.tasks.graph.encoder import GraphEncoder
from uotpool_experiments.tasks.graph.metrics import Ints, by_fold, class_metrics, majority, plan_facts, some_of
from uotpool_experiments.tasks.graph.models import LARGE_BATCH, make_batches, make_encoder, make_gin
from uotpool_experiments.tasks.graph.resume import Checkpoint
from uotpool_experiments.tasks.graph.settings import Settings
from uotpool_experiments.tasks.protocols import FOLDS, Split, split
from uotpool_experiments.tasks.seeding import seed_for
from uotpool_experiments.tasks.spec import Report, Result, RunSpec

PAPER_FOLDS = 10  # as in the authors' code; their text says 5
PAPER_VALIDATION = 0.2

Embeddings = npt.NDArray[np.float64]


def run(spec: RunSpec, settings: Settings, graphs: Graphs, report: Report, kept: Checkpoint) -> Result:
    """Train, evaluate after each epoch, choose the epoch, and test. A killed run continues where it was."""
    y = graphs.y.numpy()
    if spec.protocol == "paper":
        judge: PaperJudge | FairJudge = PaperJudge(y, spec.seed)
    else:
        numbers = range(FOLDS) if settings.transductive else [spec.fold]
        judge = FairJudge(y, [_outer(y, spec.seed, fold) for fold in numbers])
    inductive = spec.protocol == "fair" and not settings.transductive
    everything = make_batches(settings, graphs)
    seen = make_batches(settings, graphs.subset(judge.folds[0].train)) if inductive else everything
    model = make_model(spec, settings, seen)
    training = Training(spec, settings, model, seen)
    evaluated, shown = list(everything.in_order(LARGE_BATCH)), everything.batch(some_of(graphs))
    curves: list[dict[str, Any]] = []
    facts: dict[str, Any] = {}
    diverged = False
    state = kept.read()
    if state is not None:
        training.restore(state["training"])
        judge.restore(state["judge"])
        curves, facts = state["curves"], state["facts"]
    epochs = settings.epochs_on(spec.dataset)
    report(len(curves), epochs)
    while len(curves) < epochs:
        epoch = training.epoch()
        found = embed(model.encoder, evaluated)
        diverged = not np.isfinite(found).all() or not math.isfinite(epoch["contrast"] + epoch["dropped"])
        if diverged:
            break  # a parameter that is NaN stays so
        facts = plan_facts(model.encoder, shown)
        curves.append({"epoch": len(curves) + 1} | epoch | judge.look(found) | facts)
        if kept.is_due():
            now = {"training": training.state(), "judge": judge.state(), "curves": curves, "facts": facts}
            kept.write(now)
        report(len(curves), epochs)
    metrics, details = judge.result()
    details |= facts | {"split": [fold.packed(len(graphs)) for fold in judge.folds]}
    return Result(
        metrics=metrics,
        epochs=curves,
        details=details | {"diverged": int(diverged)},
        parameters=sum(p.numel() for p in model.parameters()),
    )


def make_model(spec: RunSpec, settings: Settings, batches: Batches) -> Contrasted:
    encoder = make_encoder(spec, settings, batches)
    torch.manual_seed(seed_for(spec, "head"))
    return Contrasted(encoder)


class Training:
    """Contrastive training of a model, epoch by epoch, with a state that can be saved and restored."""

    def __init__(self, spec: RunSpec, settings: Settings, model: Contrasted, batches: Batches) -> None:
        torch.manual_seed(seed_for(spec, "view"))
        self._trainer = Trainer(model, ViewLearner(make_gin(settings, batches.graphs)), settings.lr)
        self._batches, self._size = batches, settings.batch
        self._order = torch.Generator().manual_seed(seed_for(spec, "order"))
        torch.manual_seed(seed_for(spec, "training"))

    def epoch(self) -> dict[str, float]:
        """Train for one pass over the graphs; return the mean losses."""
        steps = [self._trainer.step(batch) for batch in self._batches.shuffled(self._size, self._order)]
        contrast, dropped = np.mean([(step.contrast, step.dropped) for step in steps], axis=0)
        return {"contrast": round(float(contrast), 6), "dropped": round(float(dropped), 6)}

    def state(self) -> dict[str, Any]:
        random = {"order": self._order.get_state(), "noise": torch.get_rng_state()}
        return {"trainer": self._trainer.state(), "random": random}

    def restore(self, state: dict[str, Any]) -> None:
        self._trainer.restore(state["trainer"])
        self._order.set_state(state["random"]["order"])
        torch.set_rng_state(state["random"]["noise"])


@torch.no_grad()
def embed(encoder: GraphEncoder, batches: Iterable[Batch]) -> Embeddings:
    """Return the embeddings (graphs, out_dim), before the projection head."""
    encoder.eval()
    rows = []
    for batch in batches:
        rows.append(encoder(batch))
        batch.forget_edges()
    return torch.cat(rows).double().numpy()


def _outer(y: Ints, seed: int, fold: int) -> Split:
    """Split without a hold-out: cross-validation within the training graphs makes the choices."""
    parts = split(y, "fair", fold, seed)
    train = np.sort(np.concatenate([parts.train, parts.validation]))
    return Split(train, y[:0], parts.test, train)


class PaperJudge:
    """Judges as the authors' code does: C = 1, 10 folds, 20 % of the rest for validation, one epoch
    for all folds.

    Validation chooses that epoch. Unlike in the authors' code, the folds stay the same from epoch
    to epoch. Validation graphs of one fold are test graphs of another, so the choice of the epoch
    has seen test graphs.
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

    def state(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "best": self._best, "last": self._last}

    def restore(self, state: dict[str, Any]) -> None:
        self._epoch, self._best, self._last = state["epoch"], state["best"], state["last"]

    def result(self) -> tuple[dict[str, float], dict[str, Any]]:
        score, epoch, found = self._best
        if epoch == 0:
            found = [_by_majority(self._y, fold) for fold in self.folds]
        means, each = by_fold(found)
        facts = {"validation_accuracy": score, "last_accuracy": self._last} if epoch else {}
        return means, facts | {"epoch": epoch, "fold_accuracy": each["accuracy"]}


class FairJudge:
    """Judges each outer fold by itself: cross-validation within its training graphs chooses C and epoch."""

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

    def state(self) -> dict[str, Any]:
        best = [(score, epoch, c, torch.from_numpy(said)) for score, epoch, c, said in self._best]
        return {"epoch": self._epoch, "best": best}

    def restore(self, state: dict[str, Any]) -> None:
        self._epoch = state["epoch"]
        self._best = [(score, epoch, c, said.numpy()) for score, epoch, c, said in state["best"]]

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
    """Return the metrics of a run without a finite epoch, which has only learned which class is the largest."""
    said = np.full(len(fold.test), majority(y[fold.train]))
    return class_metrics(said, y[fold.test], y[fold.train])
