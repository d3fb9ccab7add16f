from __future__ import annotations

import gc

import pytest
import torch

import uotpool
from uotpool.backends.cpu.backend import CPU

# The files that take longest, the longest first: one that began last would be waited for. The others are short.
LONGEST = (
    "tests/test_deploy.py",
    "experiments/tests/runs/test_sweep.py",
    "tests/test_runtime.py",
    "experiments/tests/runs/test_executors.py",
    "experiments/tests/test_figures.py",
    "experiments/tests/test_hostile.py",
    "tests/test_bench.py",
    "experiments/tests/test_demo.py",
    "experiments/tests/tasks/test_image_resume.py",
    "tests/kernels/test_torch.py",
    "tests/zoo/test_contract.py",
    "tests/test_build.py",
    "tests/kernels/test_against_reference.py",
    "tests/test_gradients.py",
    "tests/kernels/test_isa.py",
    "experiments/tests/tasks/test_mil.py",
    "tests/test_optimality.py",
    "tests/test_stability.py",
    "experiments/tests/datasets/test_graphs.py",
    "tests/test_docs.py",
    "experiments/tests/tasks/test_fingerprint.py",
    "experiments/tests/test_explorer_server.py",
    "tests/kernels/test_memory.py",
)


def pytest_collection():
    """What all tests import stays: to look for garbage among it takes seconds, here and in every test."""
    gc.disable()


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items):
    place = {name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0], len(place)))


@pytest.fixture(autouse=True)
def _checked_and_seeded():
    """Values are checked in tests (`uotpool.check`), and every test starts from the same seed."""
    torch.manual_seed(0)
    with uotpool.check(True):
        yield


@pytest.fixture(scope="module", params=["fused", "reference"])
def every_implementation(request):
    """Run a test with the fused kernels and with the reference as the choice of impl="auto"."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "reference":
            patch.setattr(CPU, "unavailable", lambda: "this test is of the reference")
        yield
