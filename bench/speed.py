"""The layer against the plain op-by-op form that users run today, and what torch.compile makes of that."""

from __future__ import annotations

import torch
from uotpool_experiments.solvers import SOLVERS

from bench.cases import layer, show, truth, verify
from bench.rows import Case, Comparison, Target, at_least, speedup
from bench.session import Session
from bench.timing import BOTH, FORWARD, Pool, Size, samples, timed

TARGETS = {
    (FORWARD, "sinkhorn"): 20,
    (FORWARD, "badmm-e"): 15,
    (FORWARD, "badmm-q"): 8,
    (BOTH, "sinkhorn"): 15,
    (BOTH, "badmm-e"): 15,
    (BOTH, "badmm-q"): 8,
}
OURS, EAGER, COMPILED, REFERENCE = "uotpool", "eager", "torch.compile(eager)", "exact reference"
NOTE = (
    "eager: the algorithm as published, impl='reference'; exact reference: what uotpool computes, op by op. "
    "torch.compile takes long to compile: timed at some sizes only, see --compile"
)


def measure(session: Session) -> list[Comparison]:
    rows: list[Comparison] = []
    for size, solver in session.track([(s, v) for s in session.sizes for v in SOLVERS], "speed"):
        X = samples(size)
        ours = layer(size[2], solver)
        expected = truth(ours, X)
        for threads in session.threads:
            torch.set_num_threads(threads)
            verify(ours, expected, X)
            eager = layer(size[2], solver, formulation="paper", impl="reference")
            pools: dict[str, Pool] = {OURS: ours, EAGER: eager}
            if threads == session.threads[0]:  # for information, so once will do
                pools[REFERENCE] = layer(size[2], solver, impl="reference")
            if _compiled(session, size, threads):
                torch.compiler.reset()  # one layer's graphs at a time: there is a limit to graphs of one class
                pools[COMPILED] = torch.compile(eager, dynamic=False)
            for mode in (FORWARD, BOTH):
                seconds = session.measure({k: timed(pool, mode, X) for k, pool in pools.items()}, threads)
                case = Case("speed", show(size), solver, mode, threads)
                for baseline in pools:
                    if baseline != OURS:
                        target: Target | None = None
                        if baseline == EAGER:
                            target = at_least(TARGETS[mode, solver])
                        rows.append(
                            speedup(case, OURS, baseline, seconds[OURS], seconds[baseline], target, NOTE)
                        )
    return rows


def _compiled(session: Session, size: Size, threads: int) -> bool:
    if session.compile == "some":
        return size in session.sizes[:2] and threads == session.threads[0]
    return session.compile == "all"
