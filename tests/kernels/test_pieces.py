"""Long batches in pieces: the bits of one call, all of it done, and Ctrl-C answered in between."""

from __future__ import annotations

import ctypes
import itertools
import select
import signal
import subprocess
import sys
import time

import pytest
import torch

from tests.cases import SOLVERS
from tests.kernels import windows
from tests.kernels.harness import dense, equal, masked, modules, ragged, randn, solved
from tests.kernels.raw import NATIVE, Raw
from tests.tolerances import SECONDS_TO_ANSWER
from uotpool.backends.cpu import library, pieces

each_solver = pytest.mark.parametrize("solver", SOLVERS)
each_head = pytest.mark.parametrize("plan", [False, True], ids=["pool", "plan"])

PROBLEMS = {
    "dense": lambda: dense(9, 5, 7, p0="shared"),
    "dense, p0 of each set": lambda: dense(9, 5, 7),
    "masked": lambda: masked(9, 5, 7, p0="shared"),
    "ptr": lambda: ragged("ptr", [3, 0, 0, 11, 1, 4, 0], 7, p0="shared"),
    "index": lambda: ragged("index", [6, 0, 11, 4], 7, p0="shared"),
    "scale": lambda: ragged("ptr", [3, 0, 11, 1, 4, 0], 7)._replace(scale=randn(7, seed=5)),
}


@pytest.fixture
def cut(monkeypatch):
    """Cut pieces of so much work from now on; return the list that collects the pieces."""
    made: list[tuple[int, int]] = []

    def start(work):
        run = pieces.run

        def watched(count, part, reach):
            def noted(begin, end):
                made.append((begin, end))
                return part(begin, end)

            run(count, noted, reach)

        monkeypatch.setattr(pieces, "FIRST_WORK", work)
        monkeypatch.setattr(pieces, "GROWTH", 1)  # so they stay as small
        monkeypatch.setattr(pieces, "run", watched)
        return made

    return start


@pytest.mark.parametrize("name", PROBLEMS)
@each_head
@each_solver
def test_bits_are_those_of_one_call(cut, solver, plan, name):
    problem, weights = PROBLEMS[name](), modules(solver, 2)
    want = solved(problem, weights, solver, plan=plan, impl="cpu")
    made = cut(2 * 5 * 7 * 3)  # two sets of five samples
    got = solved(problem, weights, solver, plan=plan, impl="cpu")
    assert equal(want, got) == []
    forward, backward = made[: len(made) // 2], made[len(made) // 2 :]
    assert forward == backward
    assert len(forward) > 1
    assert forward[0][0] == 0
    assert forward[-1][1] == problem.num_sets
    assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(forward))
    assert all(begin < end for begin, end in forward)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("stride", [(2, 2), (1, 1)], ids=["apart", "overlapping"])
def test_bits_of_windows_are_those_of_one_call(cut, stride, memory_format):
    scale = 0.7 if stride == (2, 2) else "each"
    case = windows.case((5, 3, 9, 8), (2, 2), stride, scale=scale).to(torch.float32, memory_format)
    want = windows.solved(case, windows.fused)
    made = cut(1)
    assert equal(want, windows.solved(case, windows.fused)) == []
    assert made == [(b, b + 1) for b in range(5)] * 2


def test_pieces_grow_with_what_the_clock_says(monkeypatch):
    """Here a set takes a millisecond: after the first piece, towards the time that is wanted."""
    clock, made = [0.0], []
    monkeypatch.setattr(pieces.time, "perf_counter", lambda: clock[0])

    def part(begin, end):
        made.append(end - begin)
        clock[0] += 2**-10 * (end - begin)  # exact
        return library.OK

    pieces.run(2000, part, pieces.equal_reach(pieces.FIRST_WORK // 4, 2000))
    assert made[:3] == [4, 64, 256]
    assert set(made[3:-1]) == {256}
    assert sum(made) == 2000


def test_a_failure_ends_the_loop():
    with pytest.raises(MemoryError):
        pieces.run(3, lambda begin, end: library.NO_MEMORY, pieces.equal_reach(pieces.FIRST_WORK, 3))


def test_refused_pieces():
    raw = Raw(sizes=[3, 2, 4])
    call = ctypes.byref(raw.call())
    for begin, end in ((-1, 2), (2, 1), (0, 4), (4, 4)):
        assert NATIVE.uotpool_forward_bags(call, begin, end) == library.BAD_ARGUMENT
        assert NATIVE.uotpool_backward_bags(call, begin, end, None) == library.BAD_ARGUMENT
    assert NATIVE.uotpool_backward_bags(call, 1, 2, None) == library.NULL_POINTER  # nowhere to go on from
    scaled = Raw(sizes=[3, 2, 4], scale=7)
    alone = ctypes.byref(scaled.call(dweights=None))
    assert NATIVE.uotpool_backward_bags(alone, 1, 2, None) == library.NULL_POINTER
    assert NATIVE.uotpool_backward_bags(call, 1, 2, 4) == library.MISALIGNED
    assert NATIVE.uotpool_forward_bags(None, 0, 0) == library.NULL_POINTER
    assert NATIVE.uotpool_forward_bags(call, 2, 2) == library.OK


CHILD = """
import signal, sys, torch
from uotpool.backends.cpu import windows

signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it
torch.set_num_threads(1)
go = lambda: print("go", flush=True)
weights = dict(alpha0=torch.linspace(0.5, 1.5, 100), alpha1=1.0, alpha2=1.0)
for what in sys.argv[1:]:
    X = torch.rand(3000, 50, 64, requires_grad=what == "backward")
    try:
        if what == "windows":
            images = torch.rand(100, 64, 56, 56)
            of_modules = torch.linspace(0.5, 1.5, 60).reshape(3, 20)
            call = lambda: windows.pool(images, of_modules, None, (3, 3), (1, 1), (0, 0), (54, 54))
        elif what == "backward":
            y = uot_pool(X, K=100, **weights).sum()
            call = lambda: y.backward(retain_graph=True)
        else:
            call = lambda: uot_pool(X, rho=1.0, K=100, solver="badmm-q", **weights)
        go()
        while True:  # the signal may come late where the machine is busy
            call()
    except KeyboardInterrupt:
        print(what, "interrupted", flush=True)
"""


@pytest.mark.process
def test_ctrl_c_is_answered():
    """A signal in the middle of a call of some seconds, which in one piece would answer later than the limit.

    The calls share a process, which takes long to start.
    """
    calls, took = ("forward", "backward", "windows"), {}
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, *calls], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        for what in calls:
            assert child.stdout.readline() == "go\n", child.stderr and child.stderr.read()
            time.sleep(0.4)
            sent = time.monotonic()
            child.send_signal(signal.SIGINT)
            assert select.select([child.stdout], [], [], 60)[0], f"{what} goes on"
            assert child.stdout.readline() == f"{what} interrupted\n", child.stderr and child.stderr.read()
            took[what] = time.monotonic() - sent
    finally:
        child.kill()
        child.communicate()
    assert max(took.values()) <= SECONDS_TO_ANSWER, took
