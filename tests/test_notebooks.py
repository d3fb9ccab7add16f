"""The notebooks run from the first cell to the last, and show what their words say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent.parent / "examples" / "notebooks"


def cells(name: str, kind: str) -> list[str]:
    notebook = json.loads((FOLDER / f"{name}.ipynb").read_text())
    assert notebook["nbformat"] == 4
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == kind]


def run(name: str, monkeypatch) -> dict[str, Any]:
    """Run all cells but the one that installs, and return the names that they define."""
    matplotlib = pytest.importorskip("matplotlib")
    monkeypatch.setattr(matplotlib.pyplot, "show", lambda: matplotlib.pyplot.close("all"))
    install, *code = cells(name, "code")
    assert re.fullmatch(r"%pip install -q [\w\"\[\] -]+", install)
    defined: dict[str, Any] = {"__name__": "__main__"}
    for text in code:
        exec(compile(text, f"{name}.ipynb", "exec"), defined)
    return defined


@pytest.fixture(autouse=True)
def pictures_without_a_screen(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    pytest.importorskip("matplotlib.pyplot")


def test_sets(monkeypatch):
    pytest.importorskip("sklearn")
    defined = run("sets", monkeypatch)
    accuracies = {pooling: defined["accuracy"](model) for pooling, model in defined["models"].items()}
    assert accuracies["uotp"] > accuracies["mean"]
    assert accuracies["uotp"] > 0.85
    assert defined["found"].float().mean() > 0.8  # chance: 0.05


def test_graphs(monkeypatch):
    pytest.importorskip("torch_geometric")
    defined = run("graphs", monkeypatch)
    assert defined["accuracies"]["uot"] > 0.8
    assert defined["divergence"].mean() > 0.05


@pytest.mark.parametrize("name", ["sets", "graphs"])
def test_no_output_is_stored(name):
    notebook = json.loads((FOLDER / f"{name}.ipynb").read_text())
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in notebook["cells"])
