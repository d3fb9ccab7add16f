"""Runs tests in a process of its own, where Triton interprets kernels on CPU tensors.

Triton reads TRITON_INTERPRET when it is first imported, and a kernel is then interpreted in all of the process.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
FILES = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/triton/interpreted/test_*.py"))

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="the package triton is not installed"
)


def run(*command, interpret="1"):
    env = os.environ | {"TRITON_INTERPRET": interpret, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", *command], env=env, capture_output=True, text=True, check=False, cwd=ROOT
    )


@pytest.mark.parametrize("file", [*FILES, "tests/gpu/test_gpu.py"])
def test_in_the_interpreter(file):
    # Arrays hold -1e38 for minus infinity, so numpy would warn of what floating point does on a GPU in silence.
    quiet = ("-W", "ignore::RuntimeWarning")
    done = run("pytest", file, *quiet, "-x", "-p", "no:xdist", "-p", "no:cacheprovider", "--durations=5")
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout or file not in FILES


def test_the_measurement(tmp_path):
    done = run("bench", "gpu", "--quick", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "gpu.csv").read_text()
    for expected in ("forward+backward", ",triton,reference,", ",triton,torch.max,", "which mean nothing"):
        assert expected in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_nothing_passes(tmp_path):
    assert run("pytest", "tests/gpu", interpret="").returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    refused = run("bench", "gpu", "--quick", "--out", str(tmp_path), interpret="")
    assert refused.returncode == 1
    assert "gpu needs a CUDA or ROCm GPU, and torch sees none" in refused.stderr
