"""Imports between the folders of the study point one way: from what shows results to what makes them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import uotpool_experiments

ROOT = Path(uotpool_experiments.__file__).parent
BELOW = ("datasets", "tasks", "runs")
# The folders that each folder may import from, besides itself.
ALLOWED = {
    "analysis": {*BELOW},
    "tables": {*BELOW, "analysis"},
    "figures": {*BELOW, "analysis", "tables"},
    "explorer": {*BELOW, "analysis", "tables", "figures"},
    "report": {*BELOW, "analysis", "tables", "figures"},
    "cli": {*BELOW, "analysis", "tables", "figures", "explorer", "report"},
}
FOLDERS = {path.name for path in ROOT.iterdir() if (path / "__init__.py").is_file()}


def imported(text: str) -> Iterator[str]:
    """The folders of the study that a module imports from, wherever the import stands."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        parts = [name.split(".") for name in names]
        yield from (p[1] for p in parts if p[0] == "uotpool_experiments" and len(p) > 1 and p[1] in FOLDERS)


def test_all_folders_are_known():
    assert {*BELOW, *ALLOWED} == FOLDERS


@pytest.mark.parametrize("folder", ALLOWED)
def test_imports_point_one_way(folder):
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    for path in files:
        wrong = set(imported(path.read_text())) - ALLOWED[folder] - {folder}
        assert not wrong, f"{path.relative_to(ROOT)} imports from {sorted(wrong)}"


def test_argparse_is_only_in_the_commands():
    """What parses a command line stands in cli/; below it a table or a figure is asked for by values."""
    for folder in ALLOWED.keys() - {"cli"}:
        for path in (ROOT / folder).rglob("*.py"):
            assert "import argparse" not in path.read_text(), path


@pytest.mark.parametrize(
    "line",
    [
        "from uotpool_experiments.cli.table import spec_of",
        "import uotpool_experiments.cli",
        "def f():\n    from uotpool_experiments import cli",
    ],
)
def test_a_wrong_import_is_found(line):
    assert set(imported(line)) == {"cli"}
