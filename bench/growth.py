"""Time against N, D, K and B: should be proportional to each. Draws growth.png."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from uotpool_experiments.figures.problems import COLOURS, MARKERS
from uotpool_experiments.solvers import SOLVERS

from bench.cases import layer, truth, verify
from bench.rows import SLOPE, Case, Comparison, at_most, compare
from bench.session import Session
from bench.timing import BOTH, samples, timed

BASE = {"B": 32, "N": 32, "D": 64, "K": 4}
SMALLEST = {"B": 16, "N": 16, "D": 16, "K": 1}
MEANING = {"B": "sets B", "N": "samples in a set N", "D": "features D", "K": "modules K"}
FACTORS = (1, 2, 4, 8, 16, 32, 64)
NOTE = "slope of log time over log size on the upper half of a sweep by 64; below 1: a fixed cost still shows"


class Sweep(NamedTuple):
    values: list[int]
    seconds: list[float]

    @property
    def upper(self) -> Sweep:
        """Return the upper half, where fixed costs matter least."""
        start = (len(self.values) - 1) // 2
        return Sweep(self.values[start:], self.seconds[start:])

    @property
    def exponent(self) -> float:
        xs = [math.log(v) for v in self.upper.values]
        ys = [math.log(s) for s in self.upper.seconds]
        x, y = sum(xs) / len(xs), sum(ys) / len(ys)
        return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def measure(session: Session) -> list[Comparison]:
    threads = 1
    torch.set_num_threads(threads)
    base = {"B": 4, "N": 4, "D": 8, "K": 2} if session.quick else BASE
    sweeps: dict[tuple[str, str], Sweep] = {}
    rows: list[Comparison] = []
    for letter, solver in session.track([(x, s) for x in BASE for s in SOLVERS], "growth"):
        sweep = sweeps[letter, solver] = _sweep(session, base, letter, solver, threads)
        fixed = ", ".join(f"{k} {v}" for k, v in base.items() if k != letter)
        span = f"{letter} {sweep.upper.values[0]}..{sweep.upper.values[-1]}, {fixed}"
        case = Case("growth", span, solver, BOTH, threads)
        names = (f"{letter} = {sweep.values[-1]}", "start of the fit")
        ends = (sweep.upper.seconds[-1], sweep.upper.seconds[0])
        rows.append(compare(sweep.exponent, SLOPE, case, *names, *ends, at_most(1.15), NOTE))
    session.figures.mkdir(parents=True, exist_ok=True)
    draw(session.figures / "growth.png", sweeps, base)
    return rows


def _sweep(session: Session, base: dict[str, int], letter: str, solver: str, threads: int) -> Sweep:
    factors = FACTORS[:3] if session.quick else FACTORS
    values = [SMALLEST[letter] * factor for factor in factors]
    calls = {}
    for value in values:
        at = base | {letter: value}
        X = samples((at["B"], at["N"], at["D"]))
        pool = layer(at["D"], solver, at["K"])
        if value in (values[0], values[-1]):
            verify(pool, truth(pool, X), X)
        calls[value] = timed(pool, BOTH, X)
    seconds = session.measure(calls, threads)
    return Sweep(values, [seconds[value] for value in values])


def draw(path: Path, sweeps: dict[tuple[str, str], Sweep], base: dict[str, int]) -> None:
    fig, axes = plt.subplots(2, 2, figsize=(8.6, 7.2), layout="constrained", sharey=True)
    for ax, letter in zip(axes.flat, BASE, strict=True):
        _panel(ax, letter, sweeps, base)
    for ax in axes[:, 0]:
        ax.set_ylabel("time of forward + backward (ms)")
    fig.suptitle(
        "Time of one call, 1 thread, float32 (in brackets: exponent fitted on the upper half)", fontsize=11
    )
    fig.savefig(path, dpi=110)
    plt.close(fig)


def _panel(ax: Axes, letter: str, sweeps: dict[tuple[str, str], Sweep], base: dict[str, int]) -> None:
    for solver in SOLVERS:
        sweep = sweeps[letter, solver]
        ms = [1e3 * s for s in sweep.seconds]
        label = f"{solver} ({sweep.exponent:.2f})"
        ax.loglog(sweep.values, ms, color=COLOURS[solver], marker=MARKERS[solver], markersize=5, label=label)
    # Proportional growth, through the last point of the first solver, a little below so that it stays visible.
    last = sweeps[letter, next(iter(SOLVERS))]
    line = [0.6e3 * last.seconds[-1] * v / last.values[-1] for v in last.upper.values]
    ax.loglog(last.upper.values, line, color="0.4", linestyle="--", linewidth=1, label="proportional")
    ax.set_xlabel(MEANING[letter])
    ax.set_xticks(last.values, [f"{v:,}" for v in last.values], minor=False)
    ax.minorticks_off()
    ax.set_title(", ".join(f"{k} = {v}" for k, v in base.items() if k != letter), fontsize=9)
    ax.grid(True, color="0.9")
    ax.legend(fontsize=8, frameon=False)
