"""Images with a test part: Fashion-MNIST, parts of MNIST and CIFAR-10, digits, and folders like ImageNet's."""

from __future__ import annotations

import gzip
import math
import zipfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor

from uotpool import checks
from uotpool_experiments.datasets import image_folder
from uotpool_experiments.datasets.catalog import CATALOG, ImageStatistics, entry
from uotpool_experiments.datasets.errors import DatasetRefusedError
from uotpool_experiments.datasets.fetch import locate_all
from uotpool_experiments.datasets.image_folder import Files

DIGITS = "digits"  # in multi-instance learning the same name means bags of them
DIGITS_TEST = 360
MNIST_TEST = 1000
MAX_BYTES = 256 * 2**20
ARRAYS = ("x_train", "y_train", "x_test", "y_test")
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Images:
    """Pixels as uint8, (N, H, W) or (N, H, W, C), or files that are read when asked for; y as int64."""

    name: str
    x_train: Tensor | Files
    y_train: Tensor
    x_test: Tensor | Files
    y_test: Tensor
    classes: int

    @property
    def channels(self) -> int:
        return 1 if isinstance(self.x_train, Tensor) and self.x_train.dim() == 3 else 3

    @property
    def side(self) -> int | None:
        """The side of the images, which are square; None for files of many sizes."""
        return self.x_train.shape[1] if isinstance(self.x_train, Tensor) else None

    def of_size(self, train_size: int | None) -> Images:
        """Return these images with a stratified part of the training images, always the same part;
        None keeps all.
        """
        count = len(self.y_train)
        if train_size is None or train_size == count:
            return self
        if not self.classes <= train_size < count:
            checks.fail("train_size", f"a number from {self.classes} (the classes) to {count}", train_size)
        try:
            kept, _ = train_test_split(
                np.arange(count), train_size=train_size, stratify=self.y_train.numpy(), random_state=0
            )
        except ValueError as error:  # a class has one image, or fewer are left out than there are classes
            raise ValueError(
                f"train_size: expected a number that leaves images of all classes, got {train_size}: {error}"
            ) from error
        chosen = torch.from_numpy(np.sort(kept))
        return replace(self, x_train=self.x_train[chosen], y_train=self.y_train[chosen])


def is_path(name: str) -> bool:
    """Return whether the name means a folder: `./photos`, `/data/imagenet`."""
    return "/" in name or name in (".", "..")


def check_name(name: str) -> None:
    """Refuse a name that is no data set of images."""
    known = [DIGITS, *(found.name for found in CATALOG.values() if found.task == "image")]
    if not is_path(name) and name not in known:
        checks.fail("dataset", f"one of {', '.join(known)}, or the path of a folder with train/ and val/", name)


def prepare(name: str) -> None:
    """Fetch the data set, or say what is missing."""
    if is_path(name):
        image_folder.listing(Path(name))
    elif name != DIGITS:
        locate_all(entry(name))


def load(name: str) -> Images:
    """Load a data set by its name, or a folder by its path.

    Raises:
        DatasetMissingError: the file is not there and cannot be fetched.
        DatasetRefusedError: the file is not the one that it must be.
    """
    check_name(name)
    if is_path(name):
        train, val = image_folder.listing(Path(name))
        return Images(name, train.files, train.labels, val.files, val.labels, len(train.classes))
    if name == DIGITS:
        return _digits()
    paths = locate_all(entry(name))
    if paths[0].name.endswith(".csv.gz"):
        arrays = _csv(paths[0])
    else:
        arrays = _idx_files(paths) if paths[0].suffix == ".gz" else _npz(paths[0])
    found = _from_arrays(name, *arrays)
    height, width = arrays[0].shape[1:3]
    counted = ImageStatistics(
        len(found.y_train), len(found.y_test), height, width, found.channels, found.classes
    )
    if counted != entry(name).statistics:
        raise DatasetRefusedError(f"{name}: expected {entry(name).statistics}, found {counted}")
    return found


def _digits() -> Images:
    data = load_digits()
    pixels = np.round(data.images * (255 / 16)).astype(np.uint8)
    return _from_arrays(DIGITS, *_split(pixels, data.target, DIGITS_TEST))


def _split(pixels: Bytes, labels: npt.NDArray[np.int64], test: int) -> list[npt.NDArray[np.generic]]:
    """Return the arrays of ARRAYS, with a stratified test part, always the same part."""
    parts = train_test_split(pixels, labels, test_size=test, stratify=labels, random_state=0)
    x_train, x_test, y_train, y_test = parts
    return [x_train, y_train, x_test, y_test]


def _from_arrays(name: str, *arrays: npt.NDArray[np.generic]) -> Images:
    for what, array in zip(ARRAYS, arrays, strict=True):
        image = what.startswith("x")
        shape_ok = array.ndim in (3, 4) and array.shape[1] == array.shape[2] if image else array.ndim == 1
        dtype_ok = array.dtype == np.uint8 if image else array.dtype.kind in "iu"
        if not shape_ok or not dtype_ok or len(array) == 0:
            wanted = "square images of uint8" if image else "whole numbers"
            raise DatasetRefusedError(f"{name}: expected {wanted} in {what}, found {array.dtype} {array.shape}")
    x_train, y_train, x_test, y_test = arrays
    classes = int(y_train.max()) + 1
    for x, y in ((x_train, y_train), (x_test, y_test)):
        if len(x) != len(y) or set(np.unique(y)) != set(range(classes)):
            raise DatasetRefusedError(f"{name}: expected a label from 0 to {classes - 1} for each image")
    tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
    return Images(name, tensors[0], tensors[1].long(), tensors[2], tensors[3].long(), classes)


def _csv(path: Path) -> list[npt.NDArray[np.generic]]:
    """Read one line per square image: its pixels row by row, then its class."""
    try:
        table = np.loadtxt(path, delimiter=",", dtype=np.int64, ndmin=2)
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise DatasetRefusedError(f"{path}: expected lines of whole numbers, found: {error}") from error
    side = math.isqrt(table.shape[1] - 1)
    if side * side + 1 != table.shape[1] or table.min() < 0 or table.max() > 255:
        raise DatasetRefusedError(
            f"{path}: expected the pixels of square images and a class, found {table.shape}"
        )
    return _split(table[:, :-1].astype(np.uint8).reshape(-1, side, side), table[:, -1], MNIST_TEST)


def _idx_files(paths: list[Path]) -> list[npt.NDArray[np.generic]]:
    """Read one array per file; the catalogue lists the files in the order of ARRAYS."""
    return [read_idx(path, 3 if what.startswith("x") else 1) for what, path in zip(ARRAYS, paths, strict=True)]


def read_idx(path: Path, dimensions: int) -> Bytes:
    """Read a gzip file in MNIST's format: 0, 0, type (8 is uint8), number of dimensions, sizes, values."""
    try:
        with gzip.open(path) as file:
            content = file.read(MAX_BYTES + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DatasetRefusedError(f"{path}: expected a sound gzip file, found: {error}") from error
    start = 4 + 4 * dimensions
    if len(content) > MAX_BYTES or len(content) < start or content[:4] != bytes([0, 0, 8, dimensions]):
        raise DatasetRefusedError(
            f"{path}: expected an idx file of uint8 in {dimensions} dimensions, up to {MAX_BYTES} bytes, found "
            f"{len(content)} bytes that begin with {content[:4].hex()}"
        )
    shape = [int(n) for n in np.frombuffer(content, ">u4", dimensions, 4)]
    if len(content) != start + math.prod(shape):
        raise DatasetRefusedError(f"{path}: expected the values of {shape}, found {len(content) - start} bytes")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()


def _npz(path: Path) -> list[npt.NDArray[np.generic]]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return [archive[name] for name in ARRAYS]
    except (KeyError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DatasetRefusedError(f"{path}: expected arrays {', '.join(ARRAYS)}, found: {error}") from error
