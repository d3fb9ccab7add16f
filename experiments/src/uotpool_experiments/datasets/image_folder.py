"""Folders of image files in ImageNet's layout: root/train/CLASS/*.jpg, root/val/CLASS/*.jpg."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from uotpool_experiments.datasets.errors import DatasetMissingError, DatasetRefusedError

PARTS = ("train", "val")
SUFFIXES = (".jpg", ".jpeg", ".png")
FORMATS = ("JPEG", "PNG")
MAX_FILE = 64 * 2**20
MAX_PIXELS = 64 * 2**20
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)  # of a random crop, as is usual in training on ImageNet
MARGIN = 256 / 224  # the shorter side of a test image before the crop, over the side of the crop


class Files:
    """Image files, read when they are asked for."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = list(paths)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, chosen: Tensor) -> Files:
        return Files([self.paths[int(i)] for i in chosen])

    def read(self, size: int, draws: Tensor | None = None) -> Tensor:
        """Return uint8 (N, size, size, 3): the middle of each image, or a part that `draws` (N, 4) select."""
        rows: list[Any] = [None] * len(self) if draws is None else draws.tolist()
        pixels = [_pixels(path, size, row) for path, row in zip(self.paths, rows, strict=True)]
        return torch.from_numpy(np.stack(pixels))


class Listing(NamedTuple):
    files: Files
    labels: Tensor
    classes: list[str]


def listing(root: Path) -> list[Listing]:
    """List train/ and val/. Both must have the same classes, and each class an image."""
    found = [_part(root / name) for name in PARTS]
    if found[0].classes != found[1].classes:
        other = sorted(set(found[0].classes) ^ set(found[1].classes))
        raise DatasetRefusedError(f"{root}: expected the same classes in both parts, found {other[:5]} in one")
    return found


def _part(folder: Path) -> Listing:
    if not folder.is_dir():
        raise DatasetMissingError(f"{folder}: expected a folder with a folder for each class, found none")
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name[0] != ".")
    paths, labels = [], []
    for label, name in enumerate(classes):
        inside = sorted(
            p for p in (folder / name).iterdir() if p.suffix.lower() in SUFFIXES and p.name[0] != "."
        )
        if not inside:
            raise DatasetRefusedError(f"{folder / name}: expected images ({', '.join(SUFFIXES)}), found none")
        paths += inside
        labels += [label] * len(inside)
    if len(classes) < 2:
        raise DatasetRefusedError(f"{folder}: expected folders of two classes or more, found {len(classes)}")
    return Listing(Files(paths), torch.tensor(labels), classes)


def _pixels(path: Path, size: int, draw: Sequence[float] | None) -> np.ndarray:
    pil = _pillow()
    bombs = (pil.DecompressionBombError, pil.DecompressionBombWarning)
    try:
        bytes_there = path.stat().st_size
        with pil.open(path, formats=FORMATS) as image:
            if bytes_there > MAX_FILE or image.width * image.height > MAX_PIXELS:
                raise ValueError(f"{bytes_there} bytes, {image.width} x {image.height} pixels")
            box = _middle(image.size) if draw is None else _random(image.size, draw)
            made = image.convert("RGB").resize((size, size), pil.Resampling.BILINEAR, box=box)
            return np.asarray(made)
    except (OSError, ValueError, SyntaxError, *bombs) as error:
        raise DatasetRefusedError(
            f"{path}: expected a sound {' or '.join(FORMATS)} image, up to {MAX_FILE} bytes and {MAX_PIXELS} "
            f"pixels, found: {error}"
        ) from error


def _pillow() -> Any:
    try:
        from PIL import Image  # noqa: PLC0415 - of an extra
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "image files need Pillow: pip install 'uotpool-experiments[images]'", name="PIL"
        ) from error
    return Image


Box = tuple[float, float, float, float]


def _middle(sides: tuple[int, int]) -> Box:
    width, height = sides
    side = min(width, height) / MARGIN
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def _random(sides: tuple[int, int], draw: Sequence[float]) -> Box:
    """Return a part of random area and ratio at a random place, cut to the image."""
    width, height = sides
    area, ratio, x, y = draw
    pixels = (AREA[0] + area * (AREA[1] - AREA[0])) * width * height
    ratio = math.exp(math.log(RATIO[0]) + ratio * (math.log(RATIO[1]) - math.log(RATIO[0])))
    w, h = min(math.sqrt(pixels * ratio), width), min(math.sqrt(pixels / ratio), height)
    left, top = x * (width - w), y * (height - h)
    return left, top, left + w, top + h
