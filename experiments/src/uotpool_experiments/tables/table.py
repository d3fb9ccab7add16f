"""A table of typed cells. `uotpool_experiments.tables.formats` and the report turn it into text."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from uotpool_experiments.analysis.metrics import is_per_cent
from uotpool_experiments.analysis.published_results import Published
from uotpool_experiments.analysis.samples import Sample
from uotpool_experiments.analysis.tests import Comparison


class Mark(Enum):
    """The marks of numbers that chance alone does not explain."""

    ABOVE = "above"
    BELOW = "below"


class Cell:
    """One place of a table; `str` gives its text."""

    @property
    def value(self) -> float | None:
        """The number by which the cell is sorted, if it has one."""
        return None

    @property
    def mark(self) -> Mark | None:
        return None


@dataclass(frozen=True)
class Text(Cell):
    """A name or another text."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Number(Cell):
    """A number and the count of its digits that are shown."""

    number: float
    form: str = ".2f"

    @property
    def value(self) -> float:
        return self.number

    def __str__(self) -> str:
        return f"{self.number:{self.form}}"


@dataclass(frozen=True)
class PValue(Cell):
    """The p-value of a test."""

    p: float

    @property
    def value(self) -> float:
        return self.p

    def __str__(self) -> str:
        return f"{self.p:.3f}" if self.p >= 0.001 else "< 0.001"


@dataclass(frozen=True)
class WithInterval(Cell):
    """A number with its interval."""

    number: float
    low: float
    high: float

    @property
    def value(self) -> float:
        return self.number

    def __str__(self) -> str:
        return f"{self.number:.1f} [{self.low:.1f}, {self.high:.1f}]"


@dataclass(frozen=True)
class Lead(WithInterval):
    """A difference in points with its interval, marked where the interval leaves out 0."""

    @property
    def mark(self) -> Mark | None:
        if self.low <= 0 <= self.high:
            return None
        return Mark.ABOVE if self.low > 0 else Mark.BELOW

    def __str__(self) -> str:
        between = f" [{self.low:+.1f}, {self.high:+.1f}]" if math.isfinite(self.low) else ""
        return f"{self.number:+.1f}{between}"


@dataclass(frozen=True)
class Count(Cell):
    """A count of something."""

    count: int

    @property
    def value(self) -> float:
        return self.count

    def __str__(self) -> str:
        return str(self.count)


@dataclass(frozen=True)
class Mean(Cell):
    """The mean of a sample and its standard deviation, with the number of runs where others have more."""

    sample: Sample
    metric: str
    most: int = 0  # the number of runs of the sample in the same column that has most

    @property
    def value(self) -> float:
        return self.sample.mean

    def __str__(self) -> str:
        unit, digits = (100, 2) if is_per_cent(self.metric) else (1, 3)
        fewer = f" [{len(self.sample)}]" if len(self.sample) < self.most else ""
        spread = f" ± {unit * self.sample.std:.{digits}f}" if len(self.sample) > 1 else ""
        return f"{unit * self.sample.mean:.{digits}f}{spread}{fewer}"


@dataclass(frozen=True)
class PublishedMean(Cell):
    """A number of the paper with its standard deviation, in per cent."""

    number: Published

    @property
    def value(self) -> float:
        return self.number.mean

    def __str__(self) -> str:
        return f"{self.number.mean:.2f} ± {self.number.std:.2f}"


@dataclass(frozen=True)
class Difference(Cell):
    """A difference in points, marked where it is larger than `chance`."""

    points: float
    chance: float = math.inf

    @property
    def value(self) -> float:
        return self.points

    @property
    def mark(self) -> Mark | None:
        if abs(self.points) <= self.chance:
            return None
        return Mark.ABOVE if self.points > 0 else Mark.BELOW

    def __str__(self) -> str:
        return f"{self.points:+.2f}"


@dataclass(frozen=True)
class Outcome(Cell):
    """A difference with the p-value of its test."""

    comparison: Comparison
    metric: str

    @property
    def value(self) -> float:
        return self.comparison.difference

    def __str__(self) -> str:
        unit = 100 if is_per_cent(self.metric) else 1
        return f"{unit * self.comparison.difference:+.2f} ({self.comparison.p_value:.2f})"


EMPTY = Text("")


class ColumnKind(Enum):
    """What a column holds. Code looks at this and not at the heading."""

    LABEL = "label"  # names and settings
    VALUE = "value"  # our number on a data set
    PUBLISHED = "published"  # the paper's number on a data set
    DIFFERENCE = "difference"  # our number less the paper's
    SUMMARY = "summary"  # something over all data sets


@dataclass(frozen=True)
class Column:
    """A column: its heading, what it holds, and the data set that this belongs to."""

    heading: str
    kind: ColumnKind = ColumnKind.SUMMARY
    dataset: str = ""

    @classmethod
    def label(cls, heading: str) -> Column:
        return cls(heading, ColumnKind.LABEL)

    @classmethod
    def of(cls, dataset: str, kind: ColumnKind = ColumnKind.VALUE) -> Column:
        """Make a column of a data set, headed by its name and, unless it holds our values, by what it holds."""
        return cls(dataset if kind is ColumnKind.VALUE else f"{dataset}, {kind.value}", kind, dataset)


@dataclass(frozen=True)
class Line:
    """The cells of one row of a table."""

    cells: tuple[Cell, ...]
    stays_last: bool = False  # True for a line that is no pooling but a baseline

    @classmethod
    def of(cls, name: str, *cells: Cell) -> Line:
        return cls((Text(name), *cells))


@dataclass
class Table:
    """Typed cells below typed columns; `best` has the places (row, column) of the cells to be set in bold."""

    title: str
    columns: list[Column]
    lines: list[Line] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    best: set[tuple[int, int]] = field(default_factory=set)

    @property
    def headings(self) -> list[str]:
        return [column.heading for column in self.columns]

    def texts(self) -> list[list[str]]:
        """Return the text of each cell, without marks."""
        return [[str(cell) for cell in line.cells] for line in self.lines]

    def mark_best(self, column: int, rows: Iterable[int], better: int) -> None:
        """Mark the best value of these rows in a column, and those that equal it.

        Args:
            column: the index of the column.
            rows: the indices of the rows that are compared.
            better: 1 if more is better, -1 if less is.
        """
        values = {r: value for r in rows if (value := self.lines[r].cells[column].value) is not None}
        best = max((better * value for value in values.values()), default=None)
        self.best |= {(r, column) for r, value in values.items() if better * value == best}
