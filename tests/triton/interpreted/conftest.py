from __future__ import annotations

import os

import pytest
import torch

# `tests/triton/test_interpreted.py` runs these tests; elsewhere the kernels would be compiled for a GPU.
if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def poisoned_memory(monkeypatch):
    """Make fresh memory hold NaN, so that a result shows where anything unwritten was read."""

    def poisoned(real):
        def empty(*args, **kwargs):
            made = real(*args, **kwargs)
            return made.fill_(torch.nan) if made.is_floating_point() else made

        return empty

    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, poisoned(getattr(torch, name)))
