"""Runs the tests of `interpreted/` in a process of its own, where Triton interprets kernels on CPU tensors.

Triton reads TRITON_INTERPRET when it is first imported, and a kernel is then interpreted in all of the process.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = sorted(path.name for path in (HERE / "interpreted").glob("test_*.py"))

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="the package triton is not installed"
)


@pytest.mark.parametrize("file", FILES)
def test_in_the_interpreter(file):
    env = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    path = HERE / "interpreted" / file
    # Arrays hold -1e38 for minus infinity, so numpy would warn of what floating point does on a GPU in silence.
    command = [sys.executable, "-m", "pytest", str(path), "-x", "-p", "no:xdist", "-p", "no:cacheprovider"]
    quiet = ["-W", "ignore::RuntimeWarning", "--durations=5"]
    done = subprocess.run(
        [*command, *quiet], env=env, capture_output=True, text=True, check=False, cwd=HERE.parents[1]
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
