"""The same bits for any number of threads, batch mates, layout, caller and fork; and every instruction set."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import tolerances as tol
from tests.backends.harness import compare, dense, equal, modules, ragged, randn, solved
from tests.backends.raw import DTYPES, Raw
from tests.cases import SOLVERS
from uotpool import check
from uotpool.backends.cpu import library

ROOT = Path(__file__).parents[2]
APART = torch.tensor([1e-6, 1.0, 1e6])  # features too far apart for float32: such a set is solved in double

each_solver = pytest.mark.parametrize("solver", SOLVERS)
each_head = pytest.mark.parametrize("plan", [False, True], ids=["pool", "plan"])

# Work for all threads: 16384 entries are a task of their own; a bag of more than 3 * 131072 is for them all.
BATCHES: dict[str, dict[str, Any]] = {
    "small bags": {"B": 40, "N": 30, "D": 33},
    "many bags": {"B": 4000, "N": 3, "D": 9},
    "one large bag": {"B": 1, "N": 4100, "D": 100, "K": 1},
    "wide rows": {"B": 1, "N": 19, "D": 33_000, "K": 1},
    "scaled small bags": {"B": 40, "N": 30, "D": 33, "scale": 33},
    "scaled large and small bags": {"sizes": [3, 4100, 0, 700, 1], "absent": 5, "D": 100, "K": 1, "scale": 1},
    "solved in double": {"sizes": [2, 3000, 5], "D": 99, "K": 2, "rows": True},
}


@pytest.mark.parametrize("case", BATCHES)
@each_solver
def test_bits_do_not_depend_on_the_number_of_threads(solver, case):
    raw = Raw(solver, torch.float32, plan=len(case) % 2 == 0, p0="shared", **BATCHES[case])
    if "double" in case:
        raw.arrays["X"] *= APART.repeat(33)
    one = raw.run()
    for threads in (2, 3, 4):
        assert equal(one, raw.run(threads=threads)) == [], threads


@each_solver
def test_the_number_of_threads_is_that_of_torch(solver, monkeypatch):
    """And through torch, too, the bits are the same."""
    seen, pack = [], library.pack
    problem, weights = dense(40, 30, 33, p0="shared"), modules(solver, 2)

    def watched(*fields):
        made = pack(*fields)
        seen.append(library.Call.from_buffer_copy(made).threads)
        return made

    monkeypatch.setattr(library, "pack", watched)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 3, 2):
            torch.set_num_threads(threads)
            results.append(solved(problem, weights, solver, impl="cpu"))
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 1, 3, 3, 2, 2]
    assert equal(results[0], results[1]) == equal(results[0], results[2]) == []


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each_head
@each_solver
def test_bits_of_a_bag_are_those_it_has_alone(solver, plan, dtype):
    """Whatever is beside it: bags that are solved in double, or one that is not finite."""
    sizes, scale = [5, 0, 9, 1, 14], 0 if plan else 11
    together = Raw(solver, dtype, plan=plan, sizes=sizes, D=11, scale=scale)
    X = together.arrays["X"]
    assert X is not None
    X[:5, ::2] *= 1e8
    X[14, 3] = -torch.inf
    want = together.run()
    assert not want["out"][14 if plan else 3].isfinite().any()
    for b, n in enumerate(sizes):
        if n == 1:
            continue
        rows = slice(sum(sizes[:b]), sum(sizes[: b + 1]))
        out = rows if plan else slice(b, b + 1)
        alone = Raw(solver, dtype, plan=plan, sizes=[n], D=11, scale=scale)
        for name, at in {"X": rows, "log_p0": slice(b, b + 1), "log_q0": rows, "dout": out}.items():
            mine, whole = alone.arrays[name], together.arrays[name]
            assert mine is not None
            assert whole is not None
            mine.copy_(whole[at])
        got = alone.run()
        for name, at in {"out": out, "dX": rows, "dlog_p0": slice(b, b + 1), "dlog_q0": rows}.items():
            assert torch.equal(got[name], want[name][at]), (b, name)
            assert want[name][at].isfinite().all(), (b, name)


@each_head
@each_solver
def test_bits_do_not_depend_on_the_layout(solver, plan):
    """By an index in any order, by ptr, or padded with NaN."""
    problem, sizes = ragged("index", [6, 0, 11, 4], 9, q0=False)._replace(scale=randn(9, seed=4)), [6, 0, 11, 4]
    order = problem.set_of.sort(stable=True).indices
    assert not torch.equal(order, torch.arange(len(order)))
    ptr = torch.tensor([0, *sizes]).cumsum(0)
    mask = torch.arange(12) < torch.tensor(sizes)[:, None]
    padded = torch.full((4, 12, 9), torch.nan, dtype=torch.float64)
    padded[mask] = problem.X[order]
    layouts = (
        (problem, slice(None), order),
        (problem._replace(X=problem.X[order], layout={"ptr": ptr}), slice(None), slice(None)),
        (problem._replace(X=padded, layout={"mask": mask}), mask, slice(None)),
    )
    results = []
    with check(False):
        for laid_out, there, to_sorted in layouts:
            got = solved(laid_out, modules(solver, 2), solver, impl="cpu")
            assert plan or got["value"].isfinite().all()
            P = solved(laid_out, modules(solver, 2), solver, plan=True, impl="cpu")["value"]
            results.append(got | {"X": got["X"][there][to_sorted], "plan": P[there][to_sorted]})
    assert equal(results[0], results[1]) == equal(results[0], results[2]) == []


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@each_solver
def test_what_is_not_finite_spoils_its_set_alone(solver, bad):
    """Even where the scale of its feature is 0."""
    problem = dense(3, 5, 4)._replace(scale=torch.tensor([1.0, 0.0, -1.0, 2.0]).double())
    spoilt = problem.X.clone()
    spoilt[1, 2, 1] = bad
    with check(False):
        for plan in (False, True):
            clean, got = (run_without_checks(problem._replace(X=X), solver, plan) for X in (problem.X, spoilt))
            assert got[1].isnan().all()
            assert torch.equal(got[::2], clean[::2])


def run_without_checks(problem, solver, plan):
    """The value alone: `solved` refuses nothing, but its derivatives are NaN here."""
    return solved(problem, modules(solver, 2), solver, plan=plan, impl="cpu")["value"]


# --- other callers


def test_four_callers_at_once():
    """Different problems from four threads of Python, each with threads of its own: as alone."""
    shapes = [
        ("sinkhorn", torch.float32, "one large bag"),
        ("badmm-e", torch.float64, "small bags"),
        ("badmm-q", torch.float32, "small bags"),
        ("sinkhorn", torch.float64, "many bags"),
    ]
    raws = [Raw(solver, dtype, threads=3, **BATCHES[shape]) for solver, dtype, shape in shapes]
    alone = [raw.run(threads=1) for raw in raws]
    gate = threading.Barrier(len(raws))

    def work(raw):
        gate.wait()
        return [raw.run() for _ in range(4)]

    with ThreadPoolExecutor(len(raws)) as pool:
        for want, runs in zip(alone, pool.map(work, raws), strict=True):
            assert all(equal(want, got) == [] for got in runs)


def in_child(raw, want, connection):
    connection.send(equal(want, raw.run(threads=4)))


def forked(raw, want):
    """Return what differs in a child, or "hangs"."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=in_child, args=(raw, want, there), daemon=True)
    child.start()
    there.close()
    try:
        return here.recv() if here.poll(30) else "hangs"
    finally:
        child.kill()
        child.join()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork on this system")
def test_forks():
    """A child makes threads of its own, and waits for no lock that was held when it was made."""
    raw = Raw("sinkhorn", torch.float32, p0="shared", **BATCHES["small bags"])
    busy = Raw("badmm-e", torch.float32, **BATCHES["small bags"])
    want, stop = raw.run(threads=4), threading.Event()
    assert forked(raw, want) == []
    assert equal(want, raw.run(threads=4)) == []  # and the parent goes on

    def keep_calling():
        while not stop.is_set():
            assert busy.forward(threads=3) == library.OK

    caller = threading.Thread(target=keep_calling)
    caller.start()
    try:
        assert [forked(raw, want) for _ in range(8)] == [[]] * 8
    finally:
        stop.set()
        caller.join()


# --- instruction sets


def against_the_reference(solver):
    for i, (N, D) in enumerate(((2, 3), (4, 4), (5, 7), (8, 8), (9, 15), (6, 16), (20, 17), (33, 33))):
        compare(dense(2, N, D, seed=i), modules(solver, 2), solver, plan=i % 2 == 0)
    compare(ragged("index", [7, 0, 3, 12], 19, p0="shared"), modules(solver, 4), solver)
    hard = dense(2, 9, 6)
    compare(hard._replace(X=8 * hard.X - 4), modules(solver, 2), solver, slack=tol.KERNEL_HARD)


@each_solver
def test_each_instruction_set(isa, solver):
    against_the_reference(solver)
    compare(dense(1, 4000, 130, p0="shared"), modules(solver, 1), solver, slack=tol.KERNEL_LARGE)
    assert library.isa() == isa


def test_each_runs_code_of_its_own():
    """Else the test above would test one of them three times: last bits differ, and so does the padding."""
    if len(library.usable_isas()) < 2:
        pytest.skip(f"only {library.isa()} here")
    before, results, scratch = library.isa(), [], []
    try:
        for name in library.usable_isas():
            library.set_isa(name)
            raw = Raw("badmm-e", torch.float32, B=4, N=30, D=33, K=4)
            results.append(raw.run())
            scratch.append(raw.scratch(True))
    finally:
        library.set_isa(before)
    assert all(not torch.equal(results[0]["dX"], other["dX"]) for other in results[1:])
    assert sorted(set(scratch)) == scratch


CHILD = """
from tests.backends.test_invariance import against_the_reference
from tests.cases import SOLVERS
from uotpool.backends.cpu import library
for solver in SOLVERS:
    against_the_reference(solver)
print(library.isa())
"""


def run_child(**env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        cwd=ROOT,
        env=os.environ | env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.process
def test_baseline_by_the_environment():
    """What nonsense there gives is in test_build.py."""
    assert run_child(UOTPOOL_ISA="baseline") == "baseline\n"


@pytest.mark.process
def test_the_512_bit_code_in_narrower_instructions(tmp_path):
    """Few machines have AVX-512: the same source with vectors of its width runs everywhere, if slowly.

    To compile it takes half a minute, and where there is AVX-512 the tests above run the code itself.
    """
    if "avx512" in library.usable_isas():
        pytest.skip("this machine has AVX-512: the tests of each instruction set run the code itself")
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        pytest.skip("no C++ compiler")
    library_path = tmp_path / "wide.so"
    # Not optimised: that takes twice as long to compile, and there is little to run.
    flags = "-std=c++17 -O0 -fPIC -shared -w -Wno-psabi -pthread -ffp-contract=fast -DUOTPOOL_VECTOR_BYTES=64"
    sources = [str(path) for path in (ROOT / "csrc").glob("*.cpp")]
    command = [compiler, *flags.split(), "-DUOTPOOL_ISA_NAME=baseline", *sources, "-o", str(library_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    run_child(UOTPOOL_LIBRARY=str(library_path))
