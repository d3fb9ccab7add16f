"""Files that come to the explorer, sound and not."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
import torch
from uotpool_experiments.explorer import inputs
from uotpool_experiments.explorer.inputs import InputError

pytest.importorskip("dash", reason="NOT RUN: needs dash")

from uotpool_experiments.explorer import callbacks


def npy(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def header(text, version=b"\x01\x00"):
    size = len(text).to_bytes(2 if version == b"\x01\x00" else 4, "little")
    return b"\x93NUMPY" + version + size + text.encode("latin1")


def claims(shape, descr="'<f8'"):
    return header(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n")


GOOD = {
    "float64": npy(np.arange(6.0).reshape(2, 3)),
    "float32, Fortran": npy(np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))),
    "big endian": npy(np.arange(6, dtype=">i4").reshape(2, 3)),
    "uint8": npy(np.arange(6, dtype=np.uint8).reshape(2, 3)),
    "float16": npy(np.arange(6, dtype=np.float16).reshape(2, 3)),
}
BAD = {
    "empty": (b"", "an empty file"),
    "text": (b"a,b\n1,2\n", "not .npy"),
    "zip": (b"PK\x03\x04" + b"\0" * 50, "not .npy"),
    "pickled": (npy(np.array([[1, {}]], dtype=object), allow_pickle=True), "pickled Python objects"),
    "pickled, claimed": (claims((2, 2), "'|O'") + b"cos\nsystem\n(S'true'\ntR.", "pickled Python objects"),
    "structured": (npy(np.zeros((2, 2), dtype=[("a", "f8"), ("b", "i4")])), "entries of type"),
    "structured with objects": (claims((2, 2), "[('a', '|O')]"), "pickled Python objects"),
    "subarrays": (claims((2, 2), "('<f8', (2,))"), "cannot be read|entries of type|shape"),
    "a type that is nothing": (claims((2, 2), "()"), "cannot be read"),
    "a type of one": (claims((2, 2), "('f8',)"), "cannot be read"),
    "complex": (npy(np.zeros((2, 2), dtype=complex)), "entries of type complex128"),
    "bool": (npy(np.zeros((2, 2), dtype=bool)), "entries of type bool"),
    "strings": (npy(np.full((2, 2), "<b>x</b>")), "entries of type"),
    "dates": (npy(np.zeros((2, 2), dtype="M8[s]")), "entries of type"),
    "0-d": (npy(np.float64(1)), r"shape \(\)"),
    "1-d": (npy(np.zeros(4)), r"shape \(4,\)"),
    "3-d": (npy(np.zeros((2, 2, 2))), r"shape \(2, 2, 2\)"),
    "no samples": (npy(np.zeros((0, 4))), r"shape \(0, 4\)"),
    "no features": (npy(np.zeros((4, 0))), r"shape \(4, 0\)"),
    "too many entries": (npy(np.zeros((100, 100), dtype=np.uint8)), r"shape \(100, 100\)"),
    "too long": (npy(np.zeros((257, 1))), r"shape \(257, 1\)"),
    "too many bytes": (npy(np.zeros((300, 300))), "at most 262.1 kB.*got 720.1 kB"),
    "huge claim": (claims((10**9, 10**9)) + b"\0" * 64, r"shape \(1000000000, 1000000000\)"),
    "huge side": (claims((10**30, 1)), "shape"),
    "negative": (claims((-4, 4)) + b"\0" * 64, "shape"),
    "huge entries": (claims((1, 1), "'<f99999999'"), "cannot be read"),
    "cut off": (npy(np.zeros((4, 4)))[:-8], "128 bytes of values.*got 120: the file is cut off"),
    "too much": (npy(np.zeros((4, 4))) + b"\0", "got 129: the file has too much"),
    "cut header": (npy(np.zeros((4, 4)))[:40], "cannot be read"),
    "only magic": (b"\x93NUMPY", "cannot be read"),
    "version 9": (b"\x93NUMPY\x09\x00" + b"\0" * 50, "version 9.0"),
    "nested header": (header("(" * 3000), "cannot be read"),
    "long header": (header(" " * 60000), "cannot be read"),
    "header with code": (header("__import__('os').system('true')\n"), "cannot be read"),
    "NaN": (npy(np.array([[1.0, np.nan]])), "1 entries that are NaN or infinite"),
    "infinite": (npy(np.array([[np.inf, -np.inf]])), "2 entries that are NaN or infinite"),
    "large": (npy(np.array([[1e300]])), r"at most 1e\+09; got 1e\+300"),
}


def url(data):
    return "data:application/octet-stream;base64," + base64.b64encode(data).decode()


@pytest.mark.parametrize("name", GOOD)
def test_a_sound_file_is_read(name):
    values = inputs.parse_npy(inputs.decode(url(GOOD[name])))
    assert values.dtype == torch.float64
    assert values.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert torch.equal(inputs.parse_npy(inputs.decode(inputs.encode(values))), values)


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_cannot_be_used_is_told_and_the_input_stays(name):
    data, message = BAD[name]
    with pytest.raises(InputError, match=message):
        inputs.parse_npy(data)
    loaded, shown = callbacks.load({"name": "<b>a.npy</b>", "bytes": len(data), "contents": url(data)})
    assert loaded is callbacks.no_update
    assert isinstance(shown.children, str)  # text, so nothing of it is HTML
    assert shown.children.startswith("<b>a.npy</b>: expected ")


@pytest.mark.parametrize(
    "chosen",
    [
        None,
        [],
        "x",
        {},
        {"contents": 3},
        {"contents": "no comma"},
        {"contents": "data:,!!!"},
        {"name": 7, "bytes": 1e9},
    ],
)
def test_what_no_browser_sends_is_told_too(chosen):
    loaded, shown = callbacks.load(chosen)
    assert loaded is callbacks.no_update
    assert "expected" in shown.children


def test_a_large_text_is_refused_before_it_is_decoded():
    with pytest.raises(InputError, match=r"got 7.5 MB"):
        inputs.decode("data:," + "A" * 10_000_000)


def test_changed_bytes_of_a_file_never_do_more_than_a_message():
    sound = GOOD["float64"]
    generator = np.random.default_rng(0)
    refused = 0
    for _ in range(3000):
        data = bytearray(sound)
        for at in generator.integers(0, len(data), generator.integers(1, 4)):
            data[at] = generator.integers(0, 256)
        try:
            values = inputs.parse_npy(bytes(data))
        except InputError:
            refused += 1
        else:
            assert values.dim() == 2
            assert values.isfinite().all()
    assert refused > 500
