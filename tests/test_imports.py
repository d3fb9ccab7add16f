"""`import uotpool` needs torch only, and imports inside the package point one way."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch

import uotpool
from tests.import_rules import Rules, check_finds, sources
from uotpool.backends import available
from uotpool.solvers import BY_NAME

ROOT = Path(__file__).parent.parent
OURS = {"uotpool", "uotpool_experiments", "bench"}

# ---------------------------------------------------------------------------------------------------------
# torch only

OPTIONAL = ("torch_geometric", "sklearn", "scipy", "matplotlib", "rich", "ot", "hypothesis", "pytest")

# Run by the interpreter at its start. Blocked packages look absent: torch asks for some before it imports them.
BLOCKER = """
import sys
from importlib.machinery import PathFinder


class Alone(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            return None
        return super().find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = Alone
"""

# The last lines are what `python -m uotpool info` does.
SCRIPT = f"""
import importlib, runpy, sys
import torch
import uotpool
print("compiler", [name for name in ("torch._dynamo", "sympy") if name in sys.modules])  # takes seconds
print(uotpool.uot_pool(torch.ones(1, 2, 3), 1.0, 1.0, 1.0).tolist())
for name in {OPTIONAL!r} + ("uotpool.integrations.pyg", "uotpool.integrations.sentence_transformers"):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        print(name, "lacks", error.name)
sys.argv = ["uotpool", "info"]
runpy.run_module("uotpool", run_name="__main__", alter_sys=True)
"""


def requirements(name: str) -> set[str]:
    """A distribution and all that it requires, without extras."""
    todo, found = [name], set()
    while todo:
        name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if name not in found:
            found.add(name)
            with contextlib.suppress(metadata.PackageNotFoundError):  # of another platform
                lines = [line for line in metadata.requires(name) or [] if "extra ==" not in line]
                todo += [re.split(r"[^\w.-]", line)[0] for line in lines]
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """SCRIPT, run where no package can be imported but uotpool, torch and what torch requires."""
    kept = requirements("torch") | {"uotpool"}
    blocked = {
        top
        for top, owners in metadata.packages_distributions().items()
        if not kept & {re.sub(r"[-_.]+", "-", owner).lower() for owner in owners}
    }
    assert blocked >= set(OPTIONAL)
    assert "torch" not in blocked
    folder = tmp_path_factory.mktemp("alone")
    (folder / "sitecustomize.py").write_text(BLOCKER.format(blocked=blocked))
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=False)


@pytest.mark.process
def test_works_with_torch_alone(alone):
    lines = ["compiler []", "[[1.0, 1.0, 1.0]]"]
    lines += [f"{name} lacks {name}" for name in OPTIONAL]
    lines += ["uotpool.integrations.pyg lacks torch_geometric"]
    lines += ["uotpool.integrations.sentence_transformers lacks sentence_transformers"]
    assert alone.stdout.splitlines()[: len(lines)] == lines, alone.stderr


@pytest.mark.process
def test_info_with_torch_alone(alone):
    assert alone.returncode == 0, alone.stderr
    info = alone.stdout.partition(" lacks sentence_transformers\n")[2]
    assert info.startswith(f"uotpool {uotpool.__version__}\n")
    for expected in (f"torch   {torch.__version__}", *BY_NAME, *available(), *available().values()):
        assert expected in info


# ---------------------------------------------------------------------------------------------------------
# one way

ALLOWED: dict[str, set[str]] = {
    "checks": set(),
    "sets": {"checks", "sets"},
    "solvers": {"checks", "sets", "solvers"},
    "coefficients": {"checks"},
    "inputs": {"checks", "sets"},
    "backends": {"backends", "checks", "coefficients", "sets", "solvers"},
    "problem": {"backends", "checks", "coefficients", "inputs", "sets", "solvers"},
}
ALLOWED["nn"] = set(ALLOWED) | {"nn"}
ALLOWED["__init__"] = set(ALLOWED)
ALLOWED["integrations"] = {"checks", "nn"}
ALLOWED["zoo"] = {"checks", "coefficients", "inputs", "nn", "sets", "solvers", "zoo"}
ALLOWED["testing"] = {"checks"}
ALLOWED["cli"] = set(ALLOWED)
ALLOWED["testing"] = {"checks"}
ALLOWED["__main__"] = {"cli"}


RULES = Rules("uotpool", ALLOWED)


def test_imports_point_one_way():
    files = sources(uotpool)
    assert {"problem.py", "sets/base.py", "nn/pooling.py", "integrations/pyg.py"} <= set(files)
    assert RULES.violations(files) == []


@pytest.mark.parametrize(
    ("file", "line", "target"),
    [
        ("sets/base.py", "from uotpool.problem import Problem", "uotpool.problem"),
        ("checks.py", "import uotpool", "uotpool"),
        ("solvers/sinkhorn.py", "from ..backends import Call", "uotpool.backends"),
        ("backends/cpu/backend.py", "def f():\n    from uotpool.nn import UOTPooling", "uotpool.nn"),
        ("integrations/pyg.py", "from uotpool.zoo import build", "uotpool.zoo"),
        ("zoo/simple.py", "from uotpool.integrations.pyg import UOTAggregation", "uotpool.integrations.pyg"),
    ],
)
def test_a_wrong_import_is_found_and_named(file, line, target):
    check_finds(RULES, sources(uotpool), file, line, target)


def private_names(text: str) -> list[str]:
    """Return the names with a leading underscore that a file imports from another module of the project."""
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if (node.module or "").partition(".")[0] in OURS]
    return [alias.name for node in ours for alias in node.names if alias.name.startswith("_")]


def test_no_file_imports_a_private_name_of_another():
    """What another file needs is public: a private name can change without a look elsewhere."""
    assert private_names("from uotpool.nn import _prior, base\nfrom torch import _assert_async\n") == ["_prior"]
    files = [path for folder in ("src", "experiments/src", "bench") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 100
    found = {str(path.relative_to(ROOT)): private_names(path.read_text()) for path in files}
    assert {path: names for path, names in found.items() if names} == {}
