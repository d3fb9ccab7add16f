"""Figures of the paper. `uotpool figure NAME` draws one of them again, with matplotlib."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Draw = Callable[
    [int, bool], tuple["Figure", list[str]]
]  # (seed, quick) -> the figure, and what it says in words
# The module beside this one, its function, and what the figure shows, by the name of the figure.
FIGURES = {
    "plans": ("plans", "draw", "Figure 2a: plans of mean, max and attention pooling, true and found"),
    "stability": ("stability", "draw", "Figure 2b: mass of the plan over the weights, and where it is NaN"),
    "convergence": ("convergence", "draw", "Figure 3a: objective and duality gap against K"),
    "runtime": ("runtime", "draw", "Figure 3b: time of a call of every pooling, eager and fused"),
    "ranks": ("ranks", "draw", "mean ranks of all poolings over all data sets, with critical differences"),
    "modules": ("modules", "draw", "Figure 5: accuracy against K, from the committed runs"),
    "priors": ("priors", "draw", "Table 6: accuracy with fixed and learned priors, from the committed runs"),
    "best-modules": ("best_modules", "draw", "Table 7: the best K of each solver, from the committed runs"),
    "dynamics": ("dynamics", "draw", "Figure 3c: plans on MUTAG as training goes on"),
    "rationality": (
        "rationality",
        "draw",
        "Figure 4: plans of trained models on graphs of MUTAG and IMDB-BINARY",
    ),
    "bag-plans": ("bag_plans", "draw", "what the plans of trained UOT poolings look at in a bag of digits"),
    "image-plans": (
        "image_plans",
        "draw",
        "where the plan of a swapped network looks, on images of each class",
    ),
}
FORMATS = ("png", "svg")


def draw(name: str, folder: Path, seed: int = 0, quick: bool = False) -> list[str]:
    """Writes `folder`/NAME.png and .svg, and returns what the figure says in words, and the paths.

    Args:
        name: one of `FIGURES`.
        folder: where the files go; it is made if need be.
        seed: the seed of training, for a figure that trains.
        quick: whether to draw a small version, to see that it works.
    """
    if name not in FIGURES:
        raise ValueError(f"name: expected one of {tuple(FIGURES)}, got {name!r}")
    module, function, _ = FIGURES[name]
    try:
        import matplotlib as mpl  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("figures need matplotlib: pip install matplotlib", name=error.name) from error
    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    make: Draw = getattr(importlib.import_module(f"uotpool_experiments.figures.{module}"), function)
    figure, words = make(seed, quick)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{form}" for form in FORMATS]
    for path in paths:
        # Neither a date nor random names: the same figure is the same file.
        meta = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
            figure.savefig(path, dpi=150, metadata=meta)
    plt.close(figure)  # pyplot would keep it
    return [*words, *map(str, paths)]
