"""A hash of the code that decides the numbers of a run.

A run is known by its choices and by this: after a bug fix in what it runs, the stored run is no longer the
same run, and no table mixes the two. What decides is found from the imports: the task's module, the pooling's
module, and what they import of this package, without comments, docstrings and layout, so that a better
explanation does not throw results away. The sources of the native kernels count where they can run.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import uotpool
from uotpool.kernels import library
from uotpool.zoo import entry

PACKAGE = Path(uotpool.__file__).parent
TASKS = {"mil": "experiments.mil", "graph": "experiments.graph.task", "image": "experiments.image.task"}
# They check, find or describe things, and decide no number. The registry's entry of the pooling counts by
# itself, and data files have checksums of their own.
BYSTANDERS = {
    *("checks", "zoo", "zoo.registry", "experiments", "experiments.fingerprint", "experiments.spec"),
    *(
        "experiments.data",
        *(f"experiments.data.{name}" for name in ("archives", "catalog", "digests", "errors", "mat_file")),
    ),
    *(f"experiments.data.{name}" for name in ("fetch", "overview", "sources", "unlisted", "verify")),
    *("experiments.checkpoints", "experiments.image.checkpoints"),
}


# To every pooling; what is behind them and counts is the pooling's own module. A task may ask for fingerprints.
DOORS = {"zoo", "zoo.registry", "experiments.fingerprint"}


def fingerprint(task: str, pooling: str) -> str:
    """Of the code that a run of this task with this pooling uses."""
    found = entry(pooling)
    module = found.where.partition(":")[0]
    return _fingerprint(f"{found.where} {found.options}", TASKS[task], f"zoo.{module}")


@lru_cache
def _fingerprint(what: str, *roots: str) -> str:
    digest = hashlib.sha256(what.encode())
    used = sorted(closure(roots))
    for module in used:
        if module in BYSTANDERS:
            continue
        digest.update(f"{module}\n{_code(module)}\n".encode())
    if any(module.startswith("kernels") for module in used):
        digest.update(_native().encode())
    return digest.hexdigest()[:16]


def closure(roots: tuple[str, ...]) -> set[str]:
    """The modules (dotted, below uotpool) that the roots import, directly or not, with the roots."""
    todo, found = list(roots), set[str]()
    while todo:
        module = todo.pop()
        if module in found:
            continue
        found.add(module)
        if module not in DOORS:
            todo += _imports(module)
    return found


def _path(module: str) -> Path | None:
    base = PACKAGE.joinpath(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.exists():
            return path
    return None


@lru_cache
def _tree(module: str) -> ast.Module:
    path = _path(module)
    assert path is not None, module
    return ast.parse(path.read_text())


def _imports(module: str) -> Iterator[str]:
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names] + [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            below = name.removeprefix("uotpool.")
            if below != name and _path(below) is not None:
                yield below


def _code(module: str) -> str:
    """The module without docstrings, comments and line numbers."""
    tree = copy.deepcopy(_tree(module))
    for node in ast.walk(tree):
        if (
            isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
            and ast.get_docstring(node) is not None
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(tree)


def _native() -> str:
    """The kernels' sources where they are at hand, else that there are kernels, or none."""
    if library.missing():
        return "plain torch"
    sources = sorted((PACKAGE.parent.parent / "csrc").glob("*.[ch]*"))
    return "native " + hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
