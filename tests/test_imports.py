"""`import uotpool` needs torch only, and imports inside the package point one way."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
import torch

import uotpool
from uotpool.backends import available
from uotpool.solvers import SOLVERS

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
print(uotpool.uot_pool(torch.ones(1, 2, 3), 1.0, 1.0, 1.0).tolist())
for name in {OPTIONAL!r} + ("uotpool.pyg",):
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


def test_works_with_torch_alone(alone):
    lines = ["[[1.0, 1.0, 1.0]]"]
    lines += [f"{name} lacks {name}" for name in OPTIONAL]
    lines += ["uotpool.pyg lacks torch_geometric"]
    assert alone.stdout.splitlines()[: len(lines)] == lines, alone.stderr


def test_info_with_torch_alone(alone):
    assert alone.returncode == 0, alone.stderr
    info = alone.stdout.partition("uotpool.pyg lacks torch_geometric\n")[2]
    assert info.startswith(f"uotpool {uotpool.__version__}\n")
    for expected in (f"torch   {torch.__version__}", *SOLVERS, *available(), *available().values()):
        assert expected in info


# ---------------------------------------------------------------------------------------------------------
# one way

ALLOWED: dict[str, set[str]] = {
    "plaintext": set(),
    "checks": set(),
    "sets": {"checks", "sets"},
    "problem": {"sets"},
    "solvers": {"problem", "sets", "solvers"},
    "inputs": {"checks", "sets", "solvers"},
    "backends": {"backends", "checks", "problem", "sets", "solvers"},
    "functional": {"backends", "checks", "inputs", "problem", "sets", "solvers"},
}
ALLOWED["nn"] = set(ALLOWED) | {"nn"}
ALLOWED["__init__"] = set(ALLOWED)
ALLOWED["integrations"] = {"checks", "nn"}
ALLOWED["pyg"] = {"integrations"}
ALLOWED["zoo"] = {"checks", "inputs", "sets", "nn", "zoo"}
ALLOWED["cli"] = set(ALLOWED)
ALLOWED["__main__"] = {"cli"}


def unit(module: str) -> str:
    """The entry of ALLOWED for a dotted name below uotpool; "" is the package itself."""
    parts = module.split(".")
    for n in range(len(parts), 0, -1):
        if ".".join(parts[:n]) in ALLOWED:
            return ".".join(parts[:n])
    return module or "__init__"


def module_name(path: str) -> str:
    """`solvers/weights.py` is `solvers.weights`, `nn/__init__.py` is `nn`; the package itself is `__init__`."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported(text: str, package: list[str], modules: set[str]) -> Iterator[tuple[int, str]]:
    """(line, dotted name below uotpool) of each import of the package's own modules, wherever it stands."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) + 1 - node.level] if node.level else []
            base = start + (node.module.split(".") if node.module else [])
            names = [[*base, alias.name] for alias in node.names]
            names = [name if ".".join(name[1:]) in modules else base for name in names]
        else:
            continue
        yield from ((node.lineno, ".".join(name[1:])) for name in names if name[0] == "uotpool")


def violations(files: dict[str, str]) -> list[str]:
    """What points the wrong way in a package of these files (path below uotpool: text)."""
    found = []
    modules = {module_name(path) for path in files}
    for path, text in files.items():
        here = unit(module_name(path))
        if here not in ALLOWED:
            found.append(f"{path}: a module that ALLOWED does not know; give it a place there")
            continue
        for line, target in imported(text, ["uotpool", *path.split("/")[:-1]], modules):
            if unit(target) not in ALLOWED[here]:
                what = f"uotpool.{target}" if target else "uotpool"
                found.append(f"{path}:{line} imports {what}; {here} may import {sorted(ALLOWED[here])}")
    return found


def source() -> dict[str, str]:
    root = Path(uotpool.__file__).parent
    return {p.relative_to(root).as_posix(): p.read_text() for p in sorted(root.rglob("*.py"))}


def test_imports_point_one_way():
    files = source()
    assert {"problem.py", "sets/base.py", "nn/pooling.py", "pyg.py"} <= set(files)
    assert violations(files) == []


@pytest.mark.parametrize(
    ("file", "line", "target"),
    [
        ("sets/base.py", "from uotpool.problem import Problem", "uotpool.problem"),
        ("checks.py", "from uotpool.sets import Sets", "uotpool.sets"),
        ("checks.py", "import uotpool", "uotpool"),
        ("problem.py", "from uotpool.solvers import SOLVERS", "uotpool.solvers"),
        ("solvers/badmm.py", "import uotpool.checks", "uotpool.checks"),
        ("solvers/__init__.py", "from uotpool.inputs import as_sets", "uotpool.inputs"),
        ("solvers/sinkhorn.py", "from ..backends import SolverOptions", "uotpool.backends"),
        ("inputs.py", "from uotpool import backends", "uotpool.backends"),
        ("backends/reference.py", "from uotpool import inputs", "uotpool.inputs"),
        ("backends/cpu/ops.py", "def f():\n    from uotpool.nn import UOTPooling", "uotpool.nn"),
        ("functional.py", "from uotpool.nn.pooling import UOTPooling", "uotpool.nn.pooling"),
        ("nn/mixed.py", "from uotpool.pyg import UOTAggregation", "uotpool.pyg"),
        ("nn/pooling.py", "from uotpool import cli", "uotpool.cli"),
        ("nn/priors.py", "from uotpool import uot_pool", "uotpool"),
        ("integrations/pyg.py", "from uotpool.functional import uot_pool", "uotpool.functional"),
        ("integrations/pyg.py", "from uotpool.zoo import build", "uotpool.zoo"),
        ("zoo/simple.py", "from uotpool.pyg import UOTAggregation", "uotpool.pyg"),
        ("nn/pooling.py", "from uotpool.zoo.simple import Mean", "uotpool.zoo.simple"),
        ("__init__.py", "from uotpool.zoo import build", "uotpool.zoo"),
        ("__init__.py", "from uotpool.pyg import UOTAggregation", "uotpool.pyg"),
    ],
)
def test_a_wrong_import_is_found_and_named(file, line, target):
    files = source()
    files[file] += f"\n{line}\n"
    (message,) = violations(files)
    assert message.startswith(f"{file}:")
    assert f" imports {target};" in message


def test_an_unknown_module_is_named():
    (message,) = violations({"extra.py": ""})
    assert message.startswith("extra.py: ")
