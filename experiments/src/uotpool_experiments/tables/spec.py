"""The spec of a table, built from the keys of a TOML file or from the options of a command line.

Each field has the names of its option and of its key, the values that it takes and its help, so an
option is renamed in this file alone. The module imports little, so that the command line starts
quickly.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any

from uotpool_experiments.analysis.metrics import METRICS
from uotpool_experiments.tables import kinds
from uotpool_experiments.tables.kinds import KINDS
from uotpool_experiments.tasks import TASKS, load
from uotpool_experiments.tasks.spec import canonical


class Form(Enum):
    """The forms that the value of an option can have."""

    CHOICE = "a name"
    NAMES = "a name or a list of names"
    SEEDS = "a number >= 1 or a list of numbers >= 0"
    SETTINGS = "a table of settings, with values as JSON has them"


@dataclass(frozen=True)
class Option:
    """An option of `uotpool table` and the key of `tables.toml` for the same field."""

    flag: str
    form: Form
    help: str
    key: str = ""  # the key of a TOML file, if it is not the flag without dashes
    choices: tuple[str, ...] = ()
    metavar: str | None = None

    @property
    def name(self) -> str:
        """The key of a TOML file. Messages also name the option by it."""
        return self.key or self.flag.removeprefix("--")

    def from_toml(self, value: Any) -> Any:
        """Return the value of the field for the value in a TOML file."""
        if self.form is Form.CHOICE and isinstance(value, str):
            return value
        if self.form is Form.SETTINGS and isinstance(value, Mapping) and _is_json(value):
            return dict(value)
        if self.form is Form.NAMES:
            names = [value] if isinstance(value, str) else value
            if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
                return tuple(names)
        if self.form is Form.SEEDS and (seeds := _seeds(value)):
            return seeds
        raise ValueError(f"{self.name}: expected {self.form.value}, got {value!r}")

    def words(self, value: Any) -> list[str]:
        """Return the words of a command line that give this value."""
        texts = {
            Form.CHOICE: lambda: [str(value)],
            Form.NAMES: lambda: [",".join(value)],
            Form.SEEDS: lambda: [_seeds_text(value)],
            Form.SETTINGS: lambda: [f"{name}={_setting_text(item)}" for name, item in value.items()],
        }[self.form]()
        # A value that begins with a dash would be taken for an option.
        pairs = [[f"{self.flag}={text}"] if text.startswith("-") else [self.flag, text] for text in texts]
        return [word for pair in pairs for word in pair]


def _is_json(value: Any) -> bool:
    """Return whether the value can be a setting of a run.

    TOML also has dates and numbers that are not finite.
    """
    try:
        canonical(value)
    except (TypeError, ValueError):
        return False
    return True


def _seeds(value: Any) -> tuple[int, ...]:
    """Return the seeds from 0 on if a number says how many, those of a list, or none for another value."""
    from uotpool_experiments.runs.sweep import MOST_RUNS, MOST_SEED  # noqa: PLC0415 only for a TOML file

    if type(value) is int and 1 <= value <= MOST_RUNS:
        return tuple(range(value))
    numbers = isinstance(value, list) and all(type(n) is int and 0 <= n <= MOST_SEED for n in value)
    return tuple(value) if numbers else ()


def _seeds_text(seeds: Sequence[int]) -> str:
    if tuple(seeds) == tuple(range(len(seeds))):
        return str(len(seeds))
    return ",".join(map(str, seeds)) + "," * (len(seeds) == 1)


def _setting_text(value: Any) -> str:
    """Write a value as the option `--set` takes it: a text as it is unless it reads as JSON, all
    else as JSON.
    """
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError:
            return value
    return canonical(value)


SETTINGS = Option("--set", Form.SETTINGS, "runs with these settings", key="settings", metavar="NAME=VALUE")


def _option(option: Option, default: Any) -> Any:
    """Make a field of `TableSpec` that is an option."""
    return field(default=default, metadata={"option": option})


@dataclass(frozen=True)
class TableSpec:
    """A table: the task, the kind, and which runs and numbers it shows."""

    task: str
    kind: str = _option(
        Option(
            "--kind",
            Form.CHOICE,
            "; ".join(f"{name}: {what}" for name, what in KINDS.items()),
            choices=tuple(KINDS),
        ),
        "results",
    )
    protocol: str = _option(Option("--protocol", Form.CHOICE, "paper or fair"), "fair")
    poolings: tuple[str, ...] = _option(
        Option(
            "--pooling",
            Form.NAMES,
            "only these, separated by commas; with --kind comparison or paired, the first against the others "
            "(default: all, and uotp or uotp-sinkhorn against them)",
        ),
        (),
    )
    vary: tuple[str, ...] = _option(
        Option(
            "--vary",
            Form.NAMES,
            "with --kind settings: runs that differ from the default in these alone, such as pool.K",
            metavar="NAME",
        ),
        (),
    )
    datasets: tuple[str, ...] = _option(Option("--dataset", Form.NAMES, "only these, separated by commas"), ())
    settings: Mapping[str, Any] = field(default_factory=dict, metadata={"option": SETTINGS})
    seeds: tuple[int, ...] = _option(
        Option("--seeds", Form.SEEDS, "only these: N for 0 to N - 1, or a list separated by commas"), ()
    )
    metric: str = _option(Option("--metric", Form.CHOICE, "what is measured", choices=METRICS), "accuracy")
    runs: str = _option(
        Option(
            "--runs",
            Form.CHOICE,
            "with --kind results: common for the runs that all poolings of the table have on a data set, own "
            "for all runs that each pooling has",
            choices=("common", "own"),
        ),
        "common",
    )

    def __post_init__(self) -> None:
        """Refuse what no table can show."""
        from uotpool_experiments.tasks.protocols import PROTOCOLS  # noqa: PLC0415 only when a table is made

        accepted = {"task": tuple(TASKS), "protocol": PROTOCOLS}
        accepted |= {f.name: option.choices for f, option in options() if option.choices}
        for name, names in accepted.items():
            if getattr(self, name) not in names:
                raise ValueError(f"{name}: expected one of {names}, got {getattr(self, name)!r}")
        for f, option in options():
            takers = [name for name in KINDS if f.name in kinds.load(name).options]
            if takers and self.kind not in takers and getattr(self, f.name) != f.default:
                where = " or ".join(f"--kind {name}" for name in takers)
                raise ValueError(f"{option.flag}: expected {where}, got --kind {self.kind}, which takes none")

    @classmethod
    def from_toml(cls, task: str, given: Mapping[str, Any]) -> TableSpec:
        """Make the spec from these keys of a TOML file; raise a ValueError that names what is wrong."""
        by_key = {option.name: (f.name, option) for f, option in options()}
        if unknown := sorted(set(given) - set(by_key)):
            raise ValueError(f"expected keys among {sorted(by_key)}, got {unknown}")
        values = {by_key[key][0]: by_key[key][1].from_toml(value) for key, value in given.items()}
        return cls(task, **values)

    def command(self, store: Path, stored: bool = False) -> str:
        """Return the command line that prints the table of the runs in this store."""
        words = ["uotpool", "table", self.task, f"--store={store}", *(["--stored"] if stored else [])]
        for f, option in options():
            value = getattr(self, f.name)
            if value and value != f.default:
                words += option.words(value)
        return shlex.join(words)

    def pooling_names(self) -> list[str]:
        """Return the named poolings, with the groups "all", "paper" and "exact" spelled out; none means all."""
        from uotpool_experiments.runs import sweep  # noqa: PLC0415 only when a table is made

        return sweep.pooling_names(self.task, self.poolings) if self.poolings else []

    def stored_settings(self) -> dict[str, Any]:
        """Return the settings as a run stores them: without defaults, but with the options of a
        pooling as given.
        """
        pool = {name: value for name, value in self.settings.items() if name == "pool"}
        others = {name: value for name, value in self.settings.items() if name != "pool"}
        return load(self.task).clean_settings("mean", others) | pool


def options() -> list[tuple[Field[Any], Option]]:
    """Return the fields of `TableSpec` that are options, in their order on a command line."""
    return [(f, f.metadata["option"]) for f in fields(TableSpec) if "option" in f.metadata]
