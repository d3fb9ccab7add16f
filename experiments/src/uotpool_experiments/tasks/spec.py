"""The spec of a run, which has the choices that decide its numbers, and the result of a run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

Report = Callable[[int, int], None]  # (epochs done, epochs in all)


def canonical(value: Any) -> str:
    """Write JSON in which equal values have one spelling: names are sorted, and 10.0 is 10."""
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


@dataclass(frozen=True)
class RunSpec:
    """One run: one outer fold of one seed. `settings` holds those that differ from the task's defaults."""

    task: str
    dataset: str
    pooling: str
    protocol: str
    fold: int
    seed: int
    settings: str = "{}"  # canonical JSON, so that a spec can be hashed

    @classmethod
    def make(cls, settings: Mapping[str, Any] | None = None, **choices: Any) -> RunSpec:
        return cls(settings=canonical(dict(settings or {})), **choices)

    @property
    def options(self) -> dict[str, Any]:
        """The settings as a dictionary."""
        found: dict[str, Any] = json.loads(self.settings)
        return found

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def key(self, fingerprint: str) -> str:
        """Return the key of the run in the store: a hash of its choices and of its code."""
        return hashlib.sha256(canonical([self.as_dict(), fingerprint]).encode()).hexdigest()[:32]

    def __str__(self) -> str:
        extra = "" if self.settings == "{}" else f" {self.settings}"
        which = f"{self.protocol} fold {self.fold} seed {self.seed}"
        return f"{self.task}/{self.dataset} {self.pooling} {which}{extra}"


class Options:
    """Mixin for settings dataclasses: builds one from a run's options.

    `differing` returns only the options that differ from the defaults.
    """

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        known = [f.name for f in fields(cls)]  # type: ignore[arg-type] # subclasses are dataclasses
        for name in options:
            if name not in known:
                raise ValueError(f"settings: expected names among {known}, got {name!r}")
        return cls(**options)

    @classmethod
    def differing(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        plain = cls()
        return {name: value for name, value in options.items() if value != getattr(plain, name)}


@dataclass
class Result:
    """The result of a run. Everything in it can be written as JSON."""

    metrics: dict[str, float]  # on the test fold
    epochs: list[dict[str, float]] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)  # splits, chosen configuration, diagnostics
    parameters: int = 0
    seconds: float = 0.0
    peak_mib: float = 0.0
