"""A stored run as it was read. Files come from elsewhere or are edited by hand, so we check everything."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, fields
from typing import Any

from uotpool_experiments.tasks.spec import RunSpec, canonical

CHOICES = tuple(choice.name for choice in fields(RunSpec))
COSTS = ("seconds", "cpu_seconds", "peak_mib", "parameters")
FACTS = ("versions", "machine", "commit_id")
LARGEST = 1e100  # the square of every number below is finite
MOST_SEED = 2**63 - 1  # what SQLite holds
METRIC = re.compile(r"[A-Za-z]\w*")


@dataclass(frozen=True)
class Row:
    """A stored run. It refuses values that no run can have written."""

    spec: RunSpec
    fingerprint: str
    status: str
    attempts: int
    error: str | None
    seconds: float | None
    peak_mib: float | None
    parameters: int | None
    metrics: dict[str, float]
    details: dict[str, Any]
    cpu_seconds: float | None = None
    facts: dict[str, str] = field(default_factory=dict)  # those of `FACTS` that are known, in words

    def __post_init__(self) -> None:
        for name in ("task", "dataset", "pooling", "protocol", "settings"):
            _require(name, getattr(self.spec, name), "a text", isinstance(getattr(self.spec, name), str))
        for name in ("fold", "seed"):
            value = getattr(self.spec, name)
            good = type(value) is int and 0 <= value <= MOST_SEED
            _require(name, value, f"a whole number from 0 to {MOST_SEED}", good)
        if canonical(read_json("settings", self.spec.settings, dict)) != self.spec.settings:
            raise ValueError(f"settings: expected JSON as uotpool writes it, got {_short(self.spec.settings)}")
        _require("fingerprint", self.fingerprint, "a text", isinstance(self.fingerprint, str))
        _require("error", self.error, "a text or none", self.error is None or isinstance(self.error, str))
        for name in COSTS:
            value = getattr(self, name)
            _require(name, value, "a number >= 0 or none", value is None or (is_number(value) and value >= 0))
        for name, value in self.metrics.items():
            taken = name in (*CHOICES, *COSTS, *FACTS, "fingerprint") or not METRIC.fullmatch(name)
            _require("metrics", name, "names of letters, digits and _, none of a column's", not taken)
            _require(name, value, "a finite number", is_number(value))
        for name, fact in self.facts.items():
            _require(name, fact, "a text", isinstance(fact, str))

    def detail(self, name: str) -> float | None:
        """Return the detail of this name, which must be a number; None if there is none.

        The scales of a layer are stored as their smallest, median and largest; the median stands
        for them here, since runs of earlier code stored a single scale.
        """
        value = self.details.get(name)
        if name == "scale" and isinstance(value, list) and len(value) == 3:
            value = value[1]
        _require(f"details.{name}", value, "a finite number", value is None or is_number(value))
        return value


def is_number(value: Any) -> bool:
    """Return whether we can compute with the value: it is no bool, no NaN, and its square does not overflow."""
    return type(value) in (int, float) and abs(value) <= LARGEST


def read_json(name: str, text: Any, kind: type) -> Any:
    """Return the value of a column that holds JSON of this kind."""
    try:
        value = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{name}: expected JSON, got {_short(text)}: {error}") from error
    _require(name, value, f"a {'table' if kind is dict else 'list'} as JSON", isinstance(value, kind))
    return value


def _require(name: str, value: Any, expected: str, good: bool) -> None:
    if not good:
        raise ValueError(f"{name}: expected {expected}, got {_short(value)}")


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # deeply nested lists, or a number of thousands of digits
        text = f"a {type(value).__name__} that is too large to be shown"
    return text if len(text) <= 80 else f"{text[:77]}..."
