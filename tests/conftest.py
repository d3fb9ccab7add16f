from __future__ import annotations

import gc

import pytest
import torch

import uotpool
from uotpool.backends.cpu.backend import CPU

# The files that take longest, the longest first: one that began last would be waited for. The others are short.
LONGEST = (
    "tests/triton/test_interpreted.py",
    "tests/test_deploy.py",
    "experiments/tests/runs/test_executors.py",
    "experiments/tests/runs/test_sweep.py",
    "tests/test_bench.py",
    "tests/test_docs_site.py",
    "tests/nn/test_runtime.py",
    "experiments/tests/test_hostile.py",
    "tests/zoo/test_contract.py",
    "experiments/tests/test_figures.py",
    "tests/backends/test_agree.py",
    "tests/nn/test_replace.py",
    "experiments/tests/test_demo.py",
    "experiments/tests/tasks/test_image_resume.py",
    "tests/integrations/test_sentence_transformers.py",
    "tests/solvers/test_gradients.py",
    "tests/backends/test_build.py",
    "tests/backends/test_torch.py",
    "experiments/tests/tasks/test_mil.py",
    "tests/solvers/test_stability.py",
    "experiments/tests/tasks/test_fingerprint.py",
    "tests/backends/test_memory.py",
    "tests/test_ddp.py",
    "tests/solvers/test_optimality.py",
    "tests/test_docs.py",
    "tests/backends/test_invariance.py",
    "tests/test_fuzz.py",
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
    """Values are checked in tests (`uotpool.check`), and every test starts from the same seed.

    The seed is the CPU's alone: `torch.manual_seed` also keeps its caller's stack, once for each kind of GPU.
    """
    torch.default_generator.manual_seed(0)
    with uotpool.check(True):
        yield


@pytest.fixture(scope="module", params=["fused", "reference"])
def every_implementation(request):
    """Run a test with the fused kernels and with the reference as the choice of impl="auto"."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "reference":
            patch.setattr(CPU, "unavailable", lambda: "this test is of the reference")
        yield


@pytest.fixture
def inductor():
    """Inductor with nothing compiled that it could do without, which takes longer than the program.

    Those are programs that try out instruction sets, whose flags it has read before, and precompiled headers.
    """
    from torch._inductor import config

    lean = {
        "cpp.vec_isa_ok": True,
        "cpp_cache_precompile_headers": False,
        "aot_inductor.precompile_headers": False,
    }
    with config.patch({name: value for name, value in lean.items() if hasattr(config, name)}):
        yield
