"""Images: which files are read and which are refused."""

from __future__ import annotations

import gzip
import io

import numpy as np
import pytest
import torch
from uotpool_experiments.datasets import (
    CATALOG,
    DatasetMissingError,
    DatasetRefusedError,
    digests,
    image_folder,
    images,
)
from uotpool_experiments.datasets.catalog import DataFile, Entry, ImageStatistics

from experiments.tests.datasets import helpers

Image = pytest.importorskip("PIL.Image")


def idx(array: np.ndarray, kind: int = 8) -> bytes:
    sizes = np.array(array.shape, ">u4").tobytes()
    return bytes([0, 0, kind, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


# ---------------------------------------------------------------------------------------------------------
# files of arrays


def test_idx(tmp_path):
    array = np.arange(24).reshape(2, 3, 4)
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(idx(array)))
    assert np.array_equal(images.read_idx(path, 3), array)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (idx(np.zeros((2, 3, 4)), kind=13), "expected an idx file of uint8"),
        (idx(np.zeros((2, 3))), "in 3 dimensions"),
        (idx(np.zeros((2, 3, 4)))[:-1], r"the values of \[2, 3, 4\], found 23"),
        (idx(np.zeros((2, 3, 4))) + b"\0", "found 25"),
        (b"\0\0\x08\x03", "found 4 bytes"),
        (b"", "found 0 bytes"),
    ],
)
def test_idx_that_is_not_right(tmp_path, content, message):
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(content))
    with pytest.raises(DatasetRefusedError, match=message):
        images.read_idx(path, 3)


def test_gzip_that_is_broken(tmp_path):
    path = tmp_path / "x.gz"
    whole = gzip.compress(idx(np.zeros((2, 3, 4))))
    for content in (whole[:-9], b"no gzip"):
        path.write_bytes(content)
        for read in (lambda: images.read_idx(path, 3), lambda: digests.gzip_digest(path)):
            with pytest.raises(DatasetRefusedError, match="expected a sound gzip file"):
                read()


def npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def arrays(n: int = 6) -> dict[str, np.ndarray]:
    x = np.arange(n * 4 * 4 * 3, dtype=np.uint8).reshape(n, 4, 4, 3)
    y = np.arange(n) % 2
    return {"x_train": x, "y_train": y, "x_test": x[:4], "y_test": y[:4]}


def put(folders_, monkeypatch, content: bytes, statistics=None) -> None:
    file = DataFile("images/small.npz", helpers.sha256(content))
    counted = statistics or ImageStatistics(6, 4, 4, 4, 3, 2)
    monkeypatch.setitem(CATALOG, "small", Entry("small", "image", (file,), counted))
    helpers.put(folders_.data, "images/small.npz", content)


def test_npz(folders, monkeypatch):
    put(folders, monkeypatch, npz(**arrays()))
    found = images.load("small")
    assert (found.classes, found.channels, found.side) == (2, 3, 4)
    assert torch.equal(found.x_train, torch.from_numpy(arrays()["x_train"]))
    assert found.y_test.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": np.zeros((6, 4, 5, 3), np.uint8)}, "square images of uint8 in x_train"),
        ({"x_train": np.zeros((6, 4, 4, 3), np.float32)}, "square images of uint8 in x_train, found float32"),
        ({"y_train": np.zeros((6, 1), int)}, "whole numbers in y_train"),
        ({"y_test": np.array([0, 1, 2, 0])}, "a label from 0 to 1 for each image"),
        ({"y_train": np.array([0, 1, 0])}, "a label from 0 to 1 for each image"),
        ({"y_train": np.array([object()] * 6)}, "expected arrays x_train"),
        ({"x_test": None}, "expected arrays x_train"),
    ],
)
def test_arrays_that_are_not_right(folders, monkeypatch, changes, message):
    given = {name: array for name, array in (arrays() | changes).items() if array is not None}
    put(folders, monkeypatch, npz(**given))
    with pytest.raises(DatasetRefusedError, match=message):
        images.load("small")


def test_other_statistics_are_refused(folders, monkeypatch):
    put(folders, monkeypatch, npz(**arrays()), ImageStatistics(7, 4, 4, 4, 3, 2))
    with pytest.raises(DatasetRefusedError, match=r"expected ImageStatistics\(train=7"):
        images.load("small")


def test_all_parts_are_needed(folders, monkeypatch):
    """Compressed in another way, a file is the same file; another content is refused."""
    content = b"four labels"
    parts = [DataFile(f"images/{name}.gz", helpers.sha256(content)) for name in "ab"]
    made = Entry("two", "image", (parts[0],), ImageStatistics(6, 4, 4, 4, 3, 2), parts=(parts[1],))
    first = helpers.put(folders.data, "images/a.gz", gzip.compress(content, 1))
    with pytest.raises(DatasetMissingError, match=r"expected images/b\.gz \(its content with the sha256"):
        images.locate_all(made)
    second = helpers.put(folders.data, "images/b.gz", gzip.compress(content, 9))
    assert images.locate_all(made) == [first, second]
    helpers.put(folders.data, "images/b.gz", gzip.compress(b"others"))
    with pytest.raises(DatasetRefusedError, match="expected a content with the sha256"):
        images.locate_all(made)


def test_real_files(real):
    for name in ("fashion-mnist", "cifar10-subset"):
        found = images.load(name)  # checks the statistics
        assert found.y_train.bincount().unique().numel() == 1  # as many images of each class
        small = found.of_size(100)
        assert small.y_train.bincount().tolist() == [10] * 10
        assert torch.equal(small.x_train, found.of_size(100).x_train)
        assert torch.equal(small.x_test, found.x_test)


def test_digits():
    found = images.load("digits")
    assert (len(found.x_train), len(found.x_test), found.side, found.channels) == (1437, 360, 8, 1)
    assert found.x_train.dtype == torch.uint8
    assert found.x_train.max() == 255
    assert found.y_test.bincount().min() >= 35
    rows = {tuple(x.flatten().tolist()) for x in found.x_train}
    assert not any(tuple(x.flatten().tolist()) in rows for x in found.x_test)
    for size in (9, 1438):
        with pytest.raises(ValueError, match="train_size: expected a number from 10"):
            found.of_size(size)


def test_names():
    for name in ("digits", "fashion-mnist", "./folder", "/data/imagenet"):
        images.check_name(name)
    for name in ("musk1", "fashion", "MUTAG"):
        with pytest.raises(
            ValueError, match="dataset: expected one of digits, fashion-mnist, mnist-5k, cifar10-subset"
        ):
            images.check_name(name)


# ---------------------------------------------------------------------------------------------------------
# folders


@pytest.fixture
def photos(tmp_path):
    """Two classes, red and blue, of images of several sizes and modes."""
    for part, count in (("train", 4), ("val", 2)):
        for label, colour in (("cat", (250, 0, 0)), ("dog", (0, 0, 250))):
            (tmp_path / part / label).mkdir(parents=True)
            for i in range(count):
                image = Image.new("RGB", (20 + 7 * i, 30), colour)
                suffix = ".png" if i % 2 else ".JPEG"
                image.save(tmp_path / part / label / f"{i}{suffix}")
    (tmp_path / "train" / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / "train" / ".hidden").mkdir()
    return tmp_path


def test_a_folder(photos):
    found = images.load(str(photos))
    assert (found.classes, found.channels, found.side) == (2, 3, None)
    assert (len(found.x_train), len(found.x_test)) == (8, 4)
    assert found.y_test.tolist() == [0, 0, 1, 1]
    pixels = found.x_train[torch.tensor([0, 1, 4])].read(16)
    assert (pixels.shape, pixels.dtype) == ((3, 16, 16, 3), torch.uint8)
    assert (pixels[:2, ..., 0] > 200).all()
    assert (pixels[2, ..., 2] > 200).all()
    assert len(found.of_size(4).x_train) == 4


def test_random_parts(tmp_path):
    """In this image red says the column and green says the row."""
    y, x = np.mgrid[:200, :200].astype(np.uint8)
    Image.fromarray(np.stack([x, y, 0 * x], -1)).save(tmp_path / "x.png")
    files = image_folder.Files([tmp_path / "x.png"] * 50)
    draws = torch.rand(50, 4, generator=torch.Generator().manual_seed(0))
    parts = files.read(32, draws).float()
    assert torch.equal(parts, files.read(32, draws).float())
    width, height = parts[:, 0, -1, 0] - parts[:, 0, 0, 0], parts[:, -1, 0, 1] - parts[:, 0, 0, 1]
    area = width * height / 200**2
    assert 0.05 < area.min() < 0.2
    assert 0.8 < area.max() <= 1
    assert (parts[:, 0, 0, 0] < 10).any()
    assert (parts[:, 0, 0, 0] > 50).any()
    middle = files[torch.tensor([0])].read(32)[0].float()
    assert middle[16, 16, :2].tolist() == pytest.approx([100, 100], abs=4)
    assert middle[0, 0, 0] == pytest.approx(100 - 100 * 224 / 256, abs=4)


@pytest.mark.parametrize("content", [b"", b"no image", b"\xff\xd8\xff\xe0 cut"])
def test_a_broken_file_is_named(photos, content):
    (photos / "train/cat/0.JPEG").write_bytes(content)
    found = images.load(str(photos))
    with pytest.raises(DatasetRefusedError, match=r"train/cat/0\.JPEG: expected a sound JPEG or PNG"):
        found.x_train.read(8)


def test_a_cut_file_is_named(photos):
    path = photos / "train/cat/1.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(DatasetRefusedError, match=r"1\.png: expected a sound"):
        images.load(str(photos)).x_train.read(8)


@pytest.mark.parametrize("limit", ["MAX_FILE", "MAX_PIXELS"])
def test_large_files_are_refused(photos, monkeypatch, limit):
    monkeypatch.setattr(image_folder, limit, 10)
    with pytest.raises(DatasetRefusedError, match="20 x 30 pixels"):
        images.load(str(photos)).x_train.read(8)


def test_folders_that_are_not_right(photos):
    with pytest.raises(DatasetMissingError, match=r"none/train: expected a folder"):
        images.load(str(photos / "none"))
    (photos / "val" / "eel").mkdir()
    with pytest.raises(DatasetRefusedError, match="eel: expected images"):
        images.load(str(photos))
    Image.new("L", (9, 9)).save(photos / "val" / "eel" / "1.png")
    with pytest.raises(DatasetRefusedError, match=r"same classes in both parts, found \['eel'\] in one"):
        images.prepare(str(photos))
