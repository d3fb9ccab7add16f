"""Draw the passes of the GPU kernels over a set for docs/gpu.md: `python tools/draw_gpu_passes.py [FILE]`."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

FILE = Path(__file__).parents[1] / "docs/figures/gpu-passes.png"
PASS, MERGE, TEXT = "#c7d7f2", "#f6d9b0", "#222222"
CHUNKS = 3
# What a pass does with a row of X once it is in registers, and what the merge after it leaves; K = 2.
FORWARD = (
    ("columns of\nmodule 1", "L₁"),
    ("rows of 1 → v\ncolumns of 2", "L₂"),
    ("rows of 2 → v\noutput", "y"),
)
BACKWARD = (
    ("output → dv\nrows of 2", "du₂"),
    ("columns of 2 → dv\nrows of 1", "du₁"),
    ("all modules\nat once", "dX"),
)


def box(axes: Axes, x: float, y: float, width: float, height: float, colour: str, text: str) -> None:
    style = "round,pad=0,rounding_size=0.06"
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=style, facecolor=colour, edgecolor="#556"))
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=8.5, color=TEXT)


def arrow(axes: Axes, x: float, y: float, to_x: float, to_y: float) -> None:
    look = {"arrowstyle": "-|>", "color": "#556", "lw": 1.0, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xy=(to_x, to_y), xytext=(x, y), arrowprops=look)


def large(axes: Axes, y: float, title: str, passes: tuple[tuple[str, str], ...]) -> None:
    """Draw launches from left to right: a pass over all chunks, then the merge of their sums."""
    axes.text(0, y + 2.75, title, fontsize=10, weight="bold", color=TEXT)
    for i, (work, merged) in enumerate(passes):
        x, last = 3.3 * i, merged == "dX"
        for chunk in range(CHUNKS):
            box(axes, x, y + 0.9 * chunk, 1.75, 0.78, PASS, work)
            if last:
                arrow(axes, x + 1.75, y + 0.9 * chunk + 0.39, x + 2.15, y + 0.9 * chunk + 0.39)
            else:
                arrow(axes, x + 1.75, y + 0.9 * chunk + 0.39, x + 2.15, y + 1.29)
        if last:
            axes.text(x + 2.25, y + 1.29, "dX", ha="left", va="center", fontsize=9, color=TEXT)
            continue
        box(axes, x + 2.15, y + 0.75, 0.72, 1.08, MERGE, f"merge\n{merged}")
        if i + 1 < len(passes):
            arrow(axes, x + 2.87, y + 1.29, x + 3.3, y + 1.29)


def small(axes: Axes, y: float) -> None:
    axes.text(0, y + 1.95, "small sets: a program for each set, 1 launch each way", fontsize=10, weight="bold")
    texts = ["columns of module 1", "rows of 1 → v, columns of 2", "rows of 2 → v, output"]
    for i in range(2):
        name = "set 1" if i == 0 else "set 2"
        row = y + 0.95 * (1 - i)
        axes.text(0, row + 0.39, name, ha="left", va="center", fontsize=9, color=TEXT)
        for j, text in enumerate(texts):
            box(axes, 0.7 + 3.0 * j, row, 2.75, 0.78, PASS, text)
            if j:
                arrow(axes, 0.45 + 3.0 * j, row + 0.39, 0.7 + 3.0 * j, row + 0.39)


def draw(path: Path) -> None:
    figure, axes = plt.subplots(figsize=(9, 7.2))
    large(axes, 6.8, "large sets, forward: a program for each chunk of rows, 2 K + 2 launches", FORWARD)
    large(axes, 3.2, "large sets, backward: 2 K + 1 launches", BACKWARD)
    small(axes, 0.2)
    axes.text(
        0, -0.25, "K = 2. A blue box reads its rows of X once; nothing of the size of X is kept.", fontsize=9
    )
    axes.set_xlim(-0.1, 9.9)
    axes.set_ylim(-0.45, 9.9)
    axes.axis("off")
    figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else FILE)
