"""The same bits for any number of threads, order of the bags, and whoever else is calling; forks."""

from __future__ import annotations

import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch

from tests.cases import SOLVERS
from tests.backends.harness import dense, equal, modules, ragged, solved
from tests.backends.raw import DTYPES, GRADIENTS, Raw
from tests.spelling import uot_plan, uot_pool
from uotpool import check
from uotpool.backends.cpu import library

each_solver = pytest.mark.parametrize("solver", SOLVERS)
each_head = pytest.mark.parametrize("plan", [False, True], ids=["pool", "plan"])
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)

# Work for all threads: 16384 entries are a task of their own; a bag of more than 3 * 131072 is for them all.
BATCHES = {
    "small bags": {"B": 40, "N": 30, "D": 33},
    "many bags": {"B": 4000, "N": 3, "D": 9},
    "one large bag": {"B": 1, "N": 4100, "D": 100, "K": 1},
    "wide rows": {"B": 1, "N": 19, "D": 33_000, "K": 1},
    "large and small bags": {"sizes": [3, 4100, 0, 700, 900, 4200, 1], "absent": 5, "D": 100, "K": 1},
    "scaled small bags": {"B": 40, "N": 30, "D": 33, "scale": 33},
    "scaled large and small bags": {"sizes": [3, 4100, 0, 700], "absent": 5, "D": 100, "K": 1, "scale": 100},
    "one scale": {"B": 40, "N": 30, "D": 33, "scale": 1},
}


@pytest.fixture
def torch_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("case", BATCHES)
@each_head
@each_solver
def test_bits_do_not_depend_on_the_number_of_threads(solver, plan, case):
    raw = Raw(solver, torch.float32, plan=plan, p0="shared", **BATCHES[case])
    one = raw.run()
    assert one.keys() == {"out", *GRADIENTS} - (set() if "scale" in BATCHES[case] else {"dscale"})
    for threads in (2, 3, 4):
        assert equal(one, raw.run(threads=threads)) == [], threads


@each_solver
def test_the_number_of_threads_is_that_of_torch(solver, monkeypatch, torch_threads):
    """And through torch, too, the bits are the same."""
    seen, pack = [], library.pack
    problem, weights = dense(40, 30, 33, p0="shared"), modules(solver, 2)

    def watched(*fields):
        made = pack(*fields)
        seen.append(library.Call.from_buffer_copy(made).threads)
        return made

    monkeypatch.setattr(library, "pack", watched)
    results = []
    for threads in (1, 3, 2):
        torch.set_num_threads(threads)
        results.append(solved(problem, weights, solver, impl="cpu"))
    assert seen == [1, 1, 3, 3, 2, 2]
    assert equal(results[0], results[1]) == []
    assert equal(results[0], results[2]) == []


@each_dtype
@each_head
@each_solver
def test_bits_do_not_depend_on_the_order_of_the_bags(solver, plan, dtype):
    B, N, D = 7, 9, 11
    raw = Raw(solver, dtype, plan=plan, B=B, N=N, D=D, scale=D if plan else 0)
    want = raw.run()
    order = torch.randperm(B)
    for name in ("X", "log_p0", "log_q0", "dout"):
        t = raw.arrays[name]
        assert t is not None
        t.copy_(t.reshape(B, -1)[order].reshape(t.shape))
    got = raw.run()
    for name in ("out", "dX", "dlog_p0", "dlog_q0"):
        assert torch.equal(got[name], want[name].reshape(B, -1)[order].reshape(want[name].shape)), name


@each_dtype
@each_head
@each_solver
def test_bits_of_a_bag_are_those_it_has_alone(solver, plan, dtype):
    sizes = [5, 0, 9, 1, 14]
    together = Raw(solver, dtype, plan=plan, sizes=sizes, D=11, scale=0 if plan else 11)
    want = together.run()
    for b, n in enumerate(sizes):
        rows = slice(sum(sizes[:b]), sum(sizes[: b + 1]))
        out = rows if plan else slice(b, b + 1)
        alone = Raw(solver, dtype, plan=plan, sizes=[n], D=11, scale=0 if plan else 11)
        part = {"X": rows, "log_p0": slice(b, b + 1), "log_q0": rows, "dout": out}
        for name, at in part.items():
            mine, whole = alone.arrays[name], together.arrays[name]
            assert mine is not None
            assert whole is not None
            mine.copy_(whole[at])
        got = alone.run()
        for name, at in {"out": out, "dX": rows, "dlog_p0": slice(b, b + 1), "dlog_q0": rows}.items():
            assert torch.equal(got[name], want[name][at]), (b, name)


@each_head
@each_solver
def test_bits_of_an_unsorted_index_are_those_of_a_sorted_one(solver, plan):
    problem, weights = ragged("index", [6, 0, 11, 4], 9), modules(solver, 2)
    assert problem.q0 is not None
    order = problem.set_of.sort(stable=True).indices
    assert not torch.equal(order, torch.arange(len(order)))
    index = problem.set_of[order]
    sizes = torch.bincount(index, minlength=4)
    layouts = ({"index": index, "dim_size": 4}, {"ptr": torch.cat([torch.zeros(1).long(), sizes.cumsum(0)])})
    run = partial(solved_with, problem, weights, solver, plan)
    unsorted = run(X=problem.X, q0=problem.q0, **problem.layout)
    for layout in layouts:
        got = run(X=problem.X[order], q0=problem.q0[order], **layout)
        for name, t in unsorted.items():
            by_row = name in ("X", "q0") or (name == "value" and plan)
            assert torch.equal(got[name], t[order] if by_row else t), name


def solved_with(problem, weights, solver, plan, X, q0, **layout):
    """As `solved`, but with a q0 that no sum over rows in another order was divided by."""
    X, p0, q0 = (t.detach().clone().requires_grad_() for t in (X, problem.p0.softmax(-1), q0.exp()))
    own = [None if w is None else w.clone().requires_grad_() for w in weights]
    with check(False):
        value = (uot_plan if plan else uot_pool)(X, *own, p0=p0, q0=q0, solver=solver, impl="cpu", **layout)
    inputs = {"X": X, "p0": p0, "q0": q0, **{str(i): w for i, w in enumerate(own) if w is not None}}
    grads = torch.autograd.grad(value, list(inputs.values()), value.detach().cos() * problem.X.shape[-1])
    return {"value": value.detach(), **dict(zip(inputs, grads, strict=True))}


def test_four_callers_at_once():
    """Different problems from four threads of Python, each with threads of its own: as alone."""
    raws = [
        Raw(solver, dtype, seed=seed, threads=3, **shape)
        for seed, (solver, dtype, shape) in enumerate(
            [
                ("sinkhorn", torch.float32, BATCHES["one large bag"]),
                ("badmm-e", torch.float64, BATCHES["small bags"]),
                ("badmm-q", torch.float32, BATCHES["small bags"]),
                ("sinkhorn", torch.float64, BATCHES["many bags"]),
            ]
        )
    ]
    alone = [raw.run(threads=1) for raw in raws]
    gate = threading.Barrier(len(raws))

    def work(raw):
        gate.wait()
        return [raw.run() for _ in range(4)]

    with ThreadPoolExecutor(len(raws)) as pool:
        for want, runs in zip(alone, pool.map(work, raws), strict=True):
            for got in runs:
                assert equal(want, got) == []


def in_child(raw, want, connection):
    connection.send(equal(want, raw.run(threads=4)))


@pytest.fixture
def forked():
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("no fork on this system")
    context = multiprocessing.get_context("fork")

    def run(raw, want):
        """What differs in a child, or "hangs"."""
        here, there = context.Pipe()
        child = context.Process(target=in_child, args=(raw, want, there), daemon=True)
        child.start()
        there.close()
        try:
            return here.recv() if here.poll(30) else "hangs"
        finally:
            child.kill()
            child.join()

    return run


fork_is_fine = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")


@fork_is_fine
@each_solver
def test_after_a_fork(forked, solver):
    """The parent's threads are not there in a child: it makes its own."""
    raw = Raw(solver, torch.float32, p0="shared", **BATCHES["small bags"])
    want = raw.run(threads=4)
    assert forked(raw, want) == []
    assert equal(want, raw.run(threads=4)) == []  # and the parent goes on


@fork_is_fine
def test_a_fork_in_the_middle_of_a_call(forked):
    """Locks that are held at that moment are held for ever in the child: it must not wait for them."""
    raw = Raw("sinkhorn", torch.float32, p0="shared", **BATCHES["small bags"])
    busy = Raw("badmm-e", torch.float32, **BATCHES["small bags"])
    want, stop = raw.run(threads=4), threading.Event()

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
