"""Every pooling of uotpool.zoo at 50 sets of 500 samples with 100 features: the paper's Figure 3b, with memory.

Draws zoo.png, and writes the table of docs/poolings.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import torch

from bench.cases import show, truth, verify
from bench.memory import Probe, measure_all
from bench.report import COST, Case, Row, cost, machine_facts
from bench.session import Session
from uotpool.experiments.timing import BOTH, FORWARD, Call, random_edges, samples, timed
from uotpool.zoo import ENTRIES, Pooling, build
from uotpool.zoo.uot import UOTP

BASELINE, REFERENCE = "mean", " (plain torch)"
SIZE_OF_X = "size of X"
NOTE = (
    "dense X, hidden = dim, K = 4, one thread; edges: 4 a node, at random, for those that need them. "
    "(plain torch): the exact algorithm without the fused kernel, impl='reference'"
)
MEMORY_NOTE = "extra: what forward + backward adds to the resident memory of a fresh process at its peak"
BEGIN, END = "<!-- made by: python -m bench zoo -->", "<!-- end -->"


class Costs(NamedTuple):
    pool: Pooling
    seconds: dict[str, float]  # by mode
    extra: float  # bytes


def run(session: Session) -> list[Row]:
    size = (4, 9, 8) if session.quick else (50, 500, 100)
    threads = 1
    torch.set_num_threads(threads)
    X = samples(size)
    layout = {"edge_index": random_edges(size)}
    names = [*ENTRIES, *(name + REFERENCE for name, entry in ENTRIES.items() if _exact_uot(name))]
    pools = {name: _build(name, size[2]) for name in names}
    for name, pool in pools.items():
        if isinstance(pool, UOTP) and _exact_uot(name):
            verify(pool.uot, truth(pool.uot, X), X)
    seconds: dict[str, dict[str, float]] = {name: {} for name in names}
    for mode in session.track((FORWARD, BOTH), "zoo"):
        calls: dict[str, Call] = {name: timed(pool, mode, X, **layout) for name, pool in pools.items()}
        for name, value in session.measure(calls, threads).items():
            seconds[name][mode] = value
    probes = [Probe(size, *_name_and_options(name), BOTH) for name in (names[:2] if session.quick else names)]
    extra = dict(zip(names, measure_all(session, probes, threads), strict=False))

    rows = []
    for name in names:
        for mode in (FORWARD, BOTH):
            case = Case("zoo", show(size), name, mode, threads)
            rows.append(cost(case, name, BASELINE, seconds[name][mode], seconds[BASELINE][mode], None, NOTE))
    for name, used in extra.items():
        case = Case("zoo", show(size), name, BOTH, threads)
        size_of_x = 4.0 * X.numel()
        mib = (used / 2**20, size_of_x / 2**20)
        rows.append(
            Row(
                *case,
                f"{name}, memory",
                SIZE_OF_X,
                None,
                None,
                used / size_of_x,
                COST,
                "",
                "",
                MEMORY_NOTE,
                *mib,
            )
        )
    costs = {name: Costs(pools[name], seconds[name], extra.get(name, 0.0)) for name in names}
    session.figures.mkdir(parents=True, exist_ok=True)
    draw(session.figures / "zoo.png", costs, show(size))
    page = session.figures.parent / "poolings.md"
    if not session.quick and page.exists():
        rewrite(page, table(costs, X, session.repeats))
    return rows


def _exact_uot(name: str) -> bool:
    return name.startswith("uotp-") and not name.endswith("-paper")


def _name_and_options(name: str) -> tuple[str, dict[str, Any]]:
    plain = name.removesuffix(REFERENCE)
    return plain, {} if plain == name else {"impl": "reference"}


def _build(name: str, dim: int) -> Pooling:
    torch.manual_seed(1)
    plain, options = _name_and_options(name)
    return build(plain, dim, **options)


def table(costs: dict[str, Costs], X: torch.Tensor, repeats: int) -> str:
    """The poolings by their forward time, in Markdown."""
    base = costs[BASELINE].seconds
    lines = [
        "| name | forward, ms | x mean | forward + backward, ms | x mean | extra memory, MiB | x X |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, (_, seconds, extra) in sorted(costs.items(), key=lambda item: item[1].seconds[FORWARD]):
        first, both = seconds[FORWARD], seconds[BOTH]
        cells = [f"`{name.removesuffix(REFERENCE)}`" + (REFERENCE if name.endswith(REFERENCE) else "")]
        cells += [_plain(1e3 * first), _plain(first / base[FORWARD]), _plain(1e3 * both)]
        cells += [_plain(both / base[BOTH]), f"{extra / 2**20:.0f}", f"{extra / (4 * X.numel()):.1f}"]
        lines.append("| " + " | ".join(cells) + " |")
    facts = machine_facts(repeats)
    lines += ["", f"{facts['machine']}, torch {facts['torch']}, commit {facts['commit']}."]
    return "\n".join(lines)


def _plain(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def rewrite(page: Path, text: str) -> None:
    """Put the table between the marks of the page."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise SystemExit(f"bench: {page} has no place for the table ({BEGIN} ... {END})")
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{mark}{after}")


def draw(path: Path, costs: dict[str, Costs], size: str) -> None:
    """Times, slowest at the top."""
    names = sorted(costs, key=lambda name: costs[name].seconds[FORWARD])
    fig, ax = plt.subplots(figsize=(7.2, 9.2), layout="constrained")
    for y, name in enumerate(names):
        ours = name.startswith("uotp-")
        colour = "#D55E00" if ours else "#0072B2"
        forward, both = (1e3 * costs[name].seconds[mode] for mode in (FORWARD, BOTH))
        ax.plot([forward, both], [y, y], color=colour, linewidth=1.2, alpha=0.5)
        ax.plot(forward, y, "o", color=colour, markersize=5, label="forward" if y == 0 else None)
        ax.plot(
            both, y, "o", color=colour, markerfacecolor="white", label="forward + backward" if y == 0 else None
        )
    ax.set_yticks(range(len(names)), names, fontsize=8)
    for label in ax.get_yticklabels():
        if label.get_text().startswith("uotp-"):
            label.set_color("#D55E00")
            label.set_fontweight("bold")
    ax.set_xscale("log")
    ax.set_xlabel("time of one call (ms), 1 thread, float32")
    ax.set_title(f"{size} (sets x samples x features)", fontsize=10)
    ax.grid(True, axis="x", color="0.9")
    ax.margins(y=0.01)
    ax.legend(loc="lower right", frameon=False)
    fig.savefig(path, dpi=110)
    plt.close(fig)
