"""The default layer against version 0.1's, gated-mixed, gem and softmax, forward and forward + backward.

With --renew, writes the table of docs/kernels.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bench import machine
from bench.cases import answer, show, verify
from bench.report import rewrite, written
from bench.rows import Case, Comparison, cost
from bench.session import Session
from bench.timing import BOTH, FORWARD, Size, samples, timed
from uotpool import UOTPooling
from uotpool.zoo import Pooling, build

OURS, OF_PAPER = "uotp", "uotp-sinkhorn"
RIVALS = (OF_PAPER, "softmax-per-feature", "gated-mixed", "gem", "softmax")
NOTE = "dense X, each layer as it is made; uotp-sinkhorn: four steps with learned coefficients each, no scale"
BEGIN = "<!-- made by: python -m bench default --threads 1 --renew -->"


def measure(session: Session) -> list[Comparison]:
    rows: list[Comparison] = []
    for size in session.track(session.sizes, "default"):
        X = samples(size)
        pools = layers(size)
        exact = UOTPooling(size[2], impl="reference")
        exact.load_state_dict(pools[OURS].state_dict())
        expected = answer(exact, X)
        for threads in session.threads:
            torch.set_num_threads(threads)
            verify(pools[OURS], expected, X)
            for mode in (FORWARD, BOTH):
                seconds = session.measure({k: timed(pool, mode, X) for k, pool in pools.items()}, threads)
                case = Case("default", show(size), "sinkhorn", mode, threads)
                for rival in RIVALS:
                    rows.append(cost(case, OURS, rival, seconds[OURS], seconds[rival], None, NOTE))
    if session.renew:
        lines = written(rows, machine.facts(session.repeats))
        rewrite(machine.ROOT / "docs/kernels.md", BEGIN, table(lines))
    return rows


def layers(size: Size) -> dict[str, Pooling]:
    """Make the default layer and its rivals, with the weights of one seed."""
    found: dict[str, Pooling] = {}
    for name in (OURS, *RIVALS):
        torch.manual_seed(1)
        found[name] = build(name, size[2])
    return found


def table(lines: Sequence[dict[str, str]]) -> str:
    """Make the table of one thread in Markdown, from the lines of the CSV file."""
    found = {
        (line["size"], line["mode"], line["baseline"]): line
        for line in lines
        if line["threads"] == min(line["threads"] for line in lines)
    }
    sizes = list(dict.fromkeys(size for size, _, _ in found))
    text = ["| time of the default layer | " + " | ".join(sizes) + " |", "|---|" + "--:|" * len(sizes)]
    for mode, words in ((FORWARD, "forward"), (BOTH, "forward + backward")):
        own = [float(found[size, mode, RIVALS[0]]["candidate_us"]) for size in sizes]
        text.append(f"| {words}, microseconds | " + " | ".join(f"{us:.0f}" for us in own) + " |")
        for rival in RIVALS:
            ratios = [float(found[size, mode, rival]["ratio"]) for size in sizes]
            cells = " | ".join(f"{ratio:.2f}" for ratio in ratios)
            text.append(f"| {words}, as a multiple of {rival} | {cells} |")
    facts = lines[0]
    threads = min(line["threads"] for line in lines)
    where = f"{facts['machine']}, torch {facts['torch']}, commit {facts['commit']}"
    return "\n".join([*text, "", f"{where}, {threads} thread{'s' if threads != '1' else ''}."])
