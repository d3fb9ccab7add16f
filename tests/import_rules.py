"""Which parts of a package may import which: found from the sources, wherever an import stands."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType


@dataclass(frozen=True)
class Rules:
    """For each part of a package, a module or a folder by its dotted name, the parts that it may import.

    The longest name counts: `solvers.weights` can have rules of its own beside `solvers`. The package's own
    `__init__.py` is the part `__init__`.
    """

    package: str
    allowed: Mapping[str, set[str]]

    def part(self, module: str) -> str:
        """The part that a module below the package belongs to; "" is the package itself."""
        names = module.split(".")
        for n in range(len(names), 0, -1):
            if ".".join(names[:n]) in self.allowed:
                return ".".join(names[:n])
        return module or "__init__"

    def violations(self, files: Mapping[str, str]) -> list[str]:
        """What points the wrong way in a package of these files (path below it: text)."""
        found = []
        modules = {module_name(path) for path in files}
        for path, text in files.items():
            here = self.part(module_name(path))
            if here not in self.allowed:
                found.append(f"{path}: a module that the rules do not know; give it a place there")
                continue
            for line, target in self._imported(text, path, modules):
                if self.part(target) not in self.allowed[here]:
                    what = f"{self.package}.{target}" if target else self.package
                    may = sorted(self.allowed[here])
                    found.append(f"{path}:{line} imports {what}; {here} may import {may}")
        return found

    def _imported(self, text: str, path: str, modules: set[str]) -> Iterator[tuple[int, str]]:
        """(line, dotted name below the package) of each import of the package's own modules."""
        folder = [self.package, *path.split("/")[:-1]]
        for node in imports_of(text):
            if isinstance(node, ast.Import):
                names = [alias.name.split(".") for alias in node.names]
            else:
                start = folder[: len(folder) + 1 - node.level] if node.level else []
                base = start + (node.module.split(".") if node.module else [])
                names = [[*base, alias.name] for alias in node.names]
                names = [name if ".".join(name[1:]) in modules else base for name in names]
            yield from ((node.lineno, ".".join(name[1:])) for name in names if name[0] == self.package)


@cache  # many sets of files differ in one of them
def imports_of(text: str) -> list[ast.Import | ast.ImportFrom]:
    """Every import in a source, wherever it stands."""
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]


def module_name(path: str) -> str:
    """`solvers/weights.py` is `solvers.weights`, `nn/__init__.py` is `nn`; the package itself is `__init__`."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def sources(package: ModuleType) -> dict[str, str]:
    """The files of a package: path below it, and text."""
    root = Path(package.__path__[0])
    return {p.relative_to(root).as_posix(): p.read_text() for p in sorted(root.rglob("*.py"))}


def check_finds(rules: Rules, files: Mapping[str, str], file: str, line: str, target: str) -> None:
    """A wrong import that is added to a file is found and named, and nothing else is."""
    (message,) = rules.violations({**files, file: files[file] + f"\n{line}\n"})
    assert message.startswith(f"{file}:")
    assert f" imports {target};" in message
