"""Figure 3b: time of a call of every pooling, forward and with its backward pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from uotpool_experiments.figures.measured import Lines

COLUMNS = ("size", "mode", "threads", "candidate", "candidate_us", "repeats")
FORWARD, BOTH = "forward", "forward+backward"
EAGER, FUSED = " (eager)", " (fused)"  # behind the name of an exact UOT pooling: the implementation it ran in
BASELINE = "mean"
PAPERS = ("sagp", "deepset", "set2set", "dynamic")  # what the paper compares its layers with
FUSED_ALONE = ("uotp", "uotp-single")  # have a fused kernel, and are measured with that alone
# Colours of Okabe and Ito; what the legend says.
STYLES = {
    "fused": ("#D55E00", "s", "UOTP, exact, fused kernel"),
    "eager": ("#CC79A7", "D", "UOTP, exact, eager (plain torch)"),
    "published": ("#009E73", "^", "UOTP as published, eager"),
    "other": ("#0072B2", "o", "other poolings"),
}
Times = Mapping[str, Mapping[str, float]]  # milliseconds by the name of a pooling and mode


def kind(label: str) -> str:
    if label.endswith(FUSED) or label in FUSED_ALONE:
        return "fused"
    if label.endswith(EAGER):
        return "eager"
    return "published" if label.startswith("uotp-") else "other"


def draw(measured: Lines) -> tuple[Figure, list[str]]:
    lines = [line for line in measured if line["candidate_us"]]  # others are of memory
    times: dict[str, dict[str, float]] = {}
    for line in lines:
        times.setdefault(line["candidate"], {})[line["mode"]] = float(line["candidate_us"]) / 1e3
    return _picture(times, lines[0]), _in_words(times, lines[0])


def _threads(line: Mapping[str, str]) -> str:
    return "one thread" if line["threads"] == "1" else f"{line['threads']} threads"


def _picture(times: Times, about: Mapping[str, str]) -> Figure:
    """Slowest forward call at the top."""
    order = sorted(times, key=lambda label: times[label][FORWARD])
    figure, ax = plt.subplots(figsize=(7.2, 0.235 * len(order) + 1.1), layout="constrained")
    for y, label in enumerate(order):
        colour, marker, _ = STYLES[kind(label)]
        forward, both = times[label][FORWARD], times[label][BOTH]
        ax.plot([forward, both], [y, y], color=colour, linewidth=1.2, alpha=0.5, zorder=1)
        ax.plot(forward, y, marker, color=colour, markersize=5)
        ax.plot(both, y, marker, color=colour, markersize=5, markerfacecolor="white")
    ax.set_yticks(range(len(order)), order, fontsize=8)
    for tick, label in zip(ax.get_yticklabels(), order, strict=True):
        if kind(label) != "other":
            tick.set_fontweight("bold")  # the colours are too light for letters
    ax.set_xscale("log")
    ax.set_xlabel("time of a call, ms")
    B, N, D = about["size"].split(" x ")
    ax.set_title(f"{B} sets of {N} samples with {D} features, float32, {_threads(about)}", fontsize=10)
    ax.grid(axis="x", alpha=0.3)
    ax.margins(y=0.015)
    ax.legend(handles=_legend({kind(label) for label in order}), loc="lower right", fontsize=8, framealpha=1.0)
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


def _in_words(times: Times, about: Mapping[str, str]) -> list[str]:
    base = times[BASELINE]
    words = [
        f"{about['size']}, float32, {_threads(about)}, least of {about['repeats']} samples; forward, then "
        f"forward + backward: {BASELINE} {_both(base)}"
    ]
    for name in (label.removesuffix(EAGER) for label in times if label.endswith(EAGER)):
        eager, fused = times[name + EAGER], times.get(name + FUSED)
        if fused is None:
            words.append(f"{name}, K = 4: eager {_both(eager)}; measured without the fused kernel")
            continue
        faster = " and ".join(f"{eager[mode] / fused[mode]:.1f}" for mode in (FORWARD, BOTH))
        times_mean = " and ".join(f"{fused[mode] / base[mode]:.0f}" for mode in (FORWARD, BOTH))
        words.append(
            f"{name}, K = 4: fused {_both(fused)}, {times_mean} times {BASELINE}; eager {_both(eager)}, "
            f"{faster} times fused"
        )
    others = [f"{name} {_both(times[name])}" for name in PAPERS if name in times]
    if others:
        words.append(f"what the paper compares with (on a GPU): {'; '.join(others)}")
    return words


def _both(milliseconds: Mapping[str, float]) -> str:
    return f"{milliseconds[FORWARD]:.3g}, {milliseconds[BOTH]:.3g} ms"
