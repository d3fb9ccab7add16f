"""What `make test-gpu` runs works, here in Triton's interpreter, and fails where there is no GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")
ROOT = Path(__file__).parents[2]


def run(*command, **environment):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | environment
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False, env=environment
    )


def test_the_tests_of_a_gpu_in_the_interpreter():
    # numpy warns of sums of what stands for minus infinity, as in tests/triton/test_interpreted.py.
    quiet = ("-W", "ignore::RuntimeWarning")
    done = run("pytest", "-p", "no:cacheprovider", *quiet, "tests/gpu/device.py", TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "15 passed, 4 skipped" in done.stdout
    reasons = re.findall(r"SKIPPED \[\d+\] (?:.*?): (.*)", done.stdout)
    assert set(reasons) == {"needs a GPU: the interpreter has no streams"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_the_tests_fail_and_say_so():
    done = run("pytest", "-p", "no:cacheprovider", "tests/gpu/device.py")
    assert done.returncode != 0
    assert "torch sees no GPU here; TRITON_INTERPRET=1 make test-gpu" in done.stdout + done.stderr


def test_the_measurement_in_the_interpreter(tmp_path):
    done = run("bench", "gpu", "--quick", "--out", str(tmp_path), TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "gpu.csv").read_text()
    for expected in ("forward+backward", ",triton,reference,", ",triton,torch.max,", "which mean nothing"):
        assert expected in text
    if not torch.cuda.is_available():
        refused = run("bench", "gpu", "--quick", "--out", str(tmp_path))
        assert refused.returncode == 1
        assert "gpu needs a CUDA or ROCm GPU, and torch sees none" in refused.stderr
