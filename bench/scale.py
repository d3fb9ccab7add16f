"""The layer with a learned scale of the features against the same without: what the scale costs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from uotpool_experiments.solvers import SOLVERS

from bench.cases import layer, show, truth, verify
from bench.rows import Case, Comparison, at_most, cost
from bench.session import Session
from bench.timing import BOTH, FORWARD, Pool, samples, timed
from uotpool import UOTPooling, backends

PLAIN, ONE, EACH = "no scale", "one scale", "a scale per feature"
MOST = 1.05
NOTE = "every scale is 1, so that all of them have the same plans"


class Scaled(nn.Module):
    """A layer whose plan is that of scale * X, or, for a length of 0, of X."""

    def __init__(self, pool: UOTPooling, length: int) -> None:
        super().__init__()
        self.pool, self.options = pool, pool.options
        self.scale = nn.Parameter(torch.ones(length)) if length else None

    def forward(self, X: Tensor) -> Tensor:
        problem = self.pool._problem(X, None, None, None, None)
        return backends.pool(problem._replace(scale=self.scale), self.options)


def measure(session: Session) -> list[Comparison]:
    rows: list[Comparison] = []
    for size, solver in session.track([(s, v) for s in session.sizes for v in SOLVERS], "scale"):
        X = samples(size)
        plain = layer(size[2], solver)
        expected = truth(plain, X)
        lengths = {PLAIN: 0, ONE: 1, EACH: size[2]}
        pools: dict[str, Pool] = {name: Scaled(plain, length) for name, length in lengths.items()}
        for threads in session.threads:
            torch.set_num_threads(threads)
            for pool in pools.values():
                verify(pool, expected, X)
            for mode in (FORWARD, BOTH):
                seconds = session.measure({k: timed(pool, mode, X) for k, pool in pools.items()}, threads)
                case = Case("scale", show(size), solver, mode, threads)
                for name in (ONE, EACH):
                    rows.append(cost(case, name, PLAIN, seconds[name], seconds[PLAIN], at_most(MOST), NOTE))
    return rows
