"""The layer with a learned scale of the features against the same without: what the scale costs."""

from __future__ import annotations

import torch
from uotpool_experiments.solvers import SOLVERS

from bench.cases import layer, show, truth, verify
from bench.rows import Case, Comparison, at_most, cost
from bench.session import Session
from bench.timing import BOTH, FORWARD, Pool, samples, timed
from uotpool import Learned

PLAIN, EACH = "no scale", "a scale per feature"
MOST = 1.05
NOTE = "every scale is 1, so that all of them have the same plans"


def measure(session: Session) -> list[Comparison]:
    rows: list[Comparison] = []
    for size, solver in session.track([(s, v) for s in session.sizes for v in SOLVERS], "scale"):
        X = samples(size)
        plain = layer(size[2], solver)
        expected = truth(plain, X)
        pools: dict[str, Pool] = {PLAIN: plain, EACH: layer(size[2], solver, scale=Learned(1.0))}
        for threads in session.threads:
            torch.set_num_threads(threads)
            for pool in pools.values():
                verify(pool, expected, X)
            for mode in (FORWARD, BOTH):
                seconds = session.measure({k: timed(pool, mode, X) for k, pool in pools.items()}, threads)
                case = Case("scale", show(size), solver, mode, threads)
                rows.append(cost(case, EACH, PLAIN, seconds[EACH], seconds[PLAIN], at_most(MOST), NOTE))
    return rows
