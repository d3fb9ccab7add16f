"""The driver in C, which tests builds of the kernels where there is no torch (`make test-aarch64`)."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from tests.backends.driver import make_reference
from uotpool.backends.cpu import library

SOURCE = Path(make_reference.__file__).parent / "driver.c"
COMPILER = next(filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))), None)
LIBRARY = Path(os.environ.get("UOTPOOL_LIBRARY") or Path(library.__file__).parent / "libuotpool_native.so")


def test_the_stored_values_are_those_of_the_reference():
    """They are equal but for the order of sums, which may depend on the build of torch."""
    stored, made = (text.split() for text in (make_reference.PATH.read_text(), "".join(make_reference.cases())))
    assert len(stored) == len(made)
    for old, new in zip(stored, made, strict=True):
        if old != new:
            assert float(old) == pytest.approx(float(new), rel=1e-9, abs=1e-14)


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    if COMPILER is None:
        pytest.skip("needs a C compiler")
    path = tmp_path_factory.mktemp("driver") / "driver"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1"]
    subprocess.run([COMPILER, *flags, str(SOURCE), "-o", str(path), "-ldl", "-lm"], check=True)
    return path


def run(driver, reference):
    return subprocess.run([driver, LIBRARY, reference], capture_output=True, text=True, check=False)


def test_this_build_passes_the_driver(driver):
    done = run(driver, make_reference.PATH)
    assert done.stderr == ""
    assert done.returncode == 0
    cases = make_reference.PATH.read_text().count("case ")
    assert done.stdout.startswith(f"{cases} problems, float32 and float64: {' '.join(library.usable_isas())};")


@pytest.mark.parametrize("name", ["out", "dX", "dlog_p0", "dlog_q0", "dcoefficient_rho", "dcoefficient_scale"])
def test_the_driver_sees_a_wrong_value(driver, tmp_path, name):
    lines = make_reference.PATH.read_text().splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith(f"want {name} "))
    first, _, rest = lines[place + 1].partition(" ")
    spoiled = float(first) + (torch.tensor(list(map(float, rest.split()))).abs().max() + 1).item()
    lines[place + 1] = f"{spoiled} {rest}"
    path = tmp_path / "reference.txt"
    path.write_text("\n".join(lines))
    done = run(driver, path)
    assert done.returncode == 1
    assert f": {name}[0] is " in done.stderr
