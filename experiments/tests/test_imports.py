"""Imports of the study point one way, folder by folder; the list of tasks imports none of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import uotpool_experiments

from tests.import_rules import Rules, check_finds, sources

# From the bottom to the top; a folder may import itself and those below it.
ORDER = ("datasets", "tasks", "runs", "analysis", "tables")
PAGES = ("report", "figures")  # side by side above the tables
HELPERS = {"csv_cells", "files", "plaintext", "solvers", "toml_file"}  # modules that import nothing above them

ALLOWED: dict[str, set[str]] = {name: set() for name in (*HELPERS, "__init__")}
ALLOWED["toml_file"] = {"files", "plaintext"}
ALLOWED["csv_cells"] = {"plaintext"}
for i, folder in enumerate(ORDER):
    ALLOWED[folder] = {*HELPERS, *ORDER[: i + 1]}
for folder in PAGES:
    ALLOWED[folder] = {*HELPERS, *ORDER, *PAGES}
ALLOWED["cli"] = {*HELPERS, *ORDER, *PAGES, "cli"}
RULES = Rules("uotpool_experiments", ALLOWED)
FILES = sources(uotpool_experiments)


def test_imports_point_one_way():
    assert {"runs/executors/ray.py", "tasks/mil/task.py", "datasets/catalog.py", "cli/demo.py"} <= set(FILES)
    assert RULES.violations(FILES) == []


def test_the_package_imports_nothing_that_is_in_the_checkout_only():
    """What is measured comes to figures as files: `bench` is in no wheel."""
    outside = re.compile(r"^\s*(?:from|import) (?:bench|tests|examples|tools)\b", re.MULTILINE)
    assert [path for path, text in FILES.items() if outside.search(text)] == []
    assert outside.search("def f():\n    from bench.timing import samples\n")


@pytest.mark.parametrize(
    ("file", "line", "target"),
    [
        ("datasets/catalog.py", "from uotpool_experiments.tasks import TASKS", "uotpool_experiments.tasks"),
        ("tasks/mil/task.py", "from uotpool_experiments.runs.rows import Row", "uotpool_experiments.runs.rows"),
        (
            "tasks/graph/resume.py",
            "from uotpool_experiments.runs import store",
            "uotpool_experiments.runs.store",
        ),
        ("runs/export.py", "import uotpool_experiments.tables.table", "uotpool_experiments.tables.table"),
        ("runs/executors/ray.py", "from ...cli import demo", "uotpool_experiments.cli.demo"),
        ("analysis/ranking.py", "from ..tables import swap", "uotpool_experiments.tables.swap"),
        ("tables/swap.py", "from uotpool_experiments import report", "uotpool_experiments.report"),
        ("figures/ranks.py", "def f():\n    from uotpool_experiments import cli", "uotpool_experiments.cli"),
        (
            "toml_file.py",
            "from uotpool_experiments.datasets import fetch",
            "uotpool_experiments.datasets.fetch",
        ),
    ],
)
def test_a_wrong_import_is_found_and_named(file, line, target):
    check_finds(RULES, FILES, file, line, target)


def test_the_list_of_tasks_imports_no_task():
    """Commands ask for the names only; a task brings torch, scikit-learn and more."""
    script = (
        "import sys; from uotpool_experiments.tasks import TASKS; before = set(sys.modules); "
        "print(*TASKS, *sorted({'torch', 'sklearn', 'torch_geometric'} & before)); "
        "from uotpool_experiments.tasks import load; [load(name) for name in TASKS]; "
        "print(*sorted({'torch_geometric', 'transformers', 'ray'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.stdout == "mil graph image regimes bags\n\n"
