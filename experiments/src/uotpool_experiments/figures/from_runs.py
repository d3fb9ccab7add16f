"""What the figures of committed runs share: which runs are compared, and the panels they are drawn in."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from uotpool_experiments.analysis.statistics import Sample, common, samples
from uotpool_experiments.figures.problems import COLOURS, FORMULATIONS, MARKERS, SOLVERS
from uotpool_experiments.runs import export, same_code
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.tables.kinds import select
from uotpool_experiments.tables.manifest import FOLDER, RUNS, results_folder
from uotpool_experiments.tables.settings import Flat, flat, written

TASKS = ("mil", "graph")
# Name in the zoo: solver, formulation.
POOLINGS = {f"uotp-{s}{'-paper' * (f == 'paper')}": (s, f) for f in FORMULATIONS for s in SOLVERS}
WIDTH = 3  # panels in a line
INCHES = 4.2  # width of a panel
LETTERS = 42  # of a line of its title
MODULES = 4  # of a run whose settings say nothing
ACCURACY = "accuracy, %\n(mean ± standard deviation)"
Variant = TypeVar("Variant", bound=Hashable)
Samples = dict[tuple[str, Variant], Sample]  # by solver and what a figure varies


class Panel(NamedTuple):
    """Of runs that differ in the solver and in what a figure varies, and in nothing else."""

    dataset: str
    formulation: str
    protocol: str
    rest: str = ""  # other settings than the default

    @property
    def layers(self) -> str:
        return "published layers" if self.formulation == "paper" else "exact layers"

    def title(self, runs: int) -> str:
        protocol = "paper (optimistic)" if self.protocol == "paper" else self.protocol
        return "\n".join(
            (
                f"{self.dataset}, {self.layers}",
                f"protocol {protocol}, {runs} run{'s' * (runs > 1)} a point",
                *textwrap.wrap(self.rest, LETTERS),
            )
        )

    def __str__(self) -> str:
        rest = f", {self.rest}" if self.rest else ""
        return f"{self.dataset}, {self.layers}, protocol {self.protocol}{rest}"


def committed() -> list[Row]:
    """The runs of all tasks that have a file."""
    folder = results_folder()
    paths = [folder / task / RUNS for task in TASKS]
    there = [path for path in paths if path.is_file()]
    if not there:
        raise FileNotFoundError(
            f"expected {' or '.join(map(str, paths))}, got neither: run it in the root of the project, or set "
            f"{FOLDER} to the folder of the results"
        )
    return [row for task, path in zip(TASKS, paths, strict=True) if path in there for row in _runs(task, path)]


def _runs(task: str, path: Path) -> list[Row]:
    """Of one version of the code for each pooling, or it refuses."""
    return select(export.read(path), task, stored=True, settings=None, same=same_code.beside(path))[0]


def compared(rows: Sequence[Row], varied: Callable[[Flat], Variant | None]) -> dict[Panel, Samples[Variant]]:
    """Accuracies of the UOT poolings; all of a panel on the same folds and seeds.

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
        K = options.pop("pool.K", MODULES)
        return K if type(K) is int else None

    found = compared(rows, varied)
    if not found:
        raise ValueError(f"runs: expected some that differ in pool.K for one of {tuple(POOLINGS)}, got none")
    return found


def of_solver(found: Samples[Variant], solver: str) -> dict[Variant, Sample]:
    """In the order of what is varied."""
    return {variant: sample for (name, variant), sample in sorted(found.items(), key=_order) if name == solver}


def _order(item: tuple[tuple[str, Any], Sample]) -> Any:
    return item[0][1]


def count(found: Samples[Variant]) -> int:
    """Runs a point."""
    return len(next(iter(found.values())))


def panels(number: int, height: float) -> tuple[Figure, list[Axes]]:
    """So many axes, the first of each line with room for labels."""
    lines, columns = math.ceil(number / WIDTH), min(number, WIDTH)
    size: dict[str, Any] = {"figsize": (INCHES * columns, height * lines), "layout": "constrained"}
    figure, axes = plt.subplots(lines, columns, squeeze=False, **size)
    for ax in axes.flat[number:]:
        ax.set_visible(False)
    return figure, list(axes.flat[:number])


def first_of_lines(axes: Sequence[Axes]) -> Iterator[Axes]:
    yield from axes[::WIDTH]


def style(solver: str, white: bool = False) -> dict[str, Any]:
    """Of points with error bars."""
    return {
        "color": COLOURS[solver],
        "marker": MARKERS[solver],
        "markersize": 5.5,
        "markerfacecolor": "white" if white else COLOURS[solver],
        "linewidth": 1.3,
        "elinewidth": 0.9,
        "capsize": 2.5,
    }
