"""Peak extra memory of the layer, against the size of X and against more modules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from uotpool_experiments.solvers import SOLVERS

from bench.cases import only_reference, show
from bench.machine import ROOT
from bench.rows import Case, Comparison, Target, at_most, memory
from bench.session import Session
from bench.timing import BOTH, FORWARD, Size

FEW, MANY = 4, 32
NOTE = (
    "extra: what a call adds to the resident memory of a fresh process at its peak. X is there already; the "
    "output and dX (one size of X) are not"
)
SIZE_OF_X = "size of X"
EAGER = "-paper"  # op by op
DEFAULT = "uotp"  # with a scale per feature


class Probe(NamedTuple):
    size: Size
    name: str  # in uotpool.zoo, or module:function
    options: dict[str, Any]  # of `build`, or of the function
    mode: str


def measure(session: Session) -> list[Comparison]:
    size, bag = _sizes(session)
    solvers = tuple(SOLVERS)[: 1 if session.quick else None]
    threads = max(session.threads)  # each thread has its scratch
    probes = [_uot(size, solver, BOTH, K) for solver in solvers for K in (FEW, MANY)]
    if not session.quick:  # each is a process
        probes += [_uot(bag, "sinkhorn", mode, FEW) for mode in (FORWARD, BOTH)]
        probes.append(_uot(size, "sinkhorn", BOTH, FEW, eager=True))
    alone = [_uot(_large(session), solver, BOTH, FEW) for solver in solvers]
    alone.append(Probe(_slide(session), DEFAULT, {}, BOTH))

    rows: list[Comparison] = []
    extra: dict[tuple[str, int], float] = {}
    measured = measure_all(session, probes, threads) + measure_all(session, alone, 1)
    for probe, used in zip(probes + alone, measured, strict=True):
        solver = "sinkhorn" if probe.name == DEFAULT else probe.name.removeprefix("uotp-").removesuffix(EAGER)
        K, eager = probe.options.get("K", 1), _eager(probe)
        case = Case("memory", show(probe.size), solver, probe.mode, 1 if probe in alone else threads)
        B, N, D = probe.size
        layer = ", the default layer" if probe.name == DEFAULT else ""
        name = f"extra, K={K}{layer}" + (" (eager)" if eager else "")
        rows.append(memory(case, name, SIZE_OF_X, used, 4.0 * B * N * D, _target(probe, size), NOTE))
        if probe.size == size and not eager and probe not in alone:
            extra[solver, K] = used
    for solver in solvers:
        case = Case("memory", show(size), solver, BOTH, threads)
        less, more = sorted((extra[solver, FEW], extra[solver, MANY]))
        target = at_most(1.1) if solver == "sinkhorn" else None
        rows.append(memory(case, f"larger of K={FEW}, {MANY}", "smaller", more, less, target, NOTE))
    return rows


def _uot(size: Size, solver: str, mode: str, K: int, eager: bool = False) -> Probe:
    return Probe(size, f"uotp-{solver}" + (EAGER if eager else ""), {"K": K}, mode)


def _eager(probe: Probe) -> bool:
    return probe.name.endswith(EAGER)


def _sizes(session: Session) -> tuple[Size, Size]:
    if session.quick:
        return (64, 49, 128), (1, 2000, 128)
    if only_reference():
        return (32, 49, 512), (1, 5000, 512)  # that keeps ten copies of X a module
    return (256, 49, 512), (1, 50_000, 512)


def _large(session: Session) -> Size:
    """Return the size of one set, that of the promise in docs/kernels.md."""
    return (1, 2000, 512) if session.quick or only_reference() else (1, 10_000, 512)


def _slide(session: Session) -> Size:
    """Return the size of the patches of a slide of pathology, as features of an encoder."""
    return (1, 3000, 256) if session.quick or only_reference() else (1, 100_000, 1024)


def _target(probe: Probe, size: Size) -> Target | None:
    if probe.name == DEFAULT:
        return at_most(2.3)
    if probe.size[0] == 1 and probe.size[2] == 512 and probe.mode == BOTH:
        return at_most(6 if probe.name == "uotp-badmm-q" else 2.2)
    if probe.name != "uotp-sinkhorn" or _eager(probe):
        return None
    if probe.size == size:
        return at_most(3)
    return at_most(2) if probe.mode == FORWARD else None


def measure_all(session: Session, probes: list[Probe], threads: int) -> list[float]:
    """Return the extra bytes of each. Two run at a time, since each process counts its own."""
    with ThreadPoolExecutor(2) as two:
        results = [two.submit(extra_bytes, probe, threads) for probe in probes]
        return [result.result() for result in session.track(results, "memory")]


def extra_bytes(probe: Probe, threads: int) -> float:
    """Return the extra bytes at the peak of one call, in a process of its own."""
    what: dict[str, Any] = probe._asdict() | {"threads": threads}
    what["backward"] = what.pop("mode") == BOTH
    command = [sys.executable, "-m", "bench.memory_probe", json.dumps(what)]
    # glibc learns from what is freed to keep large blocks, and then peaks depend on chance. Fixed at its start
    # value, the threshold has each large block taken from and given back to the system.
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "131072"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"bench: the memory probe {what} failed:\n{done.stderr}")
    # Pages are counted in bulk now and then, so a call that needs next to nothing may show 0.
    return max(float(done.stdout), 4096.0)
