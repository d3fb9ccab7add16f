"""Figure 3b: time of a call of every pooling, forward and with its backward pass. Measured when it is drawn."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from uotpool.backends.cpu import library
from uotpool.zoo import ENTRIES, Pooling, build
from uotpool_experiments.figures.timing import (
    BOTH,
    FORWARD,
    Job,
    Report,
    Size,
    interleaved,
    random_edges,
    samples,
    timed,
)

SIZE: Size = (50, 500, 100)  # the paper's
SMALL: Size = (4, 9, 8)
EXACT = tuple(name for name, entry in ENTRIES.items() if ("formulation", "exact") in entry.options)
FEW = ("mean", "max", "attention", *EXACT)
BASELINE = "mean"
PAPERS = ("sagp", "deepset", "set2set", "dynamic")  # what the paper compares its layers with
REPEATS, MIN_SAMPLE = 7, 5e-3  # samples, seconds of each at least
THREADS = 1


class Candidate(NamedTuple):
    """A pooling of the zoo; an exact UOT pooling with the implementation it runs in."""

    name: str
    impl: str | None = None

    @property
    def kind(self) -> str:
        if self.impl is not None:
            return "fused" if self.impl == "cpu" else "eager"
        return "published" if self.name.startswith("uotp-") else "other"

    @property
    def label(self) -> str:
        return self.name if self.impl is None else f"{self.name} ({self.kind})"

    @property
    def options(self) -> dict[str, Any]:
        return {} if self.impl is None else {"impl": self.impl}


Times = Mapping[Candidate, Mapping[str, float]]  # seconds by mode
# Colours of Okabe and Ito; what the legend says.
STYLES = {
    "fused": ("#D55E00", "s", "UOTP, exact, fused kernel"),
    "eager": ("#CC79A7", "D", "UOTP, exact, eager (plain torch)"),
    "published": ("#009E73", "^", "UOTP as published, eager"),
    "other": ("#0072B2", "o", "other poolings"),
}


def draw(seed: int, quick: bool) -> tuple[Figure, list[str]]:
    """Times differ from run to run; `seed` does not matter."""
    size = SMALL if quick else SIZE
    repeats, min_sample = (2, 2e-4) if quick else (REPEATS, MIN_SAMPLE)
    pools = built(candidates(FEW if quick else ENTRIES), size[2])
    times = measure(pools, size, repeats, min_sample, progress)
    return picture(times, size), _in_words(times, size, repeats)


def candidates(names: Iterable[str]) -> list[Candidate]:
    """Each of them; the exact UOT poolings eager and, where the kernel is there, fused."""
    found = []
    for name in names:
        if name in EXACT:
            found += [
                Candidate(name, impl) for impl in (["reference"] if library.missing() else ["cpu", "reference"])
            ]
        else:
            found.append(Candidate(name))
    return found


def built(wanted: Iterable[Candidate], dim: int) -> dict[Candidate, Pooling]:
    pools = {}
    for one in wanted:
        torch.manual_seed(1)
        pools[one] = build(one.name, dim, **one.options)
    return pools


def measure(
    pools: Mapping[Candidate, Pooling], size: Size, repeats: int, min_sample: float, report: Report
) -> dict[Candidate, dict[str, float]]:
    """Seconds of a call, by mode: all side by side, with one thread, the least of the repeats."""
    X, edges = samples(size), random_edges(size)
    jobs = {
        (one, mode): Job(timed(pool, mode, X, edge_index=edges), THREADS)
        for one, pool in pools.items()
        for mode in (FORWARD, BOTH)
    }
    report(0, repeats)
    seconds = interleaved(jobs, repeats, min_sample, report)
    return {one: {mode: seconds[one, mode] for mode in (FORWARD, BOTH)} for one in pools}


def progress(done: int, total: int) -> None:
    print(f"runtime: {done} of {total} rounds", file=sys.stderr, flush=True)


def picture(times: Times, size: Size) -> Figure:
    """Slowest forward call at the top."""
    order = sorted(times, key=lambda one: times[one][FORWARD])
    figure, ax = plt.subplots(figsize=(7.2, 0.235 * len(order) + 1.1), layout="constrained")
    for y, one in enumerate(order):
        colour, marker, _ = STYLES[one.kind]
        forward, both = (1e3 * times[one][mode] for mode in (FORWARD, BOTH))
        ax.plot([forward, both], [y, y], color=colour, linewidth=1.2, alpha=0.5, zorder=1)
        ax.plot(forward, y, marker, color=colour, markersize=5)
        ax.plot(both, y, marker, color=colour, markersize=5, markerfacecolor="white")
    ax.set_yticks(range(len(order)), [one.label for one in order], fontsize=8)
    for label, one in zip(ax.get_yticklabels(), order, strict=True):
        if one.kind != "other":
            label.set_fontweight("bold")  # the colours are too light for letters
    ax.set_xscale("log")
    ax.set_xlabel("time of a call, ms")
    B, N, D = size
    ax.set_title(f"{B} sets of {N} samples with {D} features, float32, one thread", fontsize=10)
    ax.grid(axis="x", alpha=0.3)
    ax.margins(y=0.015)
    ax.legend(handles=_legend({one.kind for one in order}), loc="lower right", fontsize=8, framealpha=1.0)
    return figure


def _legend(kinds: set[str]) -> list[Line2D]:
    points = [
        Line2D([], [], color=colour, marker=marker, linestyle="", markersize=5, label=text)
        for kind, (colour, marker, text) in STYLES.items()
        if kind in kinds
    ]
    black: dict[str, Any] = {"color": "black", "marker": "o", "linestyle": "", "markersize": 5}
    return [
        *points,
        Line2D([], [], label="filled: forward", **black),
        Line2D([], [], label="white: forward + backward", markerfacecolor="white", **black),
    ]


def _in_words(times: Times, size: Size, repeats: int) -> list[str]:
    base = times[Candidate(BASELINE)]
    words = [
        f"{' x '.join(map(str, size))}, float32, {THREADS} thread, least of {repeats} samples; forward, then "
        f"forward + backward: {BASELINE} {_both(base)}"
    ]
    for name in EXACT:
        eager, fused = times[Candidate(name, "reference")], times.get(Candidate(name, "cpu"))
        if fused is None:
            words.append(f"{name}, K = 4: eager {_both(eager)}; not fused, as {library.missing()}")
            continue
        faster = " and ".join(f"{eager[mode] / fused[mode]:.1f}" for mode in (FORWARD, BOTH))
        times_mean = " and ".join(f"{fused[mode] / base[mode]:.0f}" for mode in (FORWARD, BOTH))
        words.append(
            f"{name}, K = 4: fused {_both(fused)}, {times_mean} times {BASELINE}; eager {_both(eager)}, "
            f"{faster} times fused"
        )
    others = [f"{name} {_both(times[Candidate(name)])}" for name in PAPERS if Candidate(name) in times]
    if others:
        words.append(f"what the paper compares with (on a GPU): {'; '.join(others)}")
    return words


def _both(seconds: Mapping[str, float]) -> str:
    return f"{1e3 * seconds[FORWARD]:.3g}, {1e3 * seconds[BOTH]:.3g} ms"
