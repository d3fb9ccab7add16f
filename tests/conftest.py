from __future__ import annotations

import pytest
import torch

import uotpool
from uotpool.backends.cpu.backend import CPU


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
