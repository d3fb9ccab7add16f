from __future__ import annotations

import pytest

from tests.experiments import helpers  # noqa: F401 - before a module is rewritten, so that it is one object
from uotpool.experiments.store import Store


@pytest.fixture
def store(tmp_path):
    opened = Store(tmp_path / "runs.sqlite")
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def checkpoints_of_the_test(tmp_path, monkeypatch):
    """No test reads or leaves the state of a run in the user's cache."""
    monkeypatch.setenv("UOTPOOL_CHECKPOINTS", str(tmp_path / "checkpoints"))
