"""The SVM that judges graph embeddings after each epoch: all C and folds at once, against scikit-learn."""

from __future__ import annotations

import warnings

import torch
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from uotpool_experiments.tasks.graph import svm

from bench.rows import Case, Comparison, speedup
from bench.session import Session
from bench.timing import Call

NOTE = (
    "one evaluation: StandardScaler, C out of 7 by 5-fold cross-validation, a fit, a prediction; scikit-learn "
    "as make_pipeline(StandardScaler(), GridSearchCV(LinearSVC(dual=False), ...)), which stops at 1000 "
    "iterations. One thread"
)
EVALUATION, CANDIDATE, PEER = "evaluation", "tasks/graph/svm.py", "scikit-learn"


def measure(session: Session) -> list[Comparison]:
    torch.set_num_threads(1)
    sets = {"wine": load_wine, "breast cancer": load_breast_cancer}
    rows = []
    for name in session.track(list(sets)[: 1 if session.quick else None], "svm"):
        X, y = sets[name](return_X_y=True)
        seconds = session.measure({CANDIDATE: _ours(X, y), PEER: _peer(X, y)}, 1)
        size = f"{name}: {len(X):,} x {X.shape[1]}, {len(set(y.tolist()))} classes"
        case = Case("svm", size, "squared hinge", EVALUATION, 1)
        rows.append(speedup(case, CANDIDATE, PEER, seconds[CANDIDATE], seconds[PEER], None, NOTE))
    return rows


def _ours(X: svm.Floats, y: svm.Ints) -> Call:
    train = torch.arange(len(X)).numpy() % 5 > 0

    def call() -> object:
        return svm.evaluate(X, y, train, {"test": ~train})

    return call


def _peer(X: svm.Floats, y: svm.Ints) -> Call:
    train = torch.arange(len(X)).numpy() % 5 > 0
    search = GridSearchCV(LinearSVC(dual=False), {"C": list(svm.GRID)}, cv=5)

    def call() -> object:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return make_pipeline(StandardScaler(), search).fit(X[train], y[train]).predict(X[~train])

    return call
