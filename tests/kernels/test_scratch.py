"""Scratch that is kept between calls: its bound, the way to free it, and that nobody sees what was in it."""

from __future__ import annotations

import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.cases import SOLVERS
from tests.kernels.harness import equal
from tests.kernels.raw import Raw
from uotpool.backends.cpu import library, scratch

MIB = 2**20


@pytest.fixture(autouse=True)
def as_before():
    """Nothing is kept when a test starts, and the limit is the one of before when it ends."""
    before = scratch.limit()
    scratch.free()
    yield
    scratch.limit(before)
    scratch.free()


def medium(solver="badmm-q", N=500, **how):
    """Some MiB of scratch."""
    return Raw(solver, torch.float32, B=1, N=N, D=200, K=4, **how)


def test_what_is_kept_is_one_block_and_can_be_freed():
    raw = medium()
    raw.run()
    kept = scratch.kept()
    assert kept == raw.scratch(True) > MIB  # which serves the forward pass, too
    raw.run()
    assert scratch.kept() == kept
    assert scratch.free() == kept
    assert scratch.kept() == scratch.free() == 0


def test_a_larger_block_replaces_a_smaller_one():
    medium(N=300).run()
    large = medium(N=600)
    large.run()
    assert scratch.kept() == large.scratch(True)
    medium(N=300).run()
    assert scratch.kept() == large.scratch(True)


def test_small_blocks_are_not_kept():
    Raw(B=2, N=5, D=7).run()
    assert scratch.kept() == 0


def test_the_limit():
    assert scratch.limit() == 128 * MIB
    raw = medium()
    size = raw.scratch(True)
    assert scratch.limit(size - 1) == scratch.limit() == size - 1
    raw.run()
    assert 0 <= scratch.kept() < size
    scratch.free()
    scratch.limit(size)
    raw.run()
    assert scratch.kept() == size
    scratch.limit(0)
    assert scratch.kept() == 0
    raw.run()
    assert scratch.kept() == 0


def test_of_all_threads_together():
    """A block for each of four threads, but no more than the limit in all."""
    raw = Raw("badmm-q", torch.float32, B=64, N=100, D=200, K=4, threads=4)
    a_block = raw.scratch(True)
    scratch.limit(2 * a_block)
    for _ in range(3):
        raw.run()
        assert scratch.kept() <= 2 * a_block


@pytest.mark.parametrize("most", [-1, 2**63])
def test_a_limit_that_is_none(most):
    with pytest.raises(ValueError, match="most: expected a number of bytes"):
        scratch.limit(most)


def test_without_the_kernels_nothing_is_kept(monkeypatch):
    monkeypatch.setattr(library, "_library", None)
    assert (scratch.free(), scratch.kept(), scratch.limit(), scratch.limit(5)) == (0, 0, 0, 0)


@pytest.mark.parametrize("plan", [False, True], ids=["pool", "plan"])
@pytest.mark.parametrize("N", [500, 1000], ids=["small", "large"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_what_a_call_left_there_does_not_matter(solver, N, plan):
    raw = medium(solver, N, plan=plan)
    want = raw.run()
    scratch.free()
    spoiled = medium("badmm-q", N, plan=plan)
    assert spoiled.arrays["X"] is not None
    spoiled.arrays["X"].fill_(torch.nan)
    spoiled.run()
    assert scratch.kept() >= raw.scratch(True)
    assert equal(want, raw.run()) == []


def test_callers_at_once_while_another_frees():
    raws = [medium(solver, seed=seed, threads=2) for seed, solver in enumerate(SOLVERS)]
    alone = [raw.run(threads=1) for raw in raws]
    stop = threading.Event()

    def keep_freeing():
        while not stop.is_set():
            scratch.free()

    other = threading.Thread(target=keep_freeing)
    other.start()
    try:
        with ThreadPoolExecutor(len(raws)) as pool:
            for want, runs in zip(
                alone, pool.map(lambda raw: [raw.run() for _ in range(5)], raws), strict=True
            ):
                assert [equal(want, got) for got in runs] == [[]] * 5
    finally:
        stop.set()
        other.join()


def in_child(raw, want, connection):
    connection.send((scratch.kept(), equal(want, raw.run()), scratch.free(), scratch.kept()))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_fork_while_blocks_are_taken_and_given():
    """The lock may be held at that moment by a thread that the child does not have."""
    raw, busy = medium(), medium("sinkhorn", 600)
    want, stop = raw.run(), threading.Event()

    def keep_calling():
        while not stop.is_set():
            assert busy.forward() == library.OK

    caller = threading.Thread(target=keep_calling)
    caller.start()
    context = multiprocessing.get_context("fork")
    try:
        for _ in range(8):
            here, there = context.Pipe()
            child = context.Process(target=in_child, args=(raw, want, there), daemon=True)
            child.start()
            there.close()
            try:
                assert here.poll(30), "hangs"
                kept, different, freed, left = here.recv()
            finally:
                child.kill()
                child.join()
            assert different == []
            assert kept <= scratch.limit()
            assert freed > 0
            assert left == 0
    finally:
        stop.set()
        caller.join()
    assert equal(want, raw.run()) == []
