"""The kernels write all that is promised and nothing else, and their scratch has the size that the docs say."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.memory import Probe, extra_bytes
from bench.timing import BOTH
from tests import tolerances as tol
from tests.backends.harness import compare, equal, modules, ragged
from tests.backends.raw import DTYPES, GRADIENTS, INPUTS, NATIVE, Raw
from tests.cases import SOLVERS
from uotpool.backends.cpu import library

# Layouts, and what the coefficients are: alpha0, alpha1, alpha2, rho, scale.
LEARNED = ("exp", "softplus", "identity", "exp", "linear")
SHAPES: dict[str, dict[str, Any]] = {
    "dense": {"scale": 7},
    "dense, widths of vectors": {"B": 2, "N": 8, "D": 16, "scale": 1, "transforms": LEARNED},
    "N=0": {"N": 0, "scale": 7},
    "B=0": {"B": 0, "scale": 7, "p0": "shared"},
    "ptr, empty bags": {"sizes": [0, 4, 0, 0, 3, 0], "scale": 7, "p0": "shared"},
    "ptr, all empty": {"sizes": [0, 0], "scale": 1},
    "ptr, no bag": {"sizes": [], "scale": 7},
    "rows": {"sizes": [4, 1, 9], "rows": True, "scale": 7, "p0": "shared"},
    "rows, absent ones and empty bags": {
        "sizes": [0, 4, 0, 3, 0],
        "absent": 5,
        "scale": 1,
        "transforms": LEARNED,
    },
    "rows, all absent": {"sizes": [0, 0], "absent": 3, "scale": 7, "p0": "shared"},
    "several chunks": {"B": 1, "N": 3000, "D": 100, "K": 1, "scale": 100},
    "several chunks, absent rows": {"sizes": [5, 4100, 0], "absent": 3, "D": 100, "K": 1, "scale": 1},
    "fixed but for the scale": {"scale": 7, "transforms": ("fixed",) * 4 + ("identity",)},
    "all fixed": {"scale": 7, "transforms": ("fixed",) * 5},
}

each_shape = pytest.mark.parametrize("shape", SHAPES)
each_head = pytest.mark.parametrize("plan", [False, True], ids=["pool", "plan"])
each_solver = pytest.mark.parametrize("solver", SOLVERS)
pairs = pytest.mark.parametrize(("plan", "dtype"), [(False, DTYPES[0]), (True, DTYPES[1])], ids=str)


@pairs
@each_shape
@each_solver
def test_all_is_written_and_inputs_are_left_alone(solver, plan, shape, dtype):
    """Into NaN: every entry is a number afterwards, 0 for absent rows and empty bags."""
    raw = Raw(solver, dtype, plan=plan, **SHAPES[shape])
    before = {name: t.clone() for name in INPUTS if (t := raw.arrays[name]) is not None}
    results = raw.run()
    for name, t in results.items():
        assert t.isfinite().all(), name
    assert equal(before, {name: raw.arrays[name] for name in before}) == []
    ptr, rows = raw.arrays["ptr"], raw.arrays["rows"]
    if ptr is None:
        return
    there = torch.ones(raw.sizes["M"], dtype=torch.bool)
    if rows is not None:
        there[:] = False
        there[rows[: int(ptr[-1])]] = True
    by_row = [results["dX"], results["dlog_q0"]] + [results["out"]] * plan
    assert all((t[~there] == 0).all() for t in by_row)
    by_bag = [results["out"]] * (not plan) + [results["dlog_p0"]] * (raw.sizes["p0_shared"] == 0)
    assert all((t[ptr.diff() == 0] == 0).all() for t in by_bag)
    if not there.any() or not len(ptr.diff()):
        assert all((t == 0).all() for name, t in results.items() if name.startswith(("dcoeff", "dlog_p0")))


@each_shape
@each_solver
def test_a_derivative_that_is_not_wanted_changes_no_other(solver, shape):
    raw = Raw(solver, torch.float32, plan=len(shape) % 2 == 0, **SHAPES[shape])
    if shape == "rows":  # such a bag is solved in double
        raw.arrays["X"] *= torch.tensor([1e-6, 1.0, 1e6, 1.0, 1e6, 1.0, 1e-6])
    want = raw.run()
    there = [name for name in GRADIENTS if name in want]
    for left_out in (
        *([name] for name in there),
        *([name for name in there if name != kept] for kept in there),
    ):
        got = raw.run(**dict.fromkeys(left_out))
        for name in left_out:
            assert got.pop(name).isnan().all(), name
        assert equal(got, {name: want[name] for name in got}) == []


@pairs
@each_solver
def test_nothing_is_written_beside(solver, plan, dtype):
    """Outputs lie in larger buffers, with a mark before and after, at any alignment that a number may have."""
    for D, lead in ((1, 1), (3, 2), (8, 3), (17, 5), (17, 1)):
        raw = Raw(solver, dtype, plan=plan, sizes=[3, 0, 6], D=D, scale=D)
        want = raw.run()
        buffers, addresses = {}, {}
        for name, t in raw.outputs().items():
            buffers[name] = torch.full((t.numel() + lead + 40,), 7.0, dtype=dtype)
            addresses[name] = buffers[name].data_ptr() + lead * t.element_size()
        assert raw.forward(**addresses) == raw.backward(**addresses) == library.OK
        for name, t in want.items():
            buffer = buffers[name]
            assert torch.equal(buffer[lead : lead + t.numel()], t.flatten()), name
            assert (buffer[:lead] == 7).all(), name
            assert (buffer[lead + t.numel() :] == 7).all(), name


def poison(byte: int, size: int) -> None:
    """Leave blocks of this size, full of this byte, where the next ones will be taken from."""
    libc = ctypes.CDLL(None)
    libc.posix_memalign.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_size_t]
    libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    blocks = []
    for _ in range(3):
        block = ctypes.c_void_p()
        assert libc.posix_memalign(ctypes.byref(block), 64, size) == 0
        libc.memset(block, byte, size)
        blocks.append(block)
    for block in blocks:
        libc.free(block)


@pairs
@each_solver
def test_scratch_is_written_before_it_is_read(solver, plan, dtype):
    """What was in the memory does not matter: zeros, NaN (0xff), or large numbers (0x7f)."""
    for N, D in ((1, 1), (7, 5), (9, 17)):
        for weight in (0.5, 1e-3):
            raw = Raw(solver, dtype, plan=plan, B=1, N=N, D=D)
            alpha0 = raw.arrays["coefficient_alpha0"]
            assert alpha0 is not None
            alpha0[:] = weight
            results = []
            for byte in (0x00, 0xFF, 0x7F):
                for t in raw.outputs().values():
                    t.fill_(torch.nan)
                poison(byte, raw.scratch(False))
                assert raw.forward() == library.OK
                poison(byte, raw.scratch(True))
                assert raw.backward() == library.OK
                results.append({name: t.clone() for name, t in raw.outputs().items()})
            assert equal(results[0], results[1]) == []
            assert equal(results[0], results[2]) == []


# ---------------------------------------------------------------------------------------------------------
# Scratch of a thread. An array over samples and features has rows padded to a vector, at most 64 bytes.

N, D, VECTOR = 300, 200, 64


def matrices(count: float, item: int) -> float:
    return count * N * (D * item + VECTOR)


def vectors(count: float, item: int) -> float:
    return count * ((N + D) * item + 2 * VECTOR)


@pytest.mark.parametrize(
    ("n", "d"),
    [(10_000, 512), (4_000, 104), (700, 200), (200, 1_000), (200, 10_000), (2_000, 5_000), (6_000, 496)],
)
def test_scratch_of_a_large_set_of_badmm_e(n, d):
    """The formula of docs/kernels.md counts dX as 1; the rest is the scratch of the kernel."""
    size = Raw("badmm-e", torch.float32, B=1, N=n, D=d, K=4).scratch(True) / (4 * n * d)
    more = 83 / d + 85 / n + 2 / max(4, 131072 // d // 4 * 4)
    rounded_up = (1 + VECTOR / (4 * d)) * (1 + VECTOR / (4 * n))
    assert size <= (1 + more) * rounded_up
    if more <= 0.19:
        assert 1 + size <= 2.2


def scratch(solver, K, backward, dtype=torch.float32, plan=False):
    size = Raw(solver, dtype, plan=plan, B=2, N=N, D=D, K=1).scratch(backward, K=K)
    assert size > 0
    return size


@pairs
@each_solver
def test_scratch_forward_does_not_grow_with_the_steps(solver, plan, dtype):
    sizes = {scratch(solver, K, False, dtype, plan) for K in (1, 2, 7, 1000)}
    assert len(sizes) == 1
    # X; and for Sinkhorn its exponentials; for badmm-q, E and F of two updates, S at the start, and Y
    most = {"sinkhorn": 2, "badmm-e": 1, "badmm-q": 7}[solver]
    assert sizes.pop() <= matrices(most, dtype.itemsize) + vectors(60, dtype.itemsize)


@pairs
@each_solver
def test_scratch_backward_grows_by_vectors_but_for_the_quadratic_problem(solver, plan, dtype):
    one, four, fifty = (scratch(solver, K, True, dtype, plan) for K in (1, 4, 50))
    a_module = 2 if solver == "badmm-q" else 0  # E and F, from which the derivative is made
    assert (fifty - four) / 46 == pytest.approx((four - one) / 3, rel=0.01)
    assert (four - one) / 3 <= matrices(a_module, dtype.itemsize) + vectors(40, dtype.itemsize)
    # The forward, and the derivative by X; for badmm-e that by log S too, for badmm-q those by S and P instead
    # of E and F of an update.
    most = {"sinkhorn": 3, "badmm-e": 3, "badmm-q": 9}[solver]
    assert one <= matrices(most, dtype.itemsize) + vectors(120, dtype.itemsize)
    assert matrices(1, dtype.itemsize) > 3 * vectors(40, dtype.itemsize)  # so the bounds above tell them apart


# One large bag, as many times X: K = 4, float32, one thread; with dX, which is one of them.
MOST_OF_X = {"sinkhorn": 2.2, "badmm-e": 3.0, "badmm-q": 6.0}
# Where the vectors of each module weigh little (measured with AVX-512: 2.215).
MOST_OF_LARGE_X = MOST_OF_X | {"badmm-e": 2.25}
LARGE_BAGS = [
    (200, 700),
    (500, 500),
    (200, 10_000),
    (10_000, 512),
    (10_000, 513),
    (100_000, 100),
    (10**6, 512),
]


@each_head
@each_solver
def test_scratch_of_one_large_bag(solver, plan):
    """N >= 200, D of 100 to 10,000: beyond, the vectors of each module and chunk weigh as much as X."""
    raw = Raw(solver, torch.float32, plan=plan, K=4)
    for n, d in LARGE_BAGS:
        size = {"B": 1, "M": n, "N": n, "D": d}
        X = 4 * n * -(-d // 16) * 16  # with AVX-512 a row takes a multiple of 16 features
        assert raw.scratch(True, **size) + X <= MOST_OF_X[solver] * X, (n, d)
        assert raw.scratch(False, **size) <= (MOST_OF_X[solver] - 1) * X, (n, d)
        # Many threads have buffers for as many chunks as there are, not for all of them.
        assert raw.scratch(True, **size, threads=128) + X <= (MOST_OF_X[solver] + 2) * X, (n, d)
        # without dX there is one in scratch, since the others are made with it
        assert raw.scratch(True, **size, dX=None) <= MOST_OF_X[solver] * X, (n, d)


@pytest.mark.process
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are measured on Linux")
@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="sanitizers take memory of their own")
@each_solver
def test_resident_memory_of_one_large_bag(solver):
    """Of a whole forward and backward pass through the layer, as `python -m bench memory` measures it."""
    probe = Probe((1, 5000, 512), f"uotp-{solver}", {"K": 4}, BOTH)
    assert extra_bytes(probe, threads=1) <= MOST_OF_LARGE_X[solver] * 4 * 5000 * 512


@each_solver
def test_scratch_is_that_of_the_largest_bag(solver):
    alone = Raw(solver, sizes=[40]).scratch(True)
    assert Raw(solver, sizes=[3, 40, 0, 39]).scratch(True) == alone
    assert Raw(solver, sizes=[3, 41]).scratch(True) > alone
    assert Raw(solver, sizes=[0, 0]).scratch(True) == 0


def test_scratch_refuses():
    assert NATIVE.uotpool_scratch(None, 0) == -library.NULL_POINTER
    assert Raw().scratch(False, K=0) == -library.BAD_ARGUMENT
    assert Raw().scratch(True, D=-1) == -library.BAD_ARGUMENT


def test_scratch_of_the_largest_sizes_is_not_taken_for_a_status():
    """Nothing is read: N D = 2^56 entries and 7 modules are just not refused as too large."""
    n = 2**28 - 64
    size = Raw("badmm-q").scratch(True, B=1, M=n, N=n, D=n, K=7)
    assert size > 0 or size == -library.BAD_ARGUMENT


@each_solver
def test_bags_around_one_chunk_share_scratch(solver):
    """A bag of one chunk may need more scratch than a larger one of two: each call has to fit all its bags."""
    chunk = 131072 // 64 // 4 * 4
    for sizes in ([chunk + 1, chunk], [chunk, 2 * chunk, chunk + 1]):
        compare(ragged("ptr", sizes, 64), modules(solver, 1), solver, slack=tol.KERNEL_LARGE)
