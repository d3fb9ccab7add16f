"""Every instruction set gives the results of the reference, and runs when it was asked for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests import tolerances as tol
from tests.cases import SOLVERS
from tests.backends.harness import compare, dense, modules, off, ragged, solved
from tests.backends.raw import Raw
from uotpool.backends.cpu import library

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("plan", [False, True], ids=["pool", "plan"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_against_the_reference(isa, solver, plan):
    assert library.isa() == isa
    for i, (N, D) in enumerate(((1, 1), (2, 3), (4, 4), (5, 7), (8, 8), (9, 15), (6, 16), (20, 17), (33, 33))):
        if (N, D) != (1, 1):
            compare(dense(2, N, D, seed=i), modules(solver, 2), solver, plan=plan)
    compare(ragged("index", [7, 0, 3, 12], 19, p0="shared"), modules(solver, 4), solver, plan=plan)
    hard = dense(2, 9, 6)
    compare(hard._replace(X=8 * hard.X - 4), modules(solver, 2), solver, plan=plan, slack=tol.KERNEL_HARD)
    assert library.isa() == isa


@pytest.mark.parametrize("solver", SOLVERS)
def test_several_chunks(isa, solver):
    compare(dense(1, 4000, 130, p0="shared"), modules(solver, 1), solver, slack=tol.KERNEL_LARGE)
    assert library.isa() == isa


def test_each_runs_code_of_its_own():
    """Else the tests above would test one of them three times: last bits differ, and so does the padding."""
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


SCRIPT = """
import json, torch
from tests.backends.harness import dense, modules, solved
from uotpool.backends.cpu import library
results = {s: solved(dense(2, 9, 17), modules(s, 2), s, impl="cpu") for s in ("sinkhorn", "badmm-e", "badmm-q")}
lists = {s: {name: t.tolist() for name, t in r.items()} for s, r in results.items()}
print(json.dumps({"isa": library.isa(), **lists}))
"""


def run(script: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=os.environ | env,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.process
def test_baseline_by_the_environment():
    """What nonsense there gives is in tests/test_build.py."""
    done = run(SCRIPT, UOTPOOL_ISA="baseline")
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert results.pop("isa") == "baseline"
    for solver, got in results.items():
        weights = modules(solver, 2)
        want = solved(dense(2, 9, 17), weights, solver, impl="reference")
        errors = off({k: torch.tensor(v, dtype=torch.float64) for k, v in got.items()}, want, weights)
        for name, error in errors.items():
            assert error <= tol.kernel(name, torch.finfo(torch.float64).eps, 1 / 0.3), (solver, name)


WIDE = """
from tests.cases import SOLVERS
from tests.backends.harness import compare, dense, modules, ragged
for solver in SOLVERS:
    for plan in (False, True):
        for N, D in ((2, 3), (9, 15), (6, 16), (20, 17), (5, 33)):
            compare(dense(2, N, D), modules(solver, 2), solver, plan=plan)
        compare(ragged("index", [7, 0, 3, 12], 19, p0="shared"), modules(solver, 4), solver, plan=plan)
"""


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
    done = run(WIDE, UOTPOOL_LIBRARY=str(library_path))
    assert done.returncode == 0, done.stderr
