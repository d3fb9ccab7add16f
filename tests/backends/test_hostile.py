"""Operators and C functions called as nobody should: refused with an error, never a crash or stale memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.spelling import uot_plan

ROOT = Path(__file__).parents[2]


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
def test_group_refuses(arguments):
    with pytest.raises(ValueError, match=r"uotpool::group: expected rows \(M, D\).*got rows a"):
        torch.ops.uotpool.group(*arguments)


def test_group_refuses_an_index_out_of_range():
    with pytest.raises(RuntimeError, match="row number out of range"):
        torch.ops.uotpool.group(ROWS, INDEX + 1, None, 2, 0)


def test_group_reads_an_index_with_strides():
    strided = torch.stack([INDEX, 1 - INDEX], 1)[:, 0]
    got = torch.ops.uotpool.group(ROWS, strided, torch.stack([PRESENT, ~PRESENT], 1)[:, 0], 2, 0)
    want = torch.ops.uotpool.group(ROWS, INDEX, PRESENT, 2, 0)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert want[1].tolist() == [0, 2, 4, 6, 8, 1, 3, 5, 7, 9]


def test_one_meta_tensor_among_others_is_refused():
    """Torch hands such a call to the function for shapes, whose result was what the memory held before."""
    X, weights, meta = torch.rand(4, 3), torch.ones(3, 2), torch.device("meta")
    index = torch.zeros(4, dtype=torch.int64)
    solve = (None, None, 2, None, None, weights.to(meta), None, 2, "sinkhorn", False)
    calls = {
        "group": (X, index.to(meta), None, 2, 0),
        "solve": (X, *solve),
        "solve_backward": (torch.rand(2, 3), X, *solve, [True] * 5),
        "segment_sum": (X, index.to(meta), 2),
        "segment_max": (X, index.to(meta), 2),
        "segment_spread": (X, index.to(meta)),
    }
    for name, arguments in calls.items():
        with pytest.raises(
            ValueError, match=rf"^uotpool::{name}: expected all tensors on one device, got cpu and meta"
        ):
            getattr(torch.ops.uotpool, name)(*arguments)


def test_sets_without_rows_cost_nothing():
    """The library goes through the sets one by one, and a tensor without entries can have 2^40 of them."""
    X, alpha0 = torch.empty(2**40, 0, 3, requires_grad=True), torch.ones(2, requires_grad=True)
    P = uot_plan(X, alpha0, 1.0, 1.0)
    assert P.shape == X.shape
    P.sum().backward()
    assert alpha0.grad is not None
    assert alpha0.grad.tolist() == [0.0, 0.0]
