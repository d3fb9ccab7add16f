"""Print the requirements of extras of our two packages, one per line: `requirements.py EXTRA ...`.

`pip install --editable .[dev]` would build the packages once more to read the requirements.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
OWN = re.compile(r"(uotpool(?:-experiments)?)(?:\[([\w,-]+)\])?$")


def extras() -> dict[str, dict[str, list[str]]]:
    """Return the extras of each package by their names."""
    found = {}
    for path in (ROOT / "pyproject.toml", ROOT / "experiments" / "pyproject.toml"):
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        found[project["name"]] = project["optional-dependencies"]
    return found


def requirements(names: list[str]) -> list[str]:
    """Return the requirements of these extras, and of extras that they name, each once."""
    known = extras()
    todo = [(package, name) for name in names for package in known if name in known[package]]
    if missing := set(names) - {name for _, name in todo}:
        raise SystemExit(f"requirements.py: expected extras among {known}, got {sorted(missing)}")
    found: dict[str, None] = {}
    while todo:
        package, name = todo.pop(0)
        for requirement in known[package][name]:
            if own := OWN.match(requirement):
                todo += [(own[1], extra) for extra in (own[2] or "").split(",") if extra]
            else:
                found[requirement] = None
    return list(found)


if __name__ == "__main__":
    print(*requirements(sys.argv[1:]), sep="\n")
