"""Against other poolings: maximum and mean, PyG's cheap learned ones (K = 4) and its expensive ones (K = 8)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import MLP
from torch_geometric.nn.aggr import (
    AttentionalAggregation,
    DeepSetsAggregation,
    GraphMultisetTransformer,
    Set2Set,
    SetTransformerAggregation,
    SoftmaxAggregation,
)
from uotpool_experiments.solvers import SOLVERS

from bench.cases import layer, show, truth, verify
from bench.rows import Case, Comparison, Target, at_least, at_most, cost, speedup
from bench.session import Session
from bench.timing import BOTH, FORWARD, Call, Pool, fastest, samples, timed
from uotpool import UOTPooling

PLAIN = ("max", "amax", "mean")
NOTE = (
    "dense: X (B, N, D); ragged: X (B N, D) with sorted index or ptr, what PyG's poolings get too (each in its "
    "fastest form). max is torch.max(X, dim=1), amax the same without indices. "
    "PyG softmax, attention, GMT: SoftmaxAggregation, AttentionalAggregation, GraphMultisetTransformer"
)
FAST, SLOW = 4, 8  # modules against the cheap and the expensive poolings


def measure(session: Session) -> list[Comparison]:
    rows: list[Comparison] = []
    for size in session.track(session.sizes, "pools"):
        B, N, D = size
        X = samples(size)
        flat = X.reshape(B * N, D)
        index = torch.arange(B).repeat_interleave(N)
        ptr = torch.arange(0, B * N + 1, N)
        ours: dict[tuple[str, int], UOTPooling] = {
            (solver, K): layer(D, solver, K) for solver in SOLVERS for K in (FAST, SLOW)
        }
        expected = {key: truth(pool, X) for key, pool in ours.items()}
        forms: list[dict[str, Any]] = [
            {"index": index, "dim_size": B},
            {"index": index, "ptr": ptr, "dim_size": B},
        ]
        for threads in session.threads:
            torch.set_num_threads(threads)
            for key, pool in ours.items():
                verify(pool, expected[key], X)
                verify(pool, expected[key], flat, index=index, dim_size=B)
                verify(pool, expected[key], flat, ptr=ptr)
            for mode in (FORWARD, BOTH):
                calls: dict[Any, Call] = {
                    name: timed(plain, mode, X) for name, plain in plain_poolings().items()
                }
                for name, other in (cheap_poolings(D) | expensive_poolings(D)).items():
                    calls[name] = _fastest(other, mode, flat, _forms_of(other, forms, N), threads)
                for (solver, K), pool in ours.items():
                    calls[solver, K, "dense"] = timed(pool, mode, X)
                    calls[solver, K, "ragged"] = _fastest(pool, mode, flat, [forms[0], {"ptr": ptr}], threads)
                rows += _compare(session.measure(calls, threads), show(size), mode, threads, D)
    return rows


def plain_poolings() -> dict[str, Pool]:
    def largest(X: Tensor) -> Tensor:
        return torch.max(X, dim=1).values

    return {"max": largest, "amax": lambda X: X.amax(1), "mean": lambda X: X.mean(1)}


def cheap_poolings(D: int) -> dict[str, nn.Module]:
    torch.manual_seed(3)
    return {
        "PyG softmax": SoftmaxAggregation(learn=True),
        "PyG attention": AttentionalAggregation(nn.Linear(D, 1)),
    }


def expensive_poolings(D: int) -> dict[str, nn.Module]:
    torch.manual_seed(3)
    heads = 4 if D % 4 == 0 else 1

    def mlp() -> nn.Module:
        return MLP([D, D, D], norm=None)

    return {
        "PyG Set2Set": Set2Set(D, processing_steps=3),
        "PyG SetTransformer": SetTransformerAggregation(D, heads=heads),
        # Few representatives, so the cheap end of what this one can be.
        "PyG GMT": GraphMultisetTransformer(D, k=4, heads=heads),
        "PyG DeepSets": DeepSetsAggregation(mlp(), mlp()),
    }


def _forms_of(pool: nn.Module, forms: list[dict[str, Any]], N: int) -> list[dict[str, Any]]:
    """The transformers pad their input, by the index only, and need not look for the largest set if told."""
    if isinstance(pool, (SetTransformerAggregation, GraphMultisetTransformer)):
        return [forms[0] | {"max_num_elements": N}]
    return forms


def _fastest(pool: Pool, mode: str, X: Tensor, forms: list[dict[str, Any]], threads: int) -> Call:
    calls = {i: timed(pool, mode, X, **form) for i, form in enumerate(forms)}
    return calls[fastest(calls, threads) if len(calls) > 1 else 0]


def _compare(seconds: dict[Any, float], size: str, mode: str, threads: int, D: int) -> list[Comparison]:
    rows = []
    groups = ((FAST, (*PLAIN, *cheap_poolings(D))), (SLOW, tuple(expensive_poolings(D))))
    for K, baselines in groups:
        for solver in SOLVERS:
            for layout in ("dense", "ragged"):
                case = Case("pools", size, solver, mode, threads)
                for baseline in baselines:
                    ours, theirs = seconds[solver, K, layout], seconds[baseline]
                    compare = cost if baseline in PLAIN else speedup
                    target = _target(solver, mode, layout, baseline)
                    rows.append(compare(case, f"K={K} {layout}", baseline, ours, theirs, target, NOTE))
    return rows


def _target(solver: str, mode: str, layout: str, baseline: str) -> Target | None:
    if solver != "sinkhorn":
        return None
    if baseline not in PLAIN:
        return at_least(1.0)
    return at_most(2.5) if (baseline, mode, layout) == ("max", FORWARD, "dense") else None
