"""The names of the measurements, and the modules behind them."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from uotpool_experiments import figures

from bench.report import Rows
from bench.session import Session

NAMES = (
    # of time and memory
    *("speed", "scale", "default", "pools", "pot", "memory", "ragged", "latency", "growth", "zoo"),
    *("mil", "graph", "svm", "swap", "vit", "deploy", "sentence-speed", "assignment"),
    # of what the solvers find
    *("convergence", "gap-map", "propositions", "stability", "structural-zeros"),
    # of what learns
    *("witnesses", "heat-maps", "retrieval", "retrieval-settings", "sentences"),
    "gpu",
)
NAMED = ("gpu",)  # runs only when it is named: it needs a GPU
# The figure of `uotpool figure` that is drawn from a measurement, which --renew writes to results/bench.
FIGURES = {entry.measurement: name for name, entry in figures.FIGURES.items() if entry.measurement is not None}


def default() -> tuple[str, ...]:
    """Return what runs if nothing is named."""
    return tuple(name for name in NAMES if name not in NAMED)


class Measurement(NamedTuple):
    measure: Callable[[Session], Rows]
    summary: Callable[[Rows], Rows]  # what is printed of the rows


def load(name: str) -> Measurement:
    module = importlib.import_module(f"bench.{_module(name)}")
    return Measurement(module.measure, getattr(module, "summary", _as_they_are))


def about(name: str) -> str:
    """Return the first line of its file, which is not imported for that."""
    text = Path(__file__).with_name(f"{_module(name)}.py").read_text()
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]


def _module(name: str) -> str:
    return name.replace("-", "_")


def _as_they_are(rows: Rows) -> Rows:
    return rows
