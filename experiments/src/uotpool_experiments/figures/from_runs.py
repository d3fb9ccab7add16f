"""What the figures of committed runs share: which runs they compare, and the panels they draw them in."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from uotpool_experiments.analysis.samples import Sample, common, samples
from uotpool_experiments.analysis.selection import Source
from uotpool_experiments.figures.problems import COLOURS, MARKERS
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.solvers import FORMULATIONS, SOLVERS
from uotpool_experiments.tables.manifest import FOLDER, RUNS, results_folder
from uotpool_experiments.tables.settings import Flat, flat, written

TASKS = ("mil", "graph")
# The solver and the formulation of each pooling, by its name in the zoo.
POOLINGS = {f"uotp-{s}{'-paper' * (f == 'paper')}": (s, f) for f in FORMULATIONS for s in SOLVERS}
PANELS_PER_LINE = 3
PANEL_INCHES = 4.2
TITLE_LETTERS = 42  # in a line of the title of a panel
DEFAULT_MODULES = 4  # the K of a run whose settings say nothing
ACCURACY = "accuracy, %\n(mean ± standard deviation)"
Variant = TypeVar("Variant", bound=Hashable)
Samples = dict[tuple[str, Variant], Sample]  # by the solver and by what a figure varies


class Panel(NamedTuple):
    """A part of a figure, of runs that differ only in the solver and in what the figure varies."""

    dataset: str
    formulation: str
    protocol: str
    rest: str = ""  # settings other than the default

    @property
    def layers(self) -> str:
        return "published layers" if self.formulation == "paper" else "exact layers"

    def title(self, runs: int) -> str:
        protocol = "paper (optimistic)" if self.protocol == "paper" else self.protocol
        return "\n".join(
            (
                f"{self.dataset}, {self.layers}",
                f"protocol {protocol}, {runs} run{'s' * (runs > 1)} a point",
                *textwrap.wrap(self.rest, TITLE_LETTERS),
            )
        )

    def __str__(self) -> str:
        rest = f", {self.rest}" if self.rest else ""
        return f"{self.dataset}, {self.layers}, protocol {self.protocol}{rest}"


def committed_rows() -> list[Row]:
    """The runs of all tasks whose file is there; a MixedCodeError if a pooling has two versions of the code."""
    folder = results_folder()
    paths = [folder / task / RUNS for task in TASKS]
    there = [path for path in paths if path.is_file()]
    if not there:
        raise FileNotFoundError(
            f"expected {' or '.join(map(str, paths))}, got neither: run it in the root of the project, or set "
            f"{FOLDER} to the folder of the results"
        )
    sources = [(task, Source.read(path)) for task, path in zip(TASKS, paths, strict=True) if path in there]
    return [row for task, source in sources for row in source.select_all(task)[0]]


def compared(rows: Sequence[Row], varied: Callable[[Flat], Variant | None]) -> dict[Panel, Samples[Variant]]:
    """Accuracies of the UOT poolings, all those of a panel on the same folds and seeds.

    Args:
        rows: runs of any task, pooling and settings.
        varied: takes what the figure varies out of the settings and returns it; None for a run to leave out.
    """
    groups: dict[Panel, dict[tuple[str, Variant], list[Row]]] = {}
    for row in rows:
        if row.spec.pooling not in POOLINGS:
            continue
        solver, formulation = POOLINGS[row.spec.pooling]
        options = flat(row.spec.options)
        variant = varied(options)
        if variant is not None:
            rest = written(dict(sorted(options.items())))
            panel = Panel(row.spec.dataset, formulation, row.spec.protocol, rest)
            groups.setdefault(panel, {}).setdefault((solver, variant), []).append(row)
    found: dict[Panel, Samples[Variant]] = {}
    for panel, group in groups.items():
        solvers = [solver for solver, _ in group]
        kept = [key for key in group if solvers.count(key[0]) > 1]  # else nothing is varied
        parts = common([next(iter(samples(group[key], "accuracy").values())) for key in kept])
        if parts and len(parts[0]) > 0:
            found[panel] = dict(zip(kept, parts, strict=True))
    return found


def by_modules(rows: Sequence[Row]) -> dict[Panel, Samples[int]]:
    """Runs that differ in the number of modules K."""

    def varied(options: Flat) -> int | None:
        K = options.pop("pool.K", DEFAULT_MODULES)
        return K if type(K) is int else None

    found = compared(rows, varied)
    if not found:
        raise ValueError(f"runs: expected some that differ in pool.K for one of {tuple(POOLINGS)}, got none")
    return found


def of_solver(found: Samples[Variant], solver: str) -> dict[Variant, Sample]:
    """The samples of one solver, in the order of what is varied."""
    return {variant: sample for (name, variant), sample in sorted(found.items(), key=_order) if name == solver}


def _order(item: tuple[tuple[str, Any], Sample]) -> Any:
    return item[0][1]


def count(found: Samples[Variant]) -> int:
    """How many runs each point has."""
    return len(next(iter(found.values())))


def panels(number: int, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with this number of axes."""
    lines, columns = math.ceil(number / PANELS_PER_LINE), min(number, PANELS_PER_LINE)
    size: dict[str, Any] = {"figsize": (PANEL_INCHES * columns, height * lines), "layout": "constrained"}
    figure, axes = plt.subplots(lines, columns, squeeze=False, **size)
    for ax in axes.flat[number:]:
        ax.set_visible(False)
    return figure, list(axes.flat[:number])


def first_of_lines(axes: Sequence[Axes]) -> Iterator[Axes]:
    """The axes at the left, which have room for labels."""
    yield from axes[::PANELS_PER_LINE]


def draw_by_modules(
    height: float, draw: Callable[[Axes, Panel, Samples[int]], None]
) -> tuple[Figure, list[Axes], dict[Panel, Samples[int]]]:
    """A figure with a panel for each comparison of numbers of modules in the committed runs."""
    found = by_modules(committed_rows())
    figure, axes = panels(len(found), height)
    for ax, (panel, values) in zip(axes, found.items(), strict=True):
        draw(ax, panel, values)
        ax.set_title(panel.title(count(values)), fontsize=9)
    return figure, axes, found


def words_by_solver(found: Samples[Variant], words: Callable[[str, dict[Variant, Sample]], str]) -> list[str]:
    """What there is to say of each solver that has runs."""
    by_solver = {solver: of_solver(found, solver) for solver in SOLVERS}
    return [words(solver, own) for solver, own in by_solver.items() if own]


def style(solver: str, white: bool = False) -> dict[str, Any]:
    """How the points and error bars of a solver look."""
    return {
        "color": COLOURS[solver],
        "marker": MARKERS[solver],
        "markersize": 5.5,
        "markerfacecolor": "white" if white else COLOURS[solver],
        "linewidth": 1.3,
        "elinewidth": 0.9,
        "capsize": 2.5,
    }
