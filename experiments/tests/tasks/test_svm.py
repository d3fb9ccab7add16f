"""The batched support vector machines against scikit-learn's, and against what holds at an optimum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale
from sklearn.svm import LinearSVC
from sklearn.utils._testing import ignore_warnings
from uotpool_experiments.tasks.graph import svm


def embeddings(n, classes, seed=0, noise=1.0, d=32):
    """Make embeddings like those of a ReLU network: correlated, of all scales, one dead, one nearly dead."""
    r = np.random.default_rng(seed)
    y = r.permutation(np.arange(n) % classes)
    hidden = r.normal(size=(classes, 8))[y] + noise * r.normal(size=(n, 8))
    X = np.maximum(hidden @ r.normal(size=(8, d)) + 0.3 * r.normal(size=(n, d)), 0)
    X *= np.exp(r.normal(size=(n, 1)) / 2) * np.exp(2 * r.normal(size=d))
    X[:, 5], X[:, 6] = 7.0, np.arange(n) == 3
    return X, y


def digits(*which):
    X, y = load_digits(return_X_y=True)
    keep = np.isin(y, which)
    return X[keep], np.searchsorted(which, y[keep])


@ignore_warnings(category=ConvergenceWarning)
def reference(X, y, C, max_iter=100_000):
    """LinearSVC to the last digit: (M, d + 1)."""
    found = LinearSVC(dual=False, C=C, tol=1e-10, max_iter=max_iter).fit(X, y)
    return np.column_stack([found.coef_, found.intercept_])


def every_row(X, count=1):
    return np.ones((count, len(X)), bool)


def signs(y):
    return [np.where(y == k, 1, -1) for k in range(y.max() + 1)] if y.max() > 1 else [np.where(y == 1, 1, -1)]


def objectives(W, X, y, C):
    """1/2 |w|^2 + C sum max(0, 1 - s w x)^2 and its gradient, written once more: (M,), (M, d + 1)."""
    Z = np.column_stack([X, np.ones(len(X))])
    values, gradients = [], []
    for w, s in zip(W, signs(y), strict=True):
        loss = np.array([max(0.0, 1 - m) for m in s * (Z @ w)])
        values.append(w @ w / 2 + C * (loss**2).sum())
        gradients.append(w - 2 * C * ((loss * s) @ Z))
    return np.array(values), np.array(gradients)


def assert_optimal(W, X, y, C, relative=1e-9):
    """f is 1-strongly convex, so  f(w) - min f <= 1/2 |gradient|^2 : a proof that needs no other solver."""
    values, gradients = objectives(W, X, y, C)
    assert (0.5 * (gradients**2).sum(1) <= relative * values).all()


# ---------------------------------------------------------------------------------------------------------
# fit


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_fit_is_linear_svc(classes):
    X, y = embeddings(240, classes, noise=4.0)  # with less it takes liblinear 10 000 rounds to get there
    X = scale(X)
    r = np.random.default_rng(1)
    C = np.array([1e-3, 0.1, 1.0, 1000.0, 1000.0])
    rows = np.stack([r.random(240) < share for share in (1.0, 0.8, 0.6, 1.0, 0.8)])
    W = svm.fit(X, y, C, rows)
    assert W.shape == (5, 1 if classes == 2 else classes, 33)
    for w, c, own in zip(W, C, rows, strict=True):
        expected = reference(X[own], y[own], c)
        np.testing.assert_allclose(w, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
        ours, theirs = (objectives(each, X[own], y[own], c)[0] for each in (w, expected))
        np.testing.assert_allclose(ours, theirs, rtol=1e-10)
        assert_optimal(w, X[own], y[own], c)


@pytest.mark.parametrize("load", [load_iris, load_wine, load_breast_cancer])
def test_fit_on_data_that_was_not_scaled(load):
    X, y = load(return_X_y=True)
    W = svm.fit(X, y, [0.01, 10.0], every_row(X, 2))
    for w, c in zip(W, [0.01, 10.0], strict=True):
        ours, theirs = (objectives(each, X, y, c)[0] for each in (w, reference(X, y, c, 2000)))
        assert (ours <= theirs * (1 + 1e-9)).all()


def hard():
    """Where Newton's method has to work, or a solver could stumble."""
    r = np.random.default_rng(2)
    X = r.normal(size=(200, 32))
    half = np.arange(200) % 2
    yield "separable", X, (X[:, 0] > 0).astype(int)
    yield "far apart", X + 50 * half[:, None], half
    yield "unbalanced", X, (np.arange(200) < 3).astype(int)
    yield "more columns than rows", X[:20], half[:20]
    yield "rows twice", np.repeat(X[:40], 3, axis=0), np.repeat(half[:40], 3)
    yield "rows twice with both labels", np.tile(X[:40], (2, 1)), np.repeat([0, 1], 40)
    yield "all rows the same", np.ones((20, 4)), half[:20]
    yield "constant column", np.column_stack([X, np.zeros(200), np.full(200, 3.0)]), half
    yield "columns alike", X[:, :1] + 1e-6 * X, half
    yield "outliers", r.standard_cauchy(size=(200, 32)), half
    yield "digits", scale(digits(0, 1, 2)[0]), digits(0, 1, 2)[1]
    yield "one column", X[:, :1], half
    yield "two rows", X[:2], half[:2]


@pytest.mark.parametrize(("X", "y"), [pytest.param(X, y, id=name) for name, X, y in hard()])
def test_hard_problems_end_at_the_optimum(X, y):
    for w, c in zip(svm.fit(X, y, svm.GRID, every_row(X, 7)), svm.GRID, strict=True):
        assert_optimal(w, X, y, c)


def test_rows_that_cannot_be_told_apart_have_the_closed_form():
    # x = 0 and both labels 5 times: only b matters, 1/2 b^2 + 5 C (1 - b)^2 + 5 C (1 + b)^2 is least at 0.
    W = svm.fit(np.zeros((10, 2)), np.arange(10) % 2, [3.0], np.ones((1, 10), bool))
    np.testing.assert_allclose(W, 0, atol=1e-15)
    # 7 against 3 with |b| < 1: b + 2 C (10 b - 4) = 0.
    W = svm.fit(np.zeros((10, 2)), (np.arange(10) < 7).astype(int), [3.0], np.ones((1, 10), bool))
    np.testing.assert_allclose(W[0, 0], [0, 0, 24 / 61], atol=1e-14)


def test_huge_dependent_columns_do_not_stop_it():
    X = np.random.default_rng(0).normal(size=(50, 1)) * np.full(8, 1e8)
    W = svm.fit(X, np.arange(50) % 2, svm.GRID, every_row(X, 7))
    assert np.isfinite(W).all()
    values = [objectives(w, X, np.arange(50) % 2, c)[0][0] for w, c in zip(W, svm.GRID, strict=True)]
    assert (np.array(values) <= 50 * np.array(svm.GRID)).all()  # no worse than w = 0


def test_problems_of_a_batch_do_not_meet():
    X, y = embeddings(120, 3)
    X, r = scale(X), np.random.default_rng(0)
    rows, C = r.random((8, 120)) < 0.7, 10.0 ** r.integers(-3, 4, 8)
    together = svm.fit(X, y, C, rows)
    for w, c, own in zip(together, C, rows, strict=True):
        alone = svm.fit(X, y, [c], own[None])[0]
        np.testing.assert_allclose(w, alone, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(w, svm.fit(X[own], y[own], [c], every_row(X[own]))[0], rtol=1e-8, atol=1e-10)


def test_it_stops_after_the_last_round(monkeypatch):
    X, y = digits(3, 8)
    best = svm.fit(X, y, [1000.0], every_row(X))[0]
    values = [objectives(best, X, y, 1000.0)[0][0]]
    for rounds in (20, 5, 1):
        monkeypatch.setattr(svm, "ROUNDS", rounds)
        values.append(objectives(svm.fit(X, y, [1000.0], every_row(X))[0], X, y, 1000.0)[0][0])
    assert values == sorted(values)
    assert len(set(values)) == 4  # each had more to gain
    assert values[-1] < 1000.0 * len(X)  # w = 0, where it started


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(6, 60),
    d=st.integers(1, 8),
    classes=st.integers(2, 4),
    C=st.sampled_from(svm.GRID),
    coarse=st.sampled_from([0, 1, 6]),
    apart=st.sampled_from([0.0, 1.0, 5.0]),
)
def test_never_above_scikit_learn(seed, n, d, classes, C, coarse, apart):
    r = np.random.default_rng(seed)
    y = r.permutation(np.arange(n) % classes)
    X = (r.normal(size=(n, d)) + apart * r.normal(size=(classes, d))[y]).round(coarse)  # many alike if coarse
    w = svm.fit(X, y, [C], every_row(X))[0]
    ours, theirs = (objectives(each, X, y, C)[0] for each in (w, reference(X, y, C, 2000)))
    assert (ours <= theirs * (1 + 1e-6)).all()
    assert_optimal(w, X, y, C)


# ---------------------------------------------------------------------------------------------------------
# predict


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_predict_is_linear_svc(classes):
    X, y = embeddings(240, classes, noise=2.0)
    X = scale(X)
    model = LinearSVC(dual=False).fit(X[:150], y[:150])
    W = np.column_stack([model.coef_, model.intercept_])
    np.testing.assert_array_equal(svm.predict(np.stack([W, -W]), X)[0], model.predict(X))
    assert svm.predict(np.stack([W, -W]), X).shape == (2, 240)
    assert (svm.predict(np.stack([W, -W]), X)[1] != model.predict(X)).any()


def test_ties():
    assert svm.predict(np.zeros((1, 1, 3)), np.ones((2, 2))).tolist() == [[0, 0]]  # not above 0
    assert svm.predict(np.zeros((1, 3, 3)), np.ones((2, 2))).tolist() == [[0, 0]]  # the first of equals
    assert svm.predict(np.array([[[0.0, 1], [1, 0], [1, 0]]]), np.array([[2.0], [0.5]])).tolist() == [[1, 0]]


# ---------------------------------------------------------------------------------------------------------
# evaluate


@ignore_warnings(category=ConvergenceWarning)
def pipeline(X, y, train, cv=5, Cs=svm.GRID, **settings):
    """Make the pipeline that the authors run."""
    search = GridSearchCV(LinearSVC(dual=False, **settings), {"C": list(Cs)}, cv=cv, scoring="accuracy")
    return make_pipeline(StandardScaler(), search).fit(X[train], y[train])


def split(y, seed=0, share=0.8):
    order = np.random.default_rng(seed).permutation(len(y))
    return order[: int(share * len(y))], order[int(share * len(y)) :]


def data_sets():
    yield "two classes", *embeddings(188, 2)
    yield "hardly any signal", *embeddings(188, 2, seed=1, noise=8.0)
    yield "five classes", *embeddings(400, 5, seed=2)
    yield "breast cancer", *load_breast_cancer(return_X_y=True)
    yield "iris", *load_iris(return_X_y=True)
    yield "wine", *load_wine(return_X_y=True)
    X, y = embeddings(300, 2, seed=3, noise=2.0)
    keep = (y == 1) | (np.arange(300) < 60)
    yield "unbalanced", X[keep], y[keep]
    yield "float32", X.astype(np.float32), y


cases = pytest.mark.parametrize(("X", "y"), [pytest.param(X, y, id=name) for name, X, y in data_sets()])


@cases
def test_evaluate_is_the_pipeline_at_its_optimum(X, y):
    train, test = split(y)
    found = svm.evaluate(X, y, train, {"test": test, "train": train})
    X = X.astype(np.float64)  # liblinear has it so in any case, but the scaler before it would keep float32
    expected = pipeline(X, y, train, tol=1e-8, max_iter=100_000)
    assert expected[-1].best_params_["C"] == found.C
    np.testing.assert_array_equal(found.accuracies, expected[-1].cv_results_["mean_test_score"])
    np.testing.assert_array_equal(found.predictions["test"], expected.predict(X[test]))
    np.testing.assert_array_equal(found.predictions["train"], expected.predict(X[train]))


@cases
def test_evaluate_is_nearly_the_pipeline_as_it_stops(X, y):
    """With the default tolerance liblinear stops early where C is large, and a row or two change sides.

    Where these decide between two values of C the machine is another, so this compares value by value. What it
    would choose at its optimum is compared above.
    """
    train, test = split(y)
    everything = np.concatenate([train, test])
    accuracies = svm.evaluate(X, y, train, {}).accuracies
    same = []
    for C, accuracy in zip(svm.GRID, accuracies, strict=True):
        expected = pipeline(X, y, train, Cs=[C])
        found = svm.evaluate(X, y, train, {"all": everything}, Cs=[C])
        assert found.C == C
        assert found.accuracies.tolist() == [accuracy]
        assert abs(accuracy - expected[-1].best_score_) <= 2.5 / len(train)  # two graphs
        same.append(found.predictions["all"] == expected.predict(X[everything]))
    assert np.mean(same) >= 0.995


@cases
def test_classify_is_the_pipeline_at_one_C(X, y):
    train, test = split(y)
    model = make_pipeline(StandardScaler(), LinearSVC(dual=False, tol=1e-8, max_iter=100_000)).fit(
        X[train], y[train]
    )
    found = svm.classify(X, y, train, {"train": train, "test": test, "none": test[:0]})
    assert np.array_equal(found["test"], model.predict(X[test]))
    assert np.array_equal(found["train"], model.predict(X[train]))
    assert len(found["none"]) == 0


def test_evaluate_on_many_small_classes_uses_fewer_folds():
    X, y = embeddings(90, 3)
    y[:] = 0
    y[[2, 30, 50]], y[[4, 5, 60, 70, 80]] = 1, 2
    train = np.arange(90)
    found = svm.evaluate(X, y, train, {"all": train})
    expected = pipeline(X, y, train, cv=3, tol=1e-8, max_iter=100_000)
    np.testing.assert_array_equal(found.accuracies, expected[-1].cv_results_["mean_test_score"])
    np.testing.assert_array_equal(found.predictions["all"], expected.predict(X))
    np.testing.assert_array_equal(found.accuracies, svm.evaluate(X, y, train, {}, folds=3).accuracies)
    assert (found.accuracies != svm.evaluate(X, y, train, {}, folds=2).accuracies).any()


def test_the_first_of_the_best():
    X, y = embeddings(100, 2, noise=0.01)
    train = np.arange(100)
    found = svm.evaluate(X, y, train, {}, Cs=(10.0, 1.0, 100.0))
    assert found.accuracies.tolist() == [1.0, 1.0, 1.0]
    assert found.C == 10.0


def test_only_training_rows_count():
    X, y = embeddings(200, 2)
    train, test = split(y)
    expected = svm.evaluate(X, y, train, {"test": test})
    X2, y2 = X.copy(), y.copy()
    X2[test[1:]] = X[test[1:]] * 1e3 + 5
    y2[test] = 9
    found = svm.evaluate(X2, y2, train, {"test": test})
    np.testing.assert_array_equal(found.accuracies, expected.accuracies)
    assert found.predictions["test"][0] == expected.predictions["test"][0]
    assert (found.predictions["test"] != expected.predictions["test"]).any()


def test_labels_masks_and_parts():
    X, y = embeddings(150, 3)
    train, test = split(y)
    expected = svm.evaluate(X, y, train, {"test": test})
    names = np.array([-4, 7, 10])
    found = svm.evaluate(X, names[y], train, {"test": test, "none": []})
    np.testing.assert_array_equal(found.predictions["test"], names[expected.predictions["test"]])
    assert found.predictions["none"].shape == (0,)
    order = np.sort(train)
    mask = np.isin(np.arange(150), train)
    by_mask = svm.evaluate(X, y, mask, {"test": ~mask})
    by_index = svm.evaluate(X, y, order, {"test": np.sort(test)})
    np.testing.assert_array_equal(by_mask.predictions["test"], by_index.predictions["test"])
    np.testing.assert_array_equal(by_mask.accuracies, by_index.accuracies)


def test_same_input_same_output_and_input_untouched():
    X, y = embeddings(150, 3)
    train, test = split(y)
    copies = X.copy(), y.copy(), train.copy()
    first, again = (svm.evaluate(X, y, train, {"test": test}) for _ in range(2))
    assert first.C == again.C
    np.testing.assert_array_equal(first.accuracies, again.accuracies)
    np.testing.assert_array_equal(first.predictions["test"], again.predictions["test"])
    W = [svm.fit(X, y, svm.GRID, every_row(X, 7)) for _ in range(2)]
    np.testing.assert_array_equal(*W)
    for now, before in zip((X, y, train), copies, strict=True):
        np.testing.assert_array_equal(now, before)


# ---------------------------------------------------------------------------------------------------------
# errors


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_embeddings_must_be_finite(value):
    X, y = embeddings(50, 2)
    X[40, 3] = value
    with pytest.raises(ValueError, match="X must be"):
        svm.evaluate(X, y, np.arange(30), {})
    with pytest.raises(ValueError, match="X must be"):
        svm.fit(X, y, [1.0], every_row(X))


@pytest.mark.parametrize(
    ("y", "said"),
    [([0] * 10, r"got \[10\]"), ([0] * 9 + [1], r"got \[9, 1\]"), ([0, 1] * 4 + [2, 3], "train: ")],
)
def test_classes_must_have_two_members(y, said):
    with pytest.raises(ValueError, match=said):
        svm.evaluate(np.eye(10), y, np.arange(10), {})


def test_refusals():
    X, y = embeddings(20, 2)
    train = np.arange(20)
    with pytest.raises(ValueError, match="train"):
        svm.evaluate(X, y, [], {})
    with pytest.raises(ValueError, match="folds"):
        svm.evaluate(X, y, train, {}, folds=1)
    with pytest.raises(ValueError, match="C must be"):
        svm.evaluate(X, y, train, {}, Cs=(1.0, 0.0))
    with pytest.raises(ValueError, match="C must be"):
        svm.evaluate(X, y, train, {}, Cs=())
    with pytest.raises(ValueError, match="X must be"):
        svm.evaluate(X[0], y, train, {})
    with pytest.raises(ValueError, match="y"):
        svm.evaluate(X, y[:-1], train[:-1], {})
    with pytest.raises(ValueError, match="rows"):
        svm.fit(X, y, [1.0], every_row(X, 2))
    with pytest.raises(ValueError, match="rows: each problem"):
        svm.fit(X, y, [1.0], (y == 0)[None])
    with pytest.raises(ValueError, match="y: at least two"):
        svm.fit(X, 0 * y, [1.0], every_row(X))
    with pytest.raises(ValueError, match="y: at least two"):
        svm.fit(X, y - 1, [1.0], every_row(X))
