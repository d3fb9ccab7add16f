from __future__ import annotations

import os

import pytest
from uotpool_experiments.runs.store import Store

from experiments.tests import helpers  # noqa: F401 - before a module is rewritten, so that it is one object

# As `--ray local` sets it before it imports Ray, which a test may have done before.
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")


@pytest.fixture
def store(tmp_path):
    opened = Store(tmp_path / "runs.sqlite")
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def checkpoints_of_the_test(tmp_path, monkeypatch):
    """No test reads or leaves the state of a run in the user's cache."""
    monkeypatch.setenv("UOTPOOL_CHECKPOINTS", str(tmp_path / "checkpoints"))
