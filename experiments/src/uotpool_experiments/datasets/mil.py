"""Load the bags of a multi-instance data set, from MATLAB's format or from CSV."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse
import torch

from uotpool import checks
from uotpool_experiments.datasets import catalog, digits, fetch, mat_file
from uotpool_experiments.datasets.bags import Bags
from uotpool_experiments.datasets.errors import DatasetRefusedError

MOST_ENTRIES = 2**25  # of all bags; the largest data set, Process, has 24 million


def load(name: str) -> Bags:
    """Load the bags of a data set; verify its file, its statistics, and that no feature is the label.

    Args:
        name: the name of a data set of the task "mil" in the catalogue.

    Raises:
        DatasetMissingError: the file is not there and cannot be fetched.
        DatasetRefusedError: the file does not hold this data set.
    """
    entry = catalog.entry(name)
    if entry.task != "mil":
        names = [known.name for known in catalog.CATALOG.values() if known.task == "mil"]
        checks.fail("name", f"a data set of bags ({', '.join(names)})", name)
    if not entry.files:
        return _checked(digits.make(), entry, name)
    path = fetch.locate(entry)
    if path.suffix == ".csv":
        return _checked(read_csv(path, name), entry, str(path))
    odd = next(file.odd_label_bags for file in entry.files if Path(file.path).suffix == path.suffix)
    return _checked(read_mat(path, name, odd), entry, str(path))


def read_mat(path: Path, name: str, odd_label_bags: tuple[int, ...] = ()) -> Bags:
    """Read bags from a cell array `data` of shape (bags, 2): instances with the label as last
    column, and label.

    The last column is dropped. It must be the label in each row of every bag, except in the
    `odd_label_bags`, where it must differ in some row. We refuse a file of another layout and do
    not guess.
    """
    mat_file.check(path)
    try:
        data = scipy.io.loadmat(path, variable_names=["data"])["data"]
    except Exception as error:  # loadmat raises any kind of error for a file that it cannot read
        found = str(error) or type(error).__name__
        raise DatasetRefusedError(
            f"{path}: expected a MATLAB file with the variable data, found: {found}"
        ) from error
    if data.dtype != object or data.ndim != 2 or data.shape[1] != 2 or not len(data):
        raise DatasetRefusedError(
            f"{path}: expected a cell array of shape (bags, 2) in data, found {data.dtype} {data.shape}"
        )
    _check_size(path, data[:, 0])
    cells = [_instances(cell, path, bag) for bag, cell in enumerate(data[:, 0])]
    labels = np.array([_label(cell, path, bag) for bag, cell in enumerate(data[:, 1])])
    widths = {cell.shape[1] for cell in cells}
    if len(widths) > 1 or min(widths) < 2:
        raise DatasetRefusedError(f"{path}: expected bags of one width, at least 2, found {sorted(widths)}")
    rows, sizes = np.concatenate(cells), np.array([len(cell) for cell in cells])
    _check_last_column(path, rows[:, -1], labels, sizes, odd_label_bags)
    return _bags(path, name, rows[:, :-1], labels, sizes)


def read_csv(path: Path, name: str) -> Bags:
    """Read bags from lines `label, bag, features` without a header, the lines of a bag together."""
    try:
        table = np.loadtxt(path, delimiter=",", ndmin=2)
    except ValueError as error:
        raise DatasetRefusedError(f"{path}: expected lines of numbers, found: {error}") from error
    if table.shape[1] < 3 or not len(table):
        raise DatasetRefusedError(
            f"{path}: expected lines `label, bag, features`, found {table.shape[1]} columns"
        )
    label, bag = table[:, 0], table[:, 1]
    starts = np.flatnonzero(np.append(True, bag[1:] != bag[:-1]))
    sizes = np.diff(np.append(starts, len(table)))
    if len(np.unique(bag)) < len(starts):
        raise DatasetRefusedError(
            f"{path}: expected the lines of a bag together, found a bag in several places"
        )
    if not np.isin(label, (-1, 0, 1)).all() or (label != np.repeat(label[starts], sizes)).any():
        raise DatasetRefusedError(f"{path}: expected one label 0 or 1 (or -1 or 1) in a bag, found another")
    return _bags(path, name, table[:, 2:], label[starts] > 0, sizes)


def _check_size(path: Path, cells: np.ndarray) -> None:
    """Refuse bags that are too large in all: a sparse matrix of a few bytes can have any size."""
    entries = sum(math.prod(getattr(cell, "shape", ())) for cell in cells)
    if entries > MOST_ENTRIES:
        raise DatasetRefusedError(
            f"{path}: expected at most {MOST_ENTRIES} numbers in all bags, found {entries}, most of them zeros "
            "that are not written out"
        )


def _instances(cell: Any, path: Path, bag: int) -> np.ndarray:
    if scipy.sparse.issparse(cell):
        cell = cell.toarray()
    cell = np.asarray(cell)
    if cell.ndim != 2 or cell.dtype.kind not in "biuf" or not len(cell):
        raise DatasetRefusedError(
            f"{path}: expected instances (n, d + 1) in bag {bag}, found {cell.dtype} {cell.shape}"
        )
    return cell.astype(np.float64)


def _label(cell: Any, path: Path, bag: int) -> bool:
    """Return whether the label is positive: 1 is, -1 and 0 are not.

    It can be nested in arrays of one element.
    """
    value = np.asarray(cell)
    while value.dtype == object and value.size == 1:
        value = np.asarray(value.item())
    if value.size != 1 or value.dtype.kind not in "biuf" or value.item() not in (-1, 0, 1):
        raise DatasetRefusedError(f"{path}: expected the label -1, 0 or 1 of bag {bag}, found {value.tolist()}")
    return bool(value.item() == 1)


def _check_last_column(
    path: Path, column: np.ndarray, labels: np.ndarray, sizes: np.ndarray, odd_label_bags: tuple[int, ...]
) -> None:
    wrong = ((column == 1) != np.repeat(labels, sizes)) | ~np.isin(column, (-1, 0, 1))
    bags = np.unique(np.repeat(np.arange(len(sizes)), sizes)[wrong]).tolist()
    if bags != list(odd_label_bags):
        known = f" but in the bags {list(odd_label_bags)}" if odd_label_bags else ""
        shown = f"{bags[:5]}{' and more' if len(bags) > 5 else ''}"
        raise DatasetRefusedError(
            f"{path}: expected the label in the last column{known}, found other values in the bags {shown} "
            f"({len(bags)} of {len(sizes)})"
        )


def _bags(path: Path, name: str, X: np.ndarray, labels: np.ndarray, sizes: np.ndarray) -> Bags:
    features = torch.from_numpy(X).float()
    if not features.isfinite().all():  # a number beyond float32 is infinite here
        raise DatasetRefusedError(f"{path}: expected finite features, found NaN or infinity")
    ptr = torch.from_numpy(np.append(0, np.cumsum(sizes))).long()
    return Bags(name, features, ptr, torch.from_numpy(labels).long())


def _checked(bags: Bags, entry: catalog.Entry, where: str) -> Bags:
    found = bags.statistics()
    if found != entry.statistics:
        raise DatasetRefusedError(f"{where}: expected {entry.statistics}, found {found}")
    if columns := bags.label_columns():
        raise DatasetRefusedError(f"{where}: expected features, found the label in the columns {columns}")
    return bags
