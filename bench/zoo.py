"""Every pooling of uotpool.zoo at 50 sets of 500 samples with 100 features: the paper's Figure 3b, with memory.

With --renew, writes the table of docs/poolings.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from uotpool_experiments.figures.runtime import BASELINE, EAGER, FUSED

from bench import machine
from bench.cases import show, truth, verify
from bench.memory import SIZE_OF_X, Probe, measure_all
from bench.report import rewrite, written
from bench.rows import Case, Comparison, cost, memory
from bench.session import Session
from bench.timing import BOTH, FORWARD, Job, Size, random_edges, samples, timed
from uotpool import UOTPooling
from uotpool.backends.cpu import library
from uotpool.zoo import ENTRIES, Pooling, build

SIZE: Size = (50, 500, 100)  # the paper's
SMALL: Size = (4, 9, 8)
EXACT = tuple(
    name for name, entry in ENTRIES.items() if getattr(dict(entry.options).get("solver"), "is_exact", False)
)
THREADS = 1
MEMORY = ", memory"  # behind the name of a pooling, in a row on that
NOTE = (
    "dense X, hidden = dim, K = 4, one thread; edges: 4 a node, at random, for those that need them. "
    "(eager): the exact algorithm without the fused kernel, impl='reference'"
)
MEMORY_NOTE = "extra: what forward + backward adds to the resident memory of a fresh process at its peak"
BEGIN = "<!-- made by: python -m bench zoo --renew -->"


class Candidate(NamedTuple):
    """A pooling of the zoo; an exact UOT pooling with the implementation it runs in."""

    name: str
    impl: str | None = None

    @property
    def label(self) -> str:
        return self.name if self.impl is None else self.name + (FUSED if self.impl == "cpu" else EAGER)

    @property
    def options(self) -> dict[str, Any]:
        return {} if self.impl is None else {"impl": self.impl}


def measure(session: Session) -> list[Comparison]:
    size = SMALL if session.quick else SIZE
    torch.set_num_threads(THREADS)
    X = samples(size)
    pools = built(candidates(ENTRIES), size[2])
    for one, pool in pools.items():
        if isinstance(pool, UOTPooling) and one.impl is not None:
            verify(pool, truth(pool, X), X)
    seconds = times(session, pools, size)
    probed = list(pools)[:1] if session.quick else list(pools)  # each in a process
    probes = [Probe(size, one.name, one.options, BOTH) for one in probed]
    extra = dict(zip(probed, measure_all(session, probes, THREADS), strict=True))

    rows = []
    for one, mode in seconds:
        case = Case("zoo", show(size), one.label, mode, THREADS)
        base = seconds[Candidate(BASELINE), mode]
        rows.append(cost(case, one.label, BASELINE, seconds[one, mode], base, None, NOTE))
    for one, used in extra.items():
        case = Case("zoo", show(size), one.label, BOTH, THREADS)
        rows.append(memory(case, one.label + MEMORY, SIZE_OF_X, used, 4.0 * X.numel(), None, MEMORY_NOTE))
    if session.renew:
        rewrite(machine.ROOT / "docs/poolings.md", BEGIN, table(written(rows, machine.facts(session.repeats))))
    return rows


def candidates(names: Iterable[str]) -> list[Candidate]:
    """Make each of them; the exact UOT poolings are eager and, where the kernel is there, also fused."""
    impls = ["reference"] if library.missing() else ["cpu", "reference"]
    found = []
    for name in names:
        found += [Candidate(name, impl) for impl in impls] if name in EXACT else [Candidate(name)]
    return found


def built(wanted: Iterable[Candidate], dim: int) -> dict[Candidate, Pooling]:
    pools = {}
    for one in wanted:
        torch.manual_seed(1)
        pools[one] = build(one.name, dim, **one.options)
    return pools


def times(
    session: Session, pools: Mapping[Candidate, Pooling], size: Size
) -> dict[tuple[Candidate, str], float]:
    """Return the seconds of a call of each mode, all side by side."""
    X, edges = samples(size), random_edges(size)
    jobs = {
        (one, mode): Job(timed(pool, mode, X, **({"edge_index": edges} if pool.needs_edges else {})), THREADS)
        for one, pool in pools.items()
        for mode in (FORWARD, BOTH)
    }
    return session.measure_jobs(jobs, "zoo")


def table(lines: Sequence[dict[str, str]]) -> str:
    """List the poolings by their forward time, in Markdown, from the lines of the CSV file."""
    found = {(line["candidate"], line["mode"]): line for line in lines}
    text = [
        "| name | forward, ms | x mean | forward + backward, ms | x mean | extra memory, MiB | x X |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    labels = [label for label, mode in found if mode == FORWARD]
    for label in sorted(labels, key=lambda label: float(found[label, FORWARD]["candidate_us"])):
        name, space, impl = label.partition(" ")
        cells = [f"`{name}`{space}{impl}"]
        for mode in (FORWARD, BOTH):
            line = found[label, mode]
            cells += [_plain(float(line["candidate_us"]) / 1e3), _plain(float(line["ratio"]))]
        extra = found[label + MEMORY, BOTH]
        cells += [f"{float(extra['candidate_mib']):.0f}", f"{float(extra['ratio']):.1f}"]
        text.append("| " + " | ".join(cells) + " |")
    facts = lines[0]
    text += ["", f"{facts['machine']}, torch {facts['torch']}, commit {facts['commit']}."]
    return "\n".join(text)


def _plain(value: float) -> str:
    """Format three digits without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
