"""The inputs of the page: random numbers, digits, or an uploaded file, in which we trust nothing."""

from __future__ import annotations

import base64
import binascii
import io
import math
import tokenize
import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

MOST_SIDE = 64  # samples and features of the random input
MOST_FILE_SIDE, MOST_ENTRIES = 256, 4096  # of a file, so that an update takes at most about 50 ms
MOST_BYTES = 256 * 1024  # of a file, before anything is decoded
MOST_HEADER = 4096
LARGEST = 1e9  # the largest absolute value in a file
IMAGES = 12  # of one digit
ACCEPTED = (
    f"a .npy file with a 2-d array (samples, features) of finite real numbers, sides of 1 to {MOST_FILE_SIDE}, "
    f"at most {MOST_ENTRIES} entries"
)

# A header is a Python literal. numpy's parser may fail on a damaged one with any of these errors.
PARSER_ERRORS = (
    *(ValueError, TypeError, KeyError, IndexError, OverflowError, MemoryError, RecursionError),
    *(SyntaxError, tokenize.TokenError),
)


class InputError(ValueError):
    """A value from the page cannot be used; the message is for the person at the page."""


@dataclass(frozen=True)
class Input:
    """A set to pool.

    X is (N, D), of float64. `picture` says that D is 64 and a vector is an 8 x 8 image, `digit`
    that X itself is one.
    """

    X: Tensor
    about: str
    picture: bool = False
    digit: bool = False


def random_input(seed: int, N: int, D: int) -> Input:
    X = torch.rand(N, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return Input(X, f"{N} samples with {D} features each, uniform in [0, 1].")


@lru_cache
def _digits() -> tuple[Tensor, Tensor]:
    """Return the images (1797, 8, 8) in [0, 1], and the digits that they show."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - a second, once it is needed

    found = load_digits()
    return torch.from_numpy(found.images / 16.0), torch.from_numpy(found.target)


def digit_rows(digit: int, which: int) -> Input:
    """Make the input of one image, whose rows are the samples and whose columns are the features."""
    images, shown = _digits()
    of_digit = images[shown == digit]
    X = of_digit[which % len(of_digit)]
    about = (
        f"One image of a {digit}. Its 8 rows are the samples, its 8 columns the features, so P has an entry "
        "for each pixel. Max pooling picks the brightest pixel of each column."
    )
    return Input(X.clone(), about, digit=True)


def digit_images(digit: int, which: int) -> Input:
    """Make the input of several images.

    Each is a sample with 64 pixels as features; the pooled vector is an image.
    """
    images, shown = _digits()
    of_digit = images[shown == digit]
    chosen = torch.arange(which, which + IMAGES) % len(of_digit)
    about = (
        f"{IMAGES} images of a {digit}. Each image is a sample, its 64 pixels are the features, so the pooled "
        "vector is an image: the mean is blurred, the max is all strokes together."
    )
    return Input(of_digit[chosen].reshape(IMAGES, 64).clone(), about, picture=True)


def whole(name: str, value: Any, least: int, most: int) -> int:
    """Read a whole number from a field of the page, which may be empty or hold anything."""
    accepted = f"{name}: expected a whole number from {least} to {most}"
    if type(value) not in (int, float) or (type(value) is float and not math.isfinite(value)):
        raise InputError(f"{accepted}, got {'nothing' if value is None else clean(repr(value))}")
    if value != int(value) or not least <= value <= most:
        raise InputError(f"{accepted}, got {clean(value)}")
    return int(value)


def clean(text: object, most: int = 60) -> str:
    """Make a foreign text printable and short, for a message. Dash does not turn strings into HTML."""
    shown = "".join(c if c.isprintable() else "?" for c in str(text)[: most + 1])
    return shown if len(shown) <= most else shown[: most - 3] + "..."


def size(count: float) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def decode(contents: object) -> bytes:
    """Return the bytes of a browser's data URL, `data:...;base64,...`."""
    if not isinstance(contents, str):
        raise InputError(f"expected {ACCEPTED}; got no content")
    _, comma, body = contents.partition(",")
    if not comma:
        raise InputError(f"expected {ACCEPTED}; got content in another form than the page sends")
    if len(body) > 4 * (MOST_BYTES // 3 + 1):
        raise too_large(len(body) * 0.75)
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error:
        raise InputError(f"expected {ACCEPTED}; got content that is not base64") from None


def too_large(count: float) -> InputError:
    return InputError(f"expected a file of at most {size(MOST_BYTES)}, {ACCEPTED}; got {size(count)}")


def parse_npy(data: bytes) -> Tensor:
    """Read the array of a .npy file: first the header, and the values only if it is sound. Never unpickle."""
    if len(data) > MOST_BYTES:
        raise too_large(len(data))
    if not data.startswith(npy.MAGIC_PREFIX):
        start = clean(repr(data[:8]), 40) if data else "an empty file"
        raise InputError(f"expected {ACCEPTED}; got a file that is not .npy (it starts with {start})")
    file = io.BytesIO(data)
    shape, fortran, dtype = _header(file)
    if dtype.hasobject:
        raise InputError(f"expected {ACCEPTED}; got pickled Python objects, which are never loaded")
    if dtype.kind not in "iuf" or dtype.subdtype is not None:
        raise InputError(f"expected {ACCEPTED}; got entries of type {clean(dtype)}")
    if len(shape) != 2:
        raise InputError(f"expected {ACCEPTED}; got an array of shape {clean(shape)}")
    if not all(1 <= n <= MOST_FILE_SIDE for n in shape) or math.prod(shape) > MOST_ENTRIES:
        raise InputError(f"expected {ACCEPTED}; got an array of shape {clean(shape)}")
    body = data[file.tell() :]
    expected = math.prod(shape) * dtype.itemsize
    if len(body) != expected:
        what = "is cut off" if len(body) < expected else "has too much"
        raise InputError(
            f"expected {expected} bytes of values for shape {clean(shape)} of {clean(dtype)}; "
            f"got {len(body)}: the file {what}"
        )
    with np.errstate(over="ignore", invalid="ignore"):  # a value beyond float64 becomes infinite and is refused
        values = np.frombuffer(body, dtype).reshape(shape, order="F" if fortran else "C").astype(np.float64)
    bad = int((~np.isfinite(values)).sum())
    if bad:
        raise InputError(f"expected {ACCEPTED}; got {bad} entries that are NaN or infinite")
    if float(np.abs(values).max()) > LARGEST:
        raise InputError(f"expected entries of size at most {LARGEST:g}; got {float(np.abs(values).max()):.3g}")
    return torch.from_numpy(np.ascontiguousarray(values))


def _header(file: io.BytesIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    try:
        version = npy.read_magic(file)
        if version not in readers:
            raise InputError(
                f"expected {ACCEPTED}, in version 1.0 or 2.0; got version {version[0]}.{version[1]}"
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy warns of a header that Python 2 wrote, which is fine
            return readers[version](file, max_header_size=MOST_HEADER)
    except InputError:
        raise
    except PARSER_ERRORS as error:
        raise InputError(
            f"expected {ACCEPTED}; got a .npy header that cannot be read ({clean(error)})"
        ) from None


def encode(X: Tensor) -> str:
    """Encode a sound array in the form in which the browser sent it, for the page to keep."""
    file = io.BytesIO()
    np.save(file, X.numpy(), allow_pickle=False)
    return "data:;base64," + base64.b64encode(file.getvalue()).decode()
