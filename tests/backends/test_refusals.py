"""What is wrong is refused: by C with a status, and nothing is written, by operators with an error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import uotpool
from tests.backends.raw import DTYPES, GRADIENTS, NATIVE, Raw
from tests.cases import SOLVERS
from uotpool.backends.cpu import library
from uotpool.backends.ops import FIXED, SLOTS, TRANSFORMS

ROOT = Path(__file__).parents[2]
BAD, NULL, MISALIGNED = library.BAD_ARGUMENT, library.NULL_POINTER, library.MISALIGNED
LARGE = 2**62
CODES = {name: code for code, name in enumerate(TRANSFORMS)}


def refused(raw: Raw, status: int, *, forward: bool = True, backward: bool = True, **other: object) -> None:
    for t in raw.outputs().values():
        t.fill_(7.0)
    if forward:
        assert raw.forward(**other) == status
    if backward:
        assert raw.backward(**other) == status
    for name, t in raw.outputs().items():
        assert (t == 7).all(), name


def test_what_is_right_is_not_refused():
    """Else the tests below would prove nothing."""
    good = (Raw(), Raw(sizes=[3, 0, 4]), Raw(sizes=[3, 0, 4], absent=2), Raw("badmm-q", plan=True))
    for raw in (*good, Raw(scale=1), Raw(scale=7)):
        assert raw.forward() == raw.backward() == library.OK


def test_no_call():
    assert NATIVE.uotpool_forward(None) == NATIVE.uotpool_backward(None) == NULL
    assert NATIVE.uotpool_scratch(None, 0) == -NULL


SIZES = [
    *(("dtype", v) for v in (-1, 2, LARGE, -LARGE)),
    *(("solver", v) for v in (-1, 3, LARGE)),
    *(("head", v) for v in (-1, 2, LARGE)),
    *(("K", v) for v in (0, -1, 2**20 + 1, LARGE, -LARGE)),
    *((name, v) for name in "BMN" for v in (-1, 2**40 + 1, LARGE, -LARGE, 2**63 - 1)),
    *(("D", v) for v in (0, -1, 2**31 + 1, LARGE, -LARGE, 2**63 - 1)),
    *(("threads", v) for v in (0, -1, 4097, LARGE, -LARGE)),
]


@pytest.mark.parametrize(("name", "value"), SIZES)
def test_codes_and_sizes(name, value):
    refused(Raw(), BAD, **{name: value})
    refused(Raw(sizes=[3, 4], rows=True), BAD, **{name: value})


@pytest.mark.parametrize(
    "sizes",
    [
        {"M": 16},  # is not B N
        {"N": 4},
        {"B": 4},
        {"B": 2**40, "N": 2**40, "M": 2**40},  # products beyond 64 bits
        {"B": 2**32, "N": 2**32, "M": 0},
        {"B": 2, "N": 2**39, "M": 2**40, "D": 2**31},
        {"B": 1, "N": 2**40, "M": 2**40, "D": 2**20, "K": 2**20},
        {"B": 2**40, "N": 0, "M": 0, "K": 2**20},
        {"B": 2**40, "N": 0, "M": 0, "D": 2**31},
        {"B": 2**31, "N": 0, "M": 0, "D": 2**31},  # an output of 2^62 entries, so 2^65 bytes
    ],
    ids=str,
)
def test_sizes_that_do_not_fit_together(sizes):
    """Asked of `scratch` too, which touches nothing and has every coefficient of the length that K asks for."""
    refused(Raw(), BAD, **sizes)
    for dtype in DTYPES:
        assert Raw(dtype=dtype).scratch(True, **sizes) == -BAD


@pytest.mark.parametrize("solver", SOLVERS)
def test_coefficients(solver):
    """Transforms that a coefficient does not have, lengths other than 1 and K (D), what there must not be."""
    raw = Raw(solver, scale=7)
    for slot in SLOTS:
        transform, length, array = f"transform_{slot}", f"length_{slot}", f"coefficient_{slot}"
        if slot == "rho" and solver == "sinkhorn":
            numbers = raw.call().coefficient_alpha0
            refused(raw, BAD, **{transform: CODES["identity"], length: 1, array: numbers})
            for one in ({length: 1}, {array: numbers}, {f"d{array}": numbers}):
                refused(raw, BAD, **one)
            continue
        wrong = ("softplus", "exp") if slot == "scale" else ("linear",)
        for code in (-1, 6, LARGE, *(CODES[name] for name in wrong)):
            refused(raw, BAD, **{transform: code})
        refused(raw, BAD, **{transform: CODES["none"]})  # but there are numbers
        if slot != "scale":
            refused(raw, BAD, **{transform: CODES["none"], length: 0, array: None, f"d{array}": None})
        for count in (0, -1, 3, 8, LARGE, -LARGE):
            refused(raw, BAD, **{length: count})
        refused(raw, NULL, **{array: None})
        refused(raw, BAD, **{transform: FIXED})  # with a derivative
        assert raw.backward(**{f"d{array}": None}) == library.OK
        assert raw.backward(**{f"d{array}": None, length: 1}) == library.OK


def test_ptr_that_is_no_offsets():
    for ptr in ([1, 3, 7], [-1, 3, 7], [0, 4, 3], [0, 8, 7], [0, -1, 7], [0, 3, 6], [0, 3, 8], [0, 3, 2**62]):
        wrong = torch.tensor(ptr)
        refused(Raw(sizes=[3, 4]), BAD, ptr=wrong.data_ptr())
    for ptr in ([1, 3, 7], [0, 4, 3], [0, 3, 10], [0, 3, 2**62], [0, 2**62, 7]):
        wrong = torch.tensor(ptr)
        refused(Raw(sizes=[3, 4], absent=2), BAD, ptr=wrong.data_ptr())


@pytest.mark.parametrize("row", [-1, 9, 2**40, -(2**62), 2**63 - 1])
@pytest.mark.parametrize("place", [0, 3, 6])
def test_rows_out_of_range(place, row):
    raw = Raw(sizes=[3, 4], absent=2)
    rows = raw.arrays["rows"]
    assert rows is not None
    rows[place] = row
    refused(raw, BAD)


@pytest.mark.parametrize("plan", [False, True])
def test_null(plan):
    raw = Raw(plan=plan, sizes=[3, 4], rows=True)
    refused(raw, NULL, X=None)
    refused(raw, NULL, ptr=None)  # rows without ptr
    refused(raw, NULL, out=None, backward=False)
    refused(raw, NULL, dout=None, forward=False)
    refused(raw, NULL, log_p0=None, forward=False)  # the derivative by what is not there
    refused(raw, NULL, log_q0=None, forward=False)
    assert raw.forward(dout=None, **dict.fromkeys(GRADIENTS)) == library.OK
    assert raw.backward(out=None, **dict.fromkeys(GRADIENTS)) == library.OK


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_misaligned(dtype):
    fixed = Raw(dtype=dtype, scale=7, transforms=("fixed",) * 5)
    for raw in (Raw(dtype=dtype, scale=7), Raw(dtype=dtype, sizes=[3, 4], rows=True, scale=1), fixed):
        for name, t in raw.arrays.items():
            for offset in {1, 2, t.element_size() // 2, t.element_size() - 1} if t is not None else ():
                assert t is not None
                refused(raw, MISALIGNED, **{name: t.data_ptr() + offset})


@pytest.mark.parametrize("isa", [-1, 3, 99, 2**31 - 1])
def test_unknown_instruction_sets(isa):
    before = library.isa()
    assert NATIVE.uotpool_has_isa(isa) == 0
    assert NATIVE.uotpool_set_isa(isa) == library.NO_SUCH_ISA
    assert library.isa() == before


# ---------------------------------------------------------------------------------------------------------
# uotpool_group


def group(index, present, M, B, N):
    ptr = torch.full((B + 1,), -7)
    rows = torch.full((M,), -7)
    at = [None if t is None else t.data_ptr() for t in (index, present)]
    return NATIVE.uotpool_group(*at, M, B, N, ptr.data_ptr(), rows.data_ptr()), ptr.tolist(), rows.tolist()


def slow_group(bag_of: list[int], present: list[bool], B: int) -> tuple[list[int], list[int]]:
    ptr, rows = [0], []
    for b in range(B):
        rows += [i for i, bag in enumerate(bag_of) if bag == b and present[i]]
        ptr.append(len(rows))
    return ptr, rows


@given(st.data(), st.integers(1, 6), st.integers(0, 30), st.booleans())
@settings(max_examples=200, deadline=None)
def test_group_by_index(data, B, M, masked):
    bag_of = data.draw(st.lists(st.integers(0, B - 1), min_size=M, max_size=M))
    there = data.draw(st.lists(st.booleans(), min_size=M, max_size=M)) if masked else [True] * M
    present = torch.tensor(there, dtype=torch.bool) if masked else None
    status, ptr, rows = group(torch.tensor(bag_of, dtype=torch.int64), present, M, B, 0)
    assert status == library.OK
    want_ptr, want_rows = slow_group(bag_of, there, B)
    assert ptr == want_ptr
    assert rows[: ptr[-1]] == want_rows
    assert rows[ptr[-1] :] == [0] * (M - ptr[-1])


@given(st.data(), st.integers(0, 5), st.integers(0, 6))
@settings(max_examples=100, deadline=None)
def test_group_dense(data, B, N):
    M = B * N
    there = data.draw(st.lists(st.booleans(), min_size=M, max_size=M))
    status, ptr, rows = group(None, torch.tensor(there, dtype=torch.bool), M, B, N)
    assert status == library.OK
    want_ptr, want_rows = slow_group([i // max(N, 1) for i in range(M)], there, B)
    assert ptr == want_ptr
    assert rows[: ptr[-1]] == want_rows


def test_group_takes_any_byte_for_present():
    present = torch.tensor([0, 1, 2, 255, 0, 128], dtype=torch.uint8)
    status, ptr, rows = group(torch.tensor([1, 1, 0, 1, 0, 0]), present, 6, 2, 0)
    assert (status, ptr, rows[:4]) == (library.OK, [0, 2, 4], [2, 5, 1, 3])


@pytest.mark.parametrize("wrong", [-1, 3, 2**40, -(2**63), 2**63 - 1])
@pytest.mark.parametrize("present", [None, torch.zeros(4, dtype=torch.bool)])
def test_group_refuses_an_index_out_of_range(wrong, present):
    """Also where the row is absent; no row is written."""
    index = torch.tensor([0, 2, wrong, 1])
    status, _, rows = group(index, present, 4, 3, 0)
    assert status == BAD
    assert rows == [-7] * 4


def test_group_refuses_sizes_and_pointers():
    index, ptr, rows = torch.zeros(4, dtype=torch.int64), torch.full((3,), -7), torch.full((4,), -7)
    i, p, r = (t.data_ptr() for t in (index, ptr, rows))
    refusals = [
        ((i, None, -1, 2, 0, p, r), BAD),
        ((i, None, 4, -1, 0, p, r), BAD),
        ((i, None, 4, 2, -1, p, r), BAD),
        ((i, None, 4, LARGE, 0, p, r), BAD),
        ((i, None, LARGE, 2, 0, p, r), BAD),
        ((None, None, 4, 2, 0, p, r), BAD),  # neither index nor a size of the bags
        ((None, None, 4, 2, 3, p, r), BAD),  # 4 rows are not bags of 3
        ((None, None, 4, 1, 2, p, r), BAD),  # and two bags of 2 are not one
        ((i, None, 4, 2, 0, None, r), NULL),
        ((i, None, 4, 2, 0, p, None), NULL),
        ((i + 1, None, 4, 2, 0, p, r), MISALIGNED),
        ((i, None, 4, 2, 0, p + 4, r), MISALIGNED),
        ((i, None, 4, 2, 0, p, r + 2), MISALIGNED),
    ]
    for arguments, status in refusals:
        assert NATIVE.uotpool_group(*arguments) == status, arguments
    assert (ptr == -7).all()
    assert (rows == -7).all()
    assert NATIVE.uotpool_group(i, None, 0, 0, 0, p, None) == library.OK


# ---------------------------------------------------------------------------------------------------------
# Operators


@pytest.mark.process
def test_random_hostile_calls():
    """A part of what `python -m tests.backends.hostile` does, in a process of its own. Some 5 s."""
    wanted = {"operators": 600, "c": 1000}
    words = [str(word) for pair in wanted.items() for word in pair]
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.backends.hostile", *words, "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    for calls, line in zip(wanted.values(), done.stdout.splitlines(), strict=True):
        counts = json.loads(line)
        assert min(counts.values()) > calls / 5, "calls that are all refused, or all good, prove little"


ROWS, INDEX, PRESENT = torch.zeros(10, 3), torch.tensor([0, 1] * 5), torch.ones(10, dtype=torch.bool)


@pytest.mark.parametrize(
    "arguments",
    [
        (ROWS, None, PRESENT[:1], 2, 5),
        (ROWS, INDEX, PRESENT[:9], 2, 0),
        (ROWS, INDEX[:9], None, 2, 0),
        (ROWS, INDEX.int(), None, 2, 0),
        (ROWS, INDEX, PRESENT.float(), 2, 0),
        (ROWS, INDEX[None], None, 2, 0),
        (ROWS, None, PRESENT, 2, 4),
        (ROWS, INDEX, None, -1, 0),
        (ROWS[0, 0], INDEX, None, 2, 0),
    ],
    ids=["dense mask", "mask", "index", "int32", "float", "dimensions", "sizes", "sets", "rows"],
)
def test_group_operator_refuses(arguments):
    with pytest.raises(ValueError, match="uotpool::group"):
        torch.ops.uotpool.group(*arguments)


def test_group_operator_reads_strides_and_refuses_an_index_out_of_range():
    strided = torch.stack([INDEX, 1 - INDEX], 1)[:, 0]
    got = torch.ops.uotpool.group(ROWS, strided, torch.stack([PRESENT, ~PRESENT], 1)[:, 0], 2, 0)
    assert [t.tolist() for t in got] == [[0, 5, 10], [0, 2, 4, 6, 8, 1, 3, 5, 7, 9]]
    with pytest.raises(RuntimeError, match="row number out of range"):
        torch.ops.uotpool.group(ROWS, INDEX + 1, None, 2, 0)


def test_sets_without_rows_cost_nothing():
    """The library goes through the sets one by one, and a tensor without entries can have 2^40 of them."""
    X, alpha0 = torch.empty(2**40, 0, 3, requires_grad=True), torch.ones(4, requires_grad=True)
    P = uotpool.Problem(X, alpha0=alpha0, alpha1=1.0, alpha2=1.0).plan()
    assert P.shape == X.shape
    P.sum().backward()
    assert alpha0.grad is not None
    assert alpha0.grad.tolist() == [0.0] * 4
