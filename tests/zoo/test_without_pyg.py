"""The zoo where neither PyTorch Geometric nor scikit-learn is installed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.test_imports import BLOCKER
from tests.zoo.cases import NAMES
from uotpool import zoo

BLOCKED = {"torch_geometric", "sklearn", "torch_scatter", "torch_sparse"}
NEED_PYG = [name for name in NAMES if zoo.entry(name).needs_pyg]

SCRIPT = f"""
import sys
import torch
import uotpool
from uotpool import zoo

x = torch.randn(2, 9, 4)
for name in zoo.names():
    try:
        print(name, tuple(zoo.build(name, 4)(x).shape))
    except ModuleNotFoundError as error:
        print(name, "lacks", error.name, "|", error)
for name in ("otk", "wegl", "mean"):
    try:
        print("fit", name, tuple(zoo.build(name, 4).fit(x)(x).shape))
    except ModuleNotFoundError as error:
        print("fit", name, "lacks", error.name, "|", error)
try:
    zoo.build("meen", 4)
except ValueError as error:
    print(error)
assert not set(sys.modules) & {BLOCKED!r}
"""


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    folder = tmp_path_factory.mktemp("blocked")
    (folder / "sitecustomize.py").write_text(BLOCKER.format(blocked=BLOCKED))
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def test_what_needs_pyg():
    assert set(NEED_PYG) == {"set2set", "set-transformer", "gmt", "sagp", "asap", "diffpool"}


@pytest.mark.process
def test_most_work(lines):
    for name in NAMES:
        if name not in NEED_PYG:
            assert f"{name} (2, {zoo.build(name, 4).out_dim})" in lines


@pytest.mark.process
def test_the_others_name_the_extra(lines):
    for name in NEED_PYG:
        (line,) = (line for line in lines if line.startswith(f"{name} lacks"))
        assert line.startswith(f"{name} lacks torch_geometric")
        assert "install the extra `pyg`" in line


@pytest.mark.process
def test_fit_names_the_extra(lines):
    for name in ("otk", "wegl"):
        (line,) = (line for line in lines if line.startswith(f"fit {name}"))
        assert line.startswith(f"fit {name} lacks sklearn")
        assert "install the extra `zoo`" in line
    assert "fit mean (2, 4)" in lines


@pytest.mark.process
def test_names_are_still_known(lines):
    assert any(line.startswith("name: expected") and "'mean'" in line for line in lines)
