"""Fit many small linear support vector machines at once, and evaluate embeddings by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

GRID = (1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1000.0)
ROUNDS = 1000  # 3 to 8 are usual; we have seen 160 with C = 1000 on separable data
ROUNDING = 1e-14  # a smaller relative difference counts as no change
ENOUGH = 0.5  # the share of the slope that a line search may leave


@dataclass(frozen=True)
class Scored:
    """Predictions by the machine with the best C, and the mean accuracy of each C in the cross-validation."""

    C: float
    predictions: dict[str, Ints]
    accuracies: Floats


def evaluate(
    X: npt.ArrayLike,
    y: npt.ArrayLike,
    train: npt.ArrayLike,
    parts: Mapping[str, npt.ArrayLike],
    *,
    Cs: Sequence[float] = GRID,
    folds: int = 5,
) -> Scored:
    """Do what make_pipeline(StandardScaler(), GridSearchCV(LinearSVC(dual=False), {"C": Cs},
    cv=folds)) does, exactly.

    Folds are stratified, in the order of `train`. Among equal accuracies the first C wins. If a
    class has fewer than `folds` members in `train`, there are only as many folds as it has members.

    Args:
        X: (n, d), finite. This function scales X by the mean and deviation of the training rows.
        y: (n,) classes, any integers.
        train: (t,) indices, or a mask.
        parts: for each name, the indices to predict, or a mask.
        Cs: (c,) positive.
        folds: at least 2.
    """
    embeddings, y, train, C = _embeddings(X), np.asarray(y, np.int64), _indices(train), _penalties(Cs)
    if y.shape != (len(embeddings),):
        raise ValueError(f"X {embeddings.shape} and y {y.shape} do not fit together")
    classes, labels = np.unique(y[train], return_inverse=True)
    inside = _folds(labels, folds)  # (folds, t)
    scaler = StandardScaler().fit(embeddings[train])
    scaled: Floats = (embeddings - scaler.mean_) / scaler.scale_

    signs = _signs(labels)  # (M, t)
    Z = _with_ones(scaled[train])
    start = _zero(Z, np.ones((1, len(Z)), bool))[np.zeros(len(C), np.int64)]
    W, margins = zip(*(_fit_and_leave_out(Z * s[:, None], C, inside, start) for s in signs), strict=True)
    right = _decide(np.stack(margins) * signs[:, None]) == labels  # (c, t)
    accuracies = np.stack([right[:, ~rows].mean(1) for rows in inside], axis=1).mean(1)
    best = int(np.argmax(accuracies))
    said = classes[predict(np.stack(W, axis=1)[best : best + 1], scaled)[0]]
    return Scored(float(C[best]), {name: said[_indices(part)] for name, part in parts.items()}, accuracies)


def classify(
    X: npt.ArrayLike, y: npt.ArrayLike, train: npt.ArrayLike, parts: Mapping[str, npt.ArrayLike], C: float = 1.0
) -> dict[str, Ints]:
    """Predict each part as make_pipeline(StandardScaler(), LinearSVC(dual=False, C=C)) does, at the optimum.

    Args:
        X, y, train, parts: as in `evaluate`.
        C: positive.
    """
    embeddings, train = _embeddings(X), _indices(train)
    classes, labels = np.unique(np.asarray(y, np.int64)[train], return_inverse=True)
    scaler = StandardScaler().fit(embeddings[train])
    scaled: Floats = (embeddings - scaler.mean_) / scaler.scale_
    W = fit(scaled[train], labels, [C], np.ones((1, len(train)), bool))
    said = classes[predict(W, scaled)[0]]
    return {name: said[_indices(part)] for name, part in parts.items()}


def fit(X: npt.ArrayLike, y: npt.ArrayLike, C: npt.ArrayLike, rows: npt.ArrayLike) -> Floats:
    """Minimise 1/2 |w|^2 + 1/2 b^2 + C sum_i max(0, 1 - s_i (w x_i + b))^2 for each problem on its own rows.

    This is LinearSVC(dual=False): the intercept is penalised, and with more than two classes each
    machine separates one class from the rest.

    Args:
        X: (n, d), finite.
        y: (n,) classes 0 to K - 1.
        C: (B,) positive.
        rows: (B, n) bool; each problem has a row of every class.

    Returns:
        W (B, M, d + 1) with M = 1 for K = 2 and K else; the last column is the intercept.
    """
    X, y, C, rows = _embeddings(X), np.asarray(y, np.int64), _penalties(C), np.asarray(rows, bool)
    if rows.shape != (len(C), len(X)) or y.shape != (len(X),):
        raise ValueError(f"X {X.shape}, y {y.shape}, C {C.shape} and rows {rows.shape} do not fit together")
    if len(y) == 0 or y.min() < 0 or y.max() < 1:
        raise ValueError("y: at least two classes, 0 to K - 1")
    if any(len(np.unique(y[r])) <= y.max() for r in rows):
        raise ValueError("rows: each problem has a row of every class of y")
    Z = _with_ones(X)
    start = _zero(Z, rows)
    W = [_minimise(Z * s[:, None], C, rows, start).w for s in _signs(y)]
    return np.stack(W, axis=1)


def predict(W: Floats, X: npt.ArrayLike) -> Ints:
    """Return the class with the highest w x + b, the first of equals; for M = 1, class 1 if w x + b > 0.

    Args:
        W: (B, M, d + 1), from `fit`.
        X: (n, d).

    Returns:
        (B, n) classes 0 to K - 1.
    """
    return _decide(W.swapaxes(0, 1) @ _with_ones(np.asarray(X, np.float64)).T)


def _decide(scores: Floats) -> Ints:
    """Return classes (B, n) from scores (M, B, n)."""
    return (scores[0] > 0).astype(np.int64) if len(scores) == 1 else scores.argmax(0)


# ---------------------------------------------------------------------------------------------------------
# Newton's method
#
# With z_i = s_i (x_i, 1) all problems have the form  f(w) = 1/2 |w|^2 + C sum_i max(0, 1 - w
# z_i)^2.  The rows with w z_i < 1 are active, and f is a parabola as long as they are the same
# ones. A full step between two points with the same active rows therefore ends at the optimum, and
# nearly all problems end like this.
#
# The Hessian is I + 2 C G with G = sum of z_i z_i^T over the active rows. That sum is the cost of
# the method, so we never compute it anew: rows that became active are added and rows that ceased to
# be active are subtracted, from the first step to the last, and from all training rows to those
# without a fold. The gradient does not come from G, so rounding in G can cost a step but does not
# move the optimum.


@dataclass
class _Points:
    """The current points of B problems: w (B, d + 1), active rows (B, n) and their G (B, d + 1, d + 1)."""

    w: Floats
    active: Mask
    gram: Floats

    def __getitem__(self, which: Ints | Mask) -> _Points:
        return _Points(self.w[which], self.active[which], self.gram[which])

    def __setitem__(self, which: Ints, other: _Points) -> None:
        self.w[which], self.active[which], self.gram[which] = other.w, other.active, other.gram


def _zero(Z: Floats, rows: Mask) -> _Points:
    """Return the points w = 0, where all rows are active. The signs in Z do not matter there."""
    gram = np.stack([Z[r].T @ Z[r] for r in rows])
    return _Points(np.zeros((len(rows), Z.shape[1])), rows.copy(), gram)


def _minimise(Z: Floats, C: Floats, rows: Mask, start: _Points) -> _Points:
    """Run Newton's method with a line search on B problems at once; finished problems leave the batch.

    Args:
        Z: (n, d + 1) rows with their sign.
        C: (B,)
        rows: (B, n) bool.
        start: B points, possibly those of another C and other rows.
    """
    problem = np.arange(len(C))
    at, result = start[problem], start[problem]
    short = np.where(rows, 1 - at.w @ Z.T, -np.inf)  # (B, n): by how much the margin is too small
    value, gradient = _objective(at.w, short, Z, C)
    _activate(at, short > 0, Z)
    for _ in range(ROUNDS):
        descent = _newton(at.gram, C, gradient)
        steep = -np.einsum("bi,bi->b", gradient, descent)  # twice the decrease that the parabola promises
        gain = descent @ Z.T
        old, old_value, old_short = at.w, value, short
        at.w, short = old + descent, old_short - gain
        value, gradient = _objective(at.w, short, Z, C)
        slope = np.einsum("bi,bi->b", gradient, descent)
        bad = ~((np.abs(slope) <= ENOUGH * steep) & (value <= old_value * (1 + ROUNDING)))
        if bad.any():
            lines = zip(old[bad], descent[bad], old_short[bad], gain[bad], C[bad], strict=True)
            t = np.array([_search(*line) for line in lines])[:, None]
            at.w[bad], short[bad] = old[bad] + t * descent[bad], old_short[bad] - t * gain[bad]
            value[bad], gradient[bad] = _objective(at.w[bad], short[bad], Z, C[bad])
        changed = _activate(at, short > 0, Z)

        done = (~changed & ~bad) | ~(value < old_value * (1 - ROUNDING))
        if done.any():
            result[problem[done]] = at[done]
            if done.all():
                return result
            at = at[~done]
            problem, C, short, value, gradient = (v[~done] for v in (problem, C, short, value, gradient))
    result[problem] = at  # the best found
    return result


def _objective(w: Floats, short: Floats, Z: Floats, C: Floats) -> tuple[Floats, Floats]:
    """Return f (B,) and its gradient (B, d + 1)."""
    loss = np.maximum(short, 0)
    value = 0.5 * np.einsum("bi,bi->b", w, w) + C * np.einsum("bi,bi->b", loss, loss)
    return value, w - 2 * C[:, None] * (loss @ Z)


def _activate(at: _Points, active: Mask, Z: Floats) -> Mask:
    """Make these rows (B, n) the active ones and update G; return which problems changed, (B,)."""
    changed = np.zeros(len(active), bool)
    for sign, moved in ((1.0, active & ~at.active), (-1.0, at.active & ~active)):
        where = np.flatnonzero(moved)  # ten times faster than np.nonzero on two axes
        ends = np.searchsorted(where, np.arange(len(active) + 1) * len(Z))
        for b in np.flatnonzero(np.diff(ends)):
            part = Z.take(where[ends[b] : ends[b + 1]] - b * len(Z), axis=0)
            at.gram[b] += sign * (part.T @ part)
            changed[b] = True
    at.active = active
    return changed


def _newton(gram: Floats, C: Floats, gradient: Floats) -> Floats:
    """Return -(I + 2 C G)^-1 gradient, (B, d + 1)."""
    scale = 1 / (2 * C[:, None, None])
    # Where columns are huge and dependent, I is lost to rounding. The term that we add for this
    # case changes nothing in others.
    hessian = gram * (1 + ROUNDING * np.eye(gram.shape[1])) + scale * np.eye(gram.shape[1])
    return np.asarray(np.linalg.solve(hessian, scale * -gradient[:, :, None]), np.float64)[:, :, 0]


def _search(w: Floats, descent: Floats, short: Floats, gain: Floats, C: float) -> float:
    """Return t with f(w + t descent) near its minimum, for one problem.

    The slope rises and is piecewise linear in t, so we use Newton's method within a bracket.
    Halving t takes several times as many rounds on separable data with a large C, where a step
    passes many rows.
    """
    wd, dd = float(w @ descent), float(descent @ descent)
    low, high, t = 0.0, np.inf, 1.0
    loss = np.maximum(short, 0)
    start, steep = C * (loss @ loss), 2 * C * (loss @ gain) - wd
    for _ in range(100):
        loss = np.maximum(short - t * gain, 0)
        slope = wd + t * dd - 2 * C * float(loss @ gain)
        if abs(slope) <= ENOUGH * steep and t * wd + t * t * dd / 2 + C * (loss @ loss) <= start:
            break
        low, high = (t, high) if slope < 0 else (low, t)
        passing = gain[loss > 0]
        t -= slope / (dd + 2 * C * float(passing @ passing))
        if not low < t < high:
            t = (low + high) / 2 if high < np.inf else 2 * low
    return t


# ---------------------------------------------------------------------------------------------------------
# Cross-validation, and checks of the input


def _fit_and_leave_out(Z: Floats, C: Floats, inside: Mask, start: _Points) -> tuple[Floats, Floats]:
    """Return w (c, d + 1) fitted on all rows, and margins (c, n) by the w fitted without the row's fold."""
    whole = _minimise(Z, C, np.ones((len(C), len(Z)), bool), start)
    # Without a fold the optimum is nearly the same, so we start there: about three steps instead of
    # six from 0.
    fold, penalty = np.divmod(np.arange(len(inside) * len(C)), len(C))
    w = _minimise(Z, C[penalty], inside[fold], whole[penalty]).w.reshape(len(inside), len(C), -1)
    margins = np.empty((len(C), len(Z)))
    for part, rows in zip(w, inside, strict=True):
        margins[:, ~rows] = part @ Z[~rows].T
    return whole.w, margins


def _folds(labels: Ints, folds: int) -> Mask:
    """Return the rows that each fold trains on, (folds, n)."""
    counts = np.bincount(labels)
    if len(counts) < 2 or counts.min() < 2:
        raise ValueError(f"train: at least two classes with at least two members each, got {counts.tolist()}")
    if folds < 2:
        raise ValueError(f"folds must be at least 2, got {folds}")
    inside = np.ones((min(folds, int(counts.min())), len(labels)), bool)
    for rows, (_, left_out) in zip(inside, StratifiedKFold(len(inside)).split(labels, labels), strict=True):
        rows[left_out] = False
    return inside


def _signs(labels: Ints) -> Floats:
    """Return (M, n): 1 for the machine's class, -1 for the others.

    With two classes only class 1 has a machine.
    """
    count = int(labels.max()) + 1
    classes = np.arange(count) if count > 2 else np.array([1])
    return np.where(labels == classes[:, None], 1.0, -1.0)


def _with_ones(X: Floats) -> Floats:
    return np.column_stack([X, np.ones(len(X))])


def _embeddings(X: npt.ArrayLike) -> Floats:
    X = np.asarray(X, np.float64)
    if X.ndim != 2 or not np.isfinite(X).all():
        raise ValueError(f"X must be (n, d) and finite, got shape {X.shape}")
    return X


def _indices(part: npt.ArrayLike) -> Ints:
    part = np.asarray(part)
    return np.flatnonzero(part) if part.dtype == np.bool_ else part.astype(np.int64)


def _penalties(C: npt.ArrayLike) -> Floats:
    C = np.asarray(C, np.float64)
    if C.ndim != 1 or not len(C) or not ((C > 0) & (C < np.inf)).all():
        raise ValueError(f"C must be (B,), positive and finite, got {C}")
    return C
