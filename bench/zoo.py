"""Every pooling of uotpool.zoo at 50 sets of 500 samples with 100 features: the paper's Figure 3b, with memory.

Draws runtime.png, as `uotpool figure runtime` does, and writes the table of docs/poolings.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import torch
from uotpool_experiments.figures import runtime
from uotpool_experiments.figures.runtime import BASELINE, THREADS, Candidate
from uotpool_experiments.figures.timing import BOTH, FORWARD, samples

from bench.cases import show, truth, verify
from bench.memory import Probe, measure_all
from bench.report import COST, Case, Row, cost, machine_facts
from bench.session import Session
from uotpool import UOTPooling
from uotpool.zoo import ENTRIES

SIZE_OF_X = "size of X"
NOTE = (
    "dense X, hidden = dim, K = 4, one thread; edges: 4 a node, at random, for those that need them. "
    "(eager): the exact algorithm without the fused kernel, impl='reference'"
)
MEMORY_NOTE = "extra: what forward + backward adds to the resident memory of a fresh process at its peak"
BEGIN, END = "<!-- made by: python -m bench zoo -->", "<!-- end -->"


class Costs(NamedTuple):
    seconds: dict[str, float]  # by mode
    extra: float  # bytes


def run(session: Session) -> list[Row]:
    size = runtime.SMALL if session.quick else runtime.SIZE
    torch.set_num_threads(THREADS)
    X = samples(size)
    pools = runtime.built(runtime.candidates(ENTRIES), size[2])
    for one, pool in pools.items():
        if isinstance(pool, UOTPooling) and one.impl is not None:
            verify(pool, truth(pool, X), X)
    seconds = runtime.measure(pools, size, session.repeats, session.min_sample, runtime.progress)
    probed = list(pools)[:2] if session.quick else list(pools)
    probes = [Probe(size, one.name, one.options, BOTH) for one in probed]
    extra = dict(zip(probed, measure_all(session, probes, THREADS), strict=True))

    rows = []
    base = seconds[Candidate(BASELINE)]
    for one in pools:
        for mode in (FORWARD, BOTH):
            case = Case("zoo", show(size), one.label, mode, THREADS)
            rows.append(cost(case, one.label, BASELINE, seconds[one][mode], base[mode], None, NOTE))
    for one, used in extra.items():
        case = Case("zoo", show(size), one.label, BOTH, THREADS)
        size_of_x = 4.0 * X.numel()
        mib = (used / 2**20, size_of_x / 2**20)
        rows.append(
            Row(
                *case,
                f"{one.label}, memory",
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
    session.figures.mkdir(parents=True, exist_ok=True)
    figure = runtime.picture(seconds, size)
    figure.savefig(session.figures / "runtime.png", dpi=150, metadata={"Software": None})
    plt.close(figure)
    page = session.figures.parent / "poolings.md"
    if not session.quick and page.exists():
        costs = {one: Costs(seconds[one], extra[one]) for one in pools}
        rewrite(page, table(costs, X, session.repeats))
    return rows


def table(costs: dict[Candidate, Costs], X: torch.Tensor, repeats: int) -> str:
    """The poolings by their forward time, in Markdown."""
    base = costs[Candidate(BASELINE)].seconds
    lines = [
        "| name | forward, ms | x mean | forward + backward, ms | x mean | extra memory, MiB | x X |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for one, (seconds, extra) in sorted(costs.items(), key=lambda item: item[1].seconds[FORWARD]):
        first, both = seconds[FORWARD], seconds[BOTH]
        cells = [f"`{one.name}`{one.label.removeprefix(one.name)}"]
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
