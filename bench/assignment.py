"""Time and memory of `UOTAssignment` against plain torch: 32 images of 529 patches, 64 clusters of 128 values.

"plain" is the same layer as one would write it: steps of Sinkhorn by `torch.logsumexp`, then a batched product.
"plain, broadcast" makes the tensor of samples x clusters x values and sums it up. Each is measured alone, with
scores and values as the features of X, and with the maps that make them from 768 features. Times are those of
the processor, on one thread.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.cases import answer, show, verify
from bench.memory import Probe, measure_all
from bench.rows import Case, Comparison, cost, memory
from bench.session import Session
from bench.timing import BOTH, FORWARD, processor_time, samples, timed
from uotpool import UOTAssignment

SETS, SAMPLES, CLUSTERS, VALUES, DIM = 32, 529, 64, 128, 768
QUICK = (2, 9, 4, 8, 16)
THREADS = 1
OURS, PLAIN, BROADCAST = "UOTAssignment", "plain", "plain, broadcast"
ALONE, WHOLE = "alone", "with its maps"
NOTE = (
    f"{ALONE}: plan and sums, with scores and values as features of X; {WHOLE}: from 768 features, each by a "
    "linear map. broadcast: samples x clusters x values are made"
)
MEMORY_NOTE = "extra: what forward + backward adds to the resident memory of a fresh process at its peak"


class Columns(nn.Module):
    """Take some of the features, in the place of a network."""

    def __init__(self, begin: int, end: int) -> None:
        super().__init__()
        self.begin, self.end = begin, end

    def forward(self, X: Tensor) -> Tensor:
        return X[..., self.begin : self.end]


class Plain(nn.Module):
    """The layer written out for dense sets: at alpha0 = alpha1 = alpha2 = 1, as it is by default."""

    needs_edges = False
    aux_loss = 0.0

    def __init__(self, layer: UOTAssignment, broadcast: bool) -> None:
        super().__init__()
        assert layer.dustbin is not None
        assert layer.centres is not None
        self.score, self.value = layer.score, layer.value
        self.dustbin, self.centres = layer.dustbin, layer.centres
        self.share, self.K, self.broadcast = layer.dustbin_share, layer.solver.K, broadcast

    def forward(self, X: Tensor, edge_index: Tensor | None = None) -> Tensor:
        S, v = self.score(X), self.value(X)
        B, N, M = S.shape
        S = torch.cat([S, self.dustbin.expand(B, N, 1)], -1)
        log_p = torch.full((M + 1,), (1 - self.share) / M, dtype=S.dtype)
        log_p[-1] = self.share
        log_p, g = log_p.log(), torch.zeros(B, N, 1, dtype=S.dtype)
        for _ in range(self.K):
            f = 0.5 * (log_p - (S + g).logsumexp(1, keepdim=True))
            g = 0.5 * (-math.log(N) - (S + f).logsumexp(2, keepdim=True))
        Y = S + f + g
        P = (Y - Y.flatten(1).logsumexp(1)[:, None, None]).exp()[..., :M]
        if self.broadcast:
            V = (P.unsqueeze(-1) * (v.unsqueeze(2) - self.centres)).sum(1)
        else:
            V = P.transpose(1, 2) @ v - P.sum(1).unsqueeze(-1) * self.centres
        return functional.normalize(functional.normalize(V, dim=-1).flatten(1), dim=-1)


def head(dim: int, name: str, part: str, clusters: int, values: int) -> nn.Module:
    """Make one of the candidates, with the same parameters for each name."""
    torch.manual_seed(1)
    maps: dict[str, Any] = {}
    if part == ALONE:
        maps = {"score": Columns(0, clusters), "value": Columns(clusters, clusters + values)}
    layer = UOTAssignment(dim, clusters, values, **maps)
    assert layer.centres is not None
    nn.init.normal_(layer.centres, std=0.1)
    return layer if name == OURS else Plain(layer, broadcast=name == BROADCAST)


def measure(session: Session) -> list[Comparison]:
    sets, count, clusters, values, dim = QUICK if session.quick else (SETS, SAMPLES, CLUSTERS, VALUES, DIM)
    sizes = {ALONE: (sets, count, clusters + values), WHOLE: (sets, count, dim)}
    about = f", {clusters} clusters of {values}, "
    rows: list[Comparison] = []
    for part, size in session.track(list(sizes.items()), "assignment"):
        X = samples(size)
        options: dict[str, Any] = {"part": part, "clusters": clusters, "values": values}
        heads = {name: head(size[2], name, **options) for name in (OURS, PLAIN, BROADCAST)}
        verify(heads[OURS], answer(heads[PLAIN], X[:2]), X[:2])
        for mode in (FORWARD, BOTH):
            case = Case("assignment", show(size) + about + part, "sinkhorn", mode, THREADS)
            calls = {name: timed(pool, mode, X) for name, pool in heads.items()}
            seconds = processor_time(calls, session.repeats, session.min_sample)
            for other in (PLAIN, BROADCAST):
                rows.append(cost(case, OURS, other, seconds[OURS], seconds[other], None, NOTE))
        if session.quick and part == WHOLE:  # each probe is a process
            continue
        names = (OURS, PLAIN) if session.quick else tuple(heads)
        probes = [Probe(size, "bench.assignment:head", {"name": name, **options}, BOTH) for name in names]
        used = dict(zip(names, measure_all(session, probes, THREADS), strict=True))
        case = Case("assignment", show(size) + about + part, "sinkhorn", "memory", THREADS)
        for other in names[1:]:
            rows.append(memory(case, OURS, other, used[OURS], used[other], None, MEMORY_NOTE))
    return rows
