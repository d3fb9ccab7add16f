"""What a call costs besides arithmetic, on a set of 5 samples with 8 features, and where that goes."""

from __future__ import annotations

import torch
from uotpool_experiments.solvers import SOLVERS

from bench.cases import layer, show, truth, verify
from bench.rows import MICROSECONDS, Case, Comparison, Target, cost
from bench.session import Session
from bench.timing import BOTH, FORWARD, Call, samples, timed
from tests.spelling import uot_pool
from uotpool.nn import UOTPooling
from uotpool.solvers import as_solver

SIZE = (1, 5, 8)
TARGET = Target("<=", 80, MICROSECONDS)
OF_PAPER, DEFAULT = "uotp-sinkhorn and its kin", "default layer"
FUNCTION, WITH_GRAPH = "function", "forward, graph kept"


def measure(session: Session) -> list[Comparison]:
    rows: list[Comparison] = []
    for solver in session.track(SOLVERS, "latency"):
        rows += _calls(session, solver)
    return rows


def _calls(session: Session, solver: str) -> list[Comparison]:
    X = samples(SIZE)
    threads = session.threads[0]
    torch.set_num_threads(threads)
    calls: dict[tuple[str, str, str], Call] = {}
    for impl in ("auto", "reference"):
        calls["uot_pool with numbers", FUNCTION, impl] = _function(X, solver, impl)
        layers = {
            OF_PAPER: layer(SIZE[2], solver, impl=impl),
            DEFAULT: UOTPooling(SIZE[2], as_solver(solver), impl=impl),
        }
        for name, pool in layers.items():
            if impl == "auto":
                verify(pool, truth(pool, X), X)
            calls[name, FORWARD, impl] = timed(pool, FORWARD, X)
            calls[name, WITH_GRAPH, impl] = _with_graph(pool, X)
            calls[name, BOTH, impl] = timed(pool, BOTH, X)
    seconds = session.measure(calls, threads)
    rows = []
    for name, mode in dict.fromkeys((name, mode) for name, mode, _ in calls):
        mine, theirs = seconds[name, mode, "auto"], seconds[name, mode, "reference"]
        case = Case("latency", show(SIZE), solver, mode, threads)
        rows.append(cost(case, name, "exact reference", mine, theirs, TARGET))
    return rows


def _function(X: torch.Tensor, solver: str, impl: str) -> Call:
    rho = None if solver == "sinkhorn" else 1.0
    return lambda: uot_pool(X, 0.5, 1.0, 1.0, rho, solver=solver, impl=impl)


def _with_graph(pool: UOTPooling, X: torch.Tensor) -> Call:
    leaf = X.detach().requires_grad_()
    return lambda: pool(leaf)
