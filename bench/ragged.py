"""Sets of many sizes, one very large set, very many small ones: the time goes with the real elements."""

from __future__ import annotations

import torch
from torch import Tensor
from uotpool_experiments.solvers import SOLVERS

from bench.cases import Answer, layer, show, truth, verify
from bench.rows import PER_ELEMENT, Case, Comparison, Target, at_least, at_most, compare, speedup
from bench.session import Session
from bench.timing import BOTH, FORWARD, Job, samples, timed

MODES = (FORWARD, BOTH)
LARGEST = 57  # sizes 1 to 57, as the sets of gene-ontology data


def measure(session: Session) -> list[Comparison]:
    parts = (_uneven, _one_bag, _many_bags)
    return [row for part in session.track(parts, "ragged") for row in part(session)]


def _uneven(session: Session) -> list[Comparison]:
    """Compare random sizes with one size of the same number of rows, and with padding."""
    B, D = (20, 8) if session.quick else (1000, 64)
    sizes = torch.randint(1, LARGEST + 1, (B,), generator=torch.Generator().manual_seed(0))
    ptr = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    index = torch.arange(B).repeat_interleave(sizes)
    flat = samples((int(sizes.sum()), D))
    mask = torch.arange(LARGEST) < sizes[:, None]
    padded = torch.zeros(B, LARGEST, D)
    padded[mask] = flat
    N = (1 + LARGEST) // 2
    dense = samples((max(1, round(len(flat) / N)), N, D))
    rows: list[Comparison] = []
    for solver in SOLVERS:
        pool = layer(D, solver)
        expected, expected_dense = truth(pool, flat, ptr=ptr), truth(pool, dense)
        dX = torch.zeros_like(padded)
        dX[mask] = expected.dX
        expected_padded = Answer(expected.y, dX)
        for threads in session.threads:
            torch.set_num_threads(threads)
            verify(pool, expected, flat, ptr=ptr)
            verify(pool, expected, flat, index=index, dim_size=B)
            verify(pool, expected_dense, dense)
            verify(pool, expected_padded, padded, mask=mask)
            for mode in MODES:
                calls = {
                    "ptr": timed(pool, mode, flat, ptr=ptr),
                    "index": timed(pool, mode, flat, index=index, dim_size=B),
                    "dense, equal rows": timed(pool, mode, dense),
                    "padded + mask": timed(pool, mode, padded, mask=mask),
                }
                seconds = session.measure(calls, threads)
                case = Case("ragged", f"{B:,} x 1..{LARGEST} x {D}", solver, mode, threads)
                even = (seconds["dense, equal rows"], dense)
                for name, X in (("ptr", flat), ("index", flat), ("padded + mask", padded[mask])):
                    target = None if X is not flat else at_most(1.25)
                    rows.append(_per_element(case, name, "dense, equal rows", (seconds[name], X), even, target))
                rows.append(
                    speedup(case, "ptr, not padded", "padded + mask", seconds["ptr"], seconds["padded + mask"])
                )
    return rows


def _one_bag(session: Session) -> list[Comparison]:
    """Measure what a second thread brings when there is one set only."""
    size = (1, 500, 16) if session.quick else (1, 50_000, 512)
    X = samples(size)
    pool = layer(size[2], "sinkhorn")
    expected = truth(pool, X)
    one, two = 1, max(2, *session.threads)
    for threads in (one, two):
        torch.set_num_threads(threads)
        verify(pool, expected, X)
    del expected
    rows = []
    for mode in MODES:
        call = timed(pool, mode, X)
        seconds = session.measure_jobs({"few": Job(call, one), "many": Job(call, two)})
        case = Case("ragged", show(size), "sinkhorn", mode, two)
        target = at_least(1.6) if two == 2 else None
        rows.append(speedup(case, f"{two} threads", f"{one} threads", seconds["many"], seconds["few"], target))
    return rows


def _many_bags(session: Session) -> list[Comparison]:
    """Measure what a set costs besides its elements."""
    size, usual = ((300, 4, 8), (12, 12, 8)) if session.quick else ((100_000, 4, 64), (128, 12, 64))
    X, small = samples(size), samples(usual)
    pool = layer(size[2], "sinkhorn")
    expected, expected_small = truth(pool, X), truth(pool, small)
    rows = []
    for threads in session.threads:
        torch.set_num_threads(threads)
        verify(pool, expected, X)
        verify(pool, expected_small, small)
        for mode in MODES:
            seconds = session.measure(
                {"many": timed(pool, mode, X), "usual": timed(pool, mode, small)}, threads
            )
            case = Case("ragged", show(size), "sinkhorn", mode, threads)
            many, few = (seconds["many"], X), (seconds["usual"], small)
            rows.append(_per_element(case, "many small sets", show(usual), many, few, at_most(2)))
    return rows


def _per_element(
    case: Case,
    name: str,
    baseline: str,
    ours: tuple[float, Tensor],
    theirs: tuple[float, Tensor],
    target: Target | None,
) -> Comparison:
    """Return the ratio of the times per element of X; each is given as seconds and X (only the real rows)."""
    ns = [1e9 * seconds / X.numel() for seconds, X in (ours, theirs)]
    return compare(ns[0] / ns[1], PER_ELEMENT, case, name, baseline, ours[0], theirs[0], target)
