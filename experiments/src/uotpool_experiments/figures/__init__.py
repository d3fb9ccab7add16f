"""Figures of the paper. `uotpool figure NAME` draws one of them again, with matplotlib."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Entry(NamedTuple):
    """A figure: the module beside this one whose `draw` makes it, and what it shows.

    A figure of a measurement is drawn from what `python -m bench NAME` wrote, and its module says in `COLUMNS`
    what it reads; `draw` takes the lines. Any other `draw` takes a seed and whether to be quick. All give the
    figure and what it says in words.
    """

    module: str
    about: str
    measurement: str | None = None


FIGURES = {
    "plans": Entry("plans", "Figure 2a: plans of mean, max and attention pooling, true and found"),
    "stability": Entry(
        "stability", "Figure 2b: mass of the plan over the weights, and where it is NaN", "stability"
    ),
    "convergence": Entry("convergence", "Figure 3a: objective and duality gap against K", "convergence"),
    "runtime": Entry("runtime", "Figure 3b: time of a call of every pooling, eager and fused", "zoo"),
    "ranks": Entry("ranks", "mean ranks of all poolings over all data sets, with critical differences"),
    "forest": Entry("forest", "differences of exact UOTP from published UOTP, mean and best, on all data sets"),
    "regimes": Entry("regimes", "which pooling is safe: points behind the best one on each question"),
    "modules": Entry("modules", "Figure 5: accuracy against K, from the committed runs"),
    "priors": Entry("priors", "Table 6: accuracy with fixed and learned priors, from the committed runs"),
    "best-modules": Entry("best_modules", "Table 7: the best K of each solver, from the committed runs"),
    "epochs": Entry("epochs", "accuracy against epochs of the longest runs: would 50 have been enough?"),
    "dynamics": Entry("dynamics", "Figure 3c: plans on MUTAG as training goes on"),
    "rationality": Entry("rationality", "Figure 4: plans of trained models on graphs of MUTAG and IMDB-BINARY"),
    "bag-plans": Entry("bag_plans", "what the plans of trained UOT poolings look at in a bag of digits"),
    "image-plans": Entry("image_plans", "where the plan of a swapped network looks, on images of each class"),
}
FORMATS = ("png", "svg")


def draw(
    name: str,
    folder: Path,
    seed: int = 0,
    quick: bool = False,
    source: Path | None = None,
    formats: Sequence[str] = FORMATS,
) -> list[str]:
    """Writes `folder`/NAME in each format, and returns what the figure says in words, and the paths.

    Args:
        name: one of `FIGURES`.
        folder: where the files go; it is made if need be.
        seed: the seed of training, for a figure that trains.
        quick: whether to draw a small version, to see that it works, of a figure that trains.
        source: for a figure of a measurement, the CSV file of `python -m bench`; else the committed one.
        formats: endings of the files to write.
    """
    if name not in FIGURES:
        raise ValueError(f"name: expected one of {tuple(FIGURES)}, got {name!r}")
    entry = FIGURES[name]
    if source is not None and entry.measurement is None:
        those = tuple(name for name, other in FIGURES.items() if other.measurement is not None)
        raise ValueError(f"--from: expected one of the figures {those}, which draw a measurement, got {name!r}")
    try:
        import matplotlib as mpl  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("figures need matplotlib: pip install matplotlib", name=error.name) from error
    mpl.use("Agg")

    module: Any = importlib.import_module(f"uotpool_experiments.figures.{entry.module}")
    figure, words = _drawn(module, entry, seed, quick, source)
    return [*words, *map(str, save(figure, name, folder, formats))]


def save(figure: Figure, name: str, folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Writes `folder`/NAME in each format, closes the figure, and returns the paths."""
    import matplotlib as mpl  # noqa: PLC0415
    import matplotlib.pyplot as plt  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{form}" for form in formats]
    for path in paths:
        # Neither a date nor random names: the same figure is the same file.
        meta = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
            figure.savefig(path, dpi=150, metadata=meta)
    plt.close(figure)  # pyplot would keep it
    return paths


def _drawn(module: Any, entry: Entry, seed: int, quick: bool, source: Path | None) -> tuple[Figure, list[str]]:
    if entry.measurement is None:
        drawn: tuple[Figure, list[str]] = module.draw(seed, quick)
        return drawn
    # The folder of results is known to what makes tables, which the help of a command does not need.
    from uotpool_experiments.figures import measured  # noqa: PLC0415

    figure, words = module.draw(measured.read(entry.measurement, module.COLUMNS, source))
    return figure, [*words, measured.origin(entry.measurement, source)]
