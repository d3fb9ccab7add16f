"""What a call costs besides arithmetic, on a set of 5 samples with 8 features, and where that goes."""

from __future__ import annotations

import ctypes
from functools import partial

import torch

from bench.cases import layer, show, truth, verify
from bench.rows import MICROSECONDS, Case, Comparison, Target, cost
from bench.session import Session
from bench.timing import BOTH, FORWARD, Call, samples, timed
from uotpool import backends, inputs, uot_pool
from uotpool.backends.cpu import library
from uotpool.nn import UOTPooling
from uotpool.problem import SOFTPLUS
from uotpool.solvers import SOLVERS

SIZE = (1, 5, 8)
TARGET = Target("<=", 80, MICROSECONDS)
CLASSIC, DEFAULT = "classic layer", "default layer"
FUNCTION, WITH_GRAPH = "function", "forward, graph kept"
SOLVE, NATIVE = "dispatch, autograd, op", "native call"
STAGES = "share of the stages in the layer's forward; each timed alone, the rest is what remains"


def measure(session: Session) -> list[Comparison]:
    rows: list[Comparison] = []
    for solver in session.track(SOLVERS, "latency"):
        rows += _calls(session, solver) + _stages(session, solver)
    return rows


def _calls(session: Session, solver: str) -> list[Comparison]:
    X = samples(SIZE)
    threads = session.threads[0]
    torch.set_num_threads(threads)
    calls: dict[tuple[str, str, str], Call] = {}
    for impl in ("auto", "reference"):
        calls["uot_pool with numbers", FUNCTION, impl] = _function(X, solver, impl)
        layers = {
            CLASSIC: layer(SIZE[2], solver, impl=impl),
            DEFAULT: UOTPooling(SIZE[2], solver=solver, impl=impl),
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


def _stages(session: Session, solver: str) -> list[Comparison]:
    """Take the layer's forward apart, under no_grad and with a graph."""
    rows: list[Comparison] = []
    threads = session.threads[0]
    for mode in (FORWARD, WITH_GRAPH):
        X = samples(SIZE).requires_grad_(mode == WITH_GRAPH)
        pool = layer(SIZE[2], solver)
        with torch.set_grad_enabled(mode == WITH_GRAPH):
            stages = stage_calls(pool, X)
            seconds = session.measure(stages | {"whole call": partial(pool, X)}, threads)
        whole = seconds.pop("whole call")
        if NATIVE in seconds and SOLVE in seconds:
            seconds[SOLVE] -= seconds[NATIVE]
        seconds["the rest"] = whole - sum(seconds.values())
        case = Case("latency", show(SIZE), solver, mode, threads)
        for name, alone in seconds.items():
            stage = max(alone, 1e-9)  # stages timed alone may add up to more than the whole
            rows.append(cost(case, name, "layer", stage, whole, None, STAGES))
    return rows


def stage_calls(pool: UOTPooling, X: torch.Tensor) -> dict[str, Call]:
    """Return each stage of `UOTPooling.forward`, as far as it can be called alone."""
    problem = pool._problem(X, None, None, None, None)
    stages: dict[str, Call] = {
        "arguments, layout": lambda: inputs.as_sets(X, None, None, None, None),
        "weights": lambda: pool._weights_for(X),
        SOLVE: lambda: backends.pool(problem, pool.options),
    }
    return stages if library.missing() else stages | {NATIVE: native_call(pool, X)}


def native_call(pool: UOTPooling, X: torch.Tensor) -> Call:
    """Return the call of the library's forward pass alone, by ctypes, with everything ready."""
    loaded = library.load()
    assert loaded is not None
    data = X.detach()
    raw = {f"raw_{name}": parameter.detach() for name, parameter in pool.raw_weights().items()}
    out = torch.empty(SIZE[0], SIZE[2])
    B, N, D = SIZE
    sizes = {"K": pool.K, "B": B, "M": B * N, "N": N, "D": D, "threads": 1}
    for name in pool.raw_weights():
        sizes |= {f"raw_length_{name}": pool.K, f"raw_form_{name}": library.FORMS[SOFTPLUS]}
    arrays = {"X": data.data_ptr(), "out": out.data_ptr()} | {name: t.data_ptr() for name, t in raw.items()}
    call = ctypes.byref(library.Call(solver=library.SOLVERS[pool.options.solver.name], **sizes, **arrays))
    library.check(loaded.uotpool_forward(call))
    torch.testing.assert_close(out, pool(X).detach())

    def forward(kept: tuple[torch.Tensor, ...] = (data, out, *raw.values())) -> object:
        return loaded.uotpool_forward(call)  # reads and writes what `kept` keeps alive

    return forward
