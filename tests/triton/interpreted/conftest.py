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


@pytest.fixture
def small_tiles(monkeypatch):
    """Make every call take tiles of eight rows and chunks of eleven, which is no multiple of it.

    The interpreter takes 0.1 ms for each operation on a tile.
    """
    import triton

    from uotpool.backends.triton import launch

    def small(D: int, itemsize: int, entries: int) -> dict[str, int]:
        width = max(triton.next_power_of_2(D), 16)
        BL = min(width, 64)
        return {"R": 2, "C": width // BL, "W": 4, "BL": BL, "num_warps": 4}

    monkeypatch.setattr(launch, "tile", small)
    monkeypatch.setattr(launch, "CHUNK", 11)
