from __future__ import annotations

import pytest
import torch

import uotpool


@pytest.fixture(autouse=True)
def _checked_and_seeded():
    """Values are checked in tests (`uotpool.check`), and every test starts from the same seed."""
    torch.manual_seed(0)
    with uotpool.check(True):
        yield
