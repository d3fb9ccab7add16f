"""A hash of the code that decides the numbers of a run.

A run is known by its choices and by this hash: after a bug fix in the code that it runs, the stored
run is no longer the same run, and no table mixes the two. We find the code from the imports: the
task's module, the pooling's module, and the modules of our packages that these import. We hash the
statements of each module and leave out what decides no number: comments, docstrings, white space,
the module's path, its imports of our own modules, the release number, the list of its public names,
and the attributes that describe a task in words.
So a better explanation or a move to another file does not throw results away; a rename does. Where
the native kernels can run, their sources count too, declaration by declaration, without comments and
white space. The kernels for GPUs count where torch sees a GPU.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import re
from collections.abc import Collection, Iterator
from functools import lru_cache
from pathlib import Path

import torch

import uotpool
from uotpool.backends.cpu import library
from uotpool.zoo import entry
from uotpool_experiments.tasks import TASKS
from uotpool_experiments.tasks.base import DESCRIPTIVE

PACKAGES = {"uotpool": Path(uotpool.__path__[0]), "uotpool_experiments": Path(__file__).parents[1]}
# These modules check, find or describe things and decide no number. The registry's entry of the
# pooling is hashed separately, and data files have checksums of their own.
_STUDY = "uotpool_experiments"
_FINDS_DATA = ("archives", "catalog", "digests", "errors", "fetch", "mat_file", "overview", "sources")
NOT_HASHED = {
    *("uotpool.checks", "uotpool.zoo", "uotpool.zoo.registry"),
    *("uotpool.nn.config", "uotpool.nn.scores"),
    *(_STUDY, f"{_STUDY}.datasets", f"{_STUDY}.tasks"),
    *(f"{_STUDY}.tasks.{name}" for name in ("base", "checkpoints", "fingerprint", "spec")),
    *(f"{_STUDY}.datasets.{name}" for name in (*_FINDS_DATA, "unpinned", "verify")),
}
# Modules that can reach every pooling. We do not follow their imports; the pooling in use is hashed
# separately.
NOT_FOLLOWED = {"uotpool", "uotpool.zoo", "uotpool.zoo.registry", f"{_STUDY}.tasks.fingerprint"}

# Matches a piece of C++: a string or a character, in which // begins no comment; a comment; white space.
CPP_PIECES = re.compile(
    r"""(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
    r"""|(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<space>\s+)""",
    re.S,
)
# Includes and include guards stand for the place of code, as imports do in Python.
OF_PLACE = re.compile(r"^\s*#\s*(include\b|pragma\s+once)[^\n]*$", re.M)
# Matches what can begin or end a declaration: text, directives, the opening of a namespace, braces, semicolons.
CPP_MARKS = re.compile(
    r"""(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
    r"""|\n#(?P<directive>[^\n]*)(?=\n)|(?P<space>(?:inline )?namespace\b[^;{=]*\{)|(?P<mark>[{};])"""
)
GPU_KERNELS = "uotpool.backends.triton"


def fingerprint(task: str, pooling: str) -> str:
    """Hash the code that a run of this task with this pooling uses."""
    found = entry(pooling)
    module, _, name = found.where.partition(":")
    return _fingerprint(f"{name} {found.options}", task_module(task), f"uotpool.{module}")


def task_module(task: str) -> str:
    """Return the module that has the class of the task."""
    return TASKS[task].partition(":")[0]


@lru_cache
def _fingerprint(what: str, *roots: str) -> str:
    used = closure(roots)
    statements = [statement for module in used - NOT_HASHED for statement in _statements(module)]
    digest = hashlib.sha256(what.encode())
    for statement in sorted(statements):
        digest.update(f"{statement}\n".encode())
    if any(module.startswith("uotpool.backends.cpu") for module in used):
        digest.update(_native().encode())
    return digest.hexdigest()[:16]


def closure(roots: tuple[str, ...]) -> set[str]:
    """Return the roots and the modules of our packages that they import, directly or not."""
    todo, found = list(roots), set[str]()
    while todo:
        module = todo.pop()
        if module in found:
            continue
        found.add(module)
        if module not in NOT_FOLLOWED:
            todo += _imports(module)
    if not torch.cuda.is_available():
        found = {module for module in found if not module.startswith(GPU_KERNELS)}
    return found


def _path(module: str) -> Path | None:
    package, *below = module.split(".")
    if package not in PACKAGES:
        return None
    base = PACKAGES[package].joinpath(*below)
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
            if _path(name) is not None:
                yield name


class _WithoutWords(ast.NodeTransformer):
    """Leaves out docstrings, imports of our own modules, and the attributes that describe a task in words."""

    def visit(self, node: ast.AST) -> ast.AST:
        super().visit(node)
        for name in ("body", "orelse"):
            body = getattr(node, name, None)
            if not isinstance(body, list):  # the body of a lambda or of a conditional expression
                continue
            documented = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
            if name == "body" and documented and ast.get_docstring(node) is not None:  # type: ignore[arg-type]
                body = body[1:]
            is_task = isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Task" for base in node.bases)
            words = DESCRIPTIVE if is_task else ()
            kept = [s for s in body if not _is_own_import(s) and not _assigns_only(s, words)]
            setattr(node, name, kept or ([ast.Pass()] if name == "body" else []))
        return node


def _is_own_import(node: ast.stmt) -> bool:
    if isinstance(node, ast.ImportFrom):
        package = (node.module or "").partition(".")[0]
        return package in PACKAGES or package == "__future__"
    if isinstance(node, ast.Import):
        return all(alias.name.partition(".")[0] in PACKAGES for alias in node.names)
    return False


def _assigns_only(node: ast.stmt, names: Collection[str]) -> bool:
    found = [target.id for target in getattr(node, "targets", []) if isinstance(target, ast.Name)]
    return bool(found) and set(found) <= set(names)


@lru_cache
def _statements(module: str) -> list[str]:
    """Return the statements at the top of a module, without docstrings, comments, line numbers and imports.

    The names of other packages occur in the statements that use them, and a function that moves to
    another module takes the imports that it needs along.
    """
    tree = copy.deepcopy(_tree(module))
    _WithoutWords().visit(tree)
    kept = (node for node in tree.body if not isinstance(node, (ast.Pass, ast.Import, ast.ImportFrom)))
    return [ast.dump(node) for node in kept if not _assigns_only(node, {"__version__", "__all__"})]


def _native() -> str:
    """Return a hash of the kernels, or a text that says that there are none.

    It is one of their sources, so that every machine that builds these has the same. A wheel has no
    sources: there the library itself stands for them.
    """
    loaded = library.load()
    if loaded is None:
        return "plain torch"
    folder = PACKAGES["uotpool"].parents[1] / "csrc"
    if not folder.is_dir():
        return "built " + hashlib.sha256(Path(loaded._name).read_bytes()).hexdigest()
    sources = [path for path in folder.iterdir() if path.suffix in (".h", ".cpp")]
    pieces = sorted(piece for path in sources for piece in _cpp_pieces(_cpp_code(path.read_text())))
    return "native " + hashlib.sha256("\n".join(pieces).encode()).hexdigest()


def _cpp_pieces(code: str) -> list[str]:
    """Return the declarations of a file, each as one text, without the namespaces around them.

    A declaration that moves to another file stays the same piece. What lies between #if and #endif is
    one piece, as the condition decides whether it counts.
    """
    pieces: list[str] = []
    begin = braces = conditions = 0
    enclosing: list[bool] = []  # of each open brace: whether a namespace opened it

    def end(here: int, then: int) -> int:
        pieces.append(code[begin:here].strip())
        return then

    for found in CPP_MARKS.finditer(code):
        outside = braces == conditions == 0
        if found["directive"] is not None:
            if found["directive"].startswith("if"):
                begin = end(found.start(), found.start()) if outside else begin
                conditions += 1
            elif found["directive"].startswith("endif"):
                conditions -= 1
                begin = end(found.end(), found.end()) if braces == conditions == 0 else begin
            elif outside:
                begin = end(found.end(), found.end())
        elif found["space"] is not None:
            enclosing.append(outside)
            begin = end(found.start(), found.end()) if outside else begin
            braces += not outside
        elif found["mark"] == "{":
            enclosing.append(False)
            braces += 1
        elif found["mark"] == "}":
            of_namespace = enclosing.pop()
            braces -= not of_namespace
            if of_namespace:
                begin = end(found.start(), found.end())
            elif braces == conditions == 0:
                begin = end(found.end(), found.end())
        elif found["mark"] == ";" and outside:
            begin = end(found.end(), found.end())
    assert not enclosing, "a brace that nothing closes"
    assert not conditions, "an #if that nothing closes"
    pieces.append(code[begin:].strip())
    return [piece for piece in pieces if piece not in ("", ";")]


def _cpp_code(text: str) -> str:
    """Return C++ without comments, includes, and white space that separates no words."""

    def piece(found: re.Match[str]) -> str:
        if found["text"] is not None:
            return found["text"]
        return "\n" if found["space"] and "\n" in found["space"] else " "

    lines = CPP_PIECES.sub(piece, OF_PLACE.sub("", text).replace("\\\n", " ")).splitlines()
    # A directive of the preprocessor ends with its line. All other line ends are white space.
    code = "".join(f"\n{line}\n" if line.startswith("#") else f" {line} " for line in map(str.strip, lines))
    return re.sub(r"\n+", "\n", re.sub(r"(?<!\w) +| +(?!\w)", "", re.sub(r"[ \t]+", " ", code)))
