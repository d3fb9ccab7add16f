"""A report as one HTML file: style, script and pictures inside, nothing loaded from elsewhere.

Jinja escapes everything that comes from data; the page's own policy (CSP) lets the browser load
nothing from elsewhere and run one script, whose digest it names.
"""

from __future__ import annotations

import base64
import hashlib
import os
from importlib import resources
from pathlib import Path

import jinja2

from uotpool_experiments.report.content import Report
from uotpool_experiments.tables.formats import SIGNS
from uotpool_experiments.tables.table import Cell


def write(report: Report, path: Path) -> Path:
    """Write the page to a file. An existing file is replaced in one step, so no half page is ever seen."""
    if path.is_dir():
        raise ValueError(f"--output: expected a file, got the folder {path}")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(render(report), encoding="utf-8")
    os.replace(part, path)
    return path


def render(report: Report) -> str:
    """Render the page as HTML."""
    script = _own("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals |= {"sort_key": sort_key, "signs": SIGNS}
    page = environment.from_string(_own("page.html"))
    return page.render(report=report, style=_own("page.css"), script=script, digest=digest)


def _own(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def sort_key(cell: Cell) -> str:
    """Return what a column is sorted by: the number of the cell, else its text."""
    return str(cell) if cell.value is None else f"{cell.value:.10g}"
