"""The GPU kernels as compiled, without a GPU: registers, spills, instructions. Prints tables of docs/gpu.md."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

from bench.offline import figures, limits
from bench.offline.driver import VERSION, unusable
from bench.offline.figures import Figure, Subject
from bench.rows import PART, Finding, spread
from bench.session import Session
from uotpool.backends.triton.arguments import KERNELS

LIMITS = "most of all kernels and features"
WHAT = "registers / spills / instructions / special ones for each entry"
COLUMNS = ("registers", "spills", "shared", "conversions", "instructions", "special")


def measure(session: Session) -> list[Finding]:
    if reason := unusable():
        raise SystemExit(f"bench: {reason}")
    chosen = [Subject("sm_80", 64)] if session.quick else subjects()
    # The compiler has one thread for each kernel. A process that has started threads must not be forked.
    workers = min(os.cpu_count() or 1, len(chosen))
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        found = session.track(pool.map(figures.measure, chosen), "gpu-static")
        return [_row(figure) for subject in found for figure in subject]


def subjects() -> list[Subject]:
    """Return all that the limits are for."""
    return [
        Subject(target, D, dtype, scale, solver)
        for solver in KERNELS
        for target in limits.TARGETS
        for dtype in limits.DTYPES
        for scale in (False, True)
        for D in limits.FEATURES
    ]


def _row(figure: Figure) -> Finding:
    target, D, dtype, scale, solver = figure.subject
    about: Finding = {PART: f"{solver}, {target}, {str(dtype).removeprefix('torch.')}{', scale' * scale}"}
    about |= {
        "solver": solver,
        "target": target,
        "dtype": str(dtype).removeprefix("torch."),
        "scale": int(scale),
    }
    about |= {"kernel": figure.kernel, "D": D, "triton": VERSION}
    return about | dict(zip(COLUMNS, figure[2:], strict=True)) | {"broken": "; ".join(limits.broken(figure))}


def summary(rows: list[Finding]) -> list[Finding]:
    """Return a table of what the limits are about, and one of the kernels in float32 on the first GPU."""
    found: list[Finding] = []
    parts: dict[str, list[Finding]] = {}
    for row in rows:
        parts.setdefault(str(row[PART]), []).append(row)
    for name, own in parts.items():
        most = {column: max(float(row[column]) for row in own) for column in COLUMNS}
        broken = sum(bool(row["broken"]) for row in own)
        found.append(
            {PART: LIMITS, "": name, **{k: _shown(v) for k, v in most.items()}, "broken limits": broken}
        )
    first = [row for row in rows if row[PART] == rows[0][PART]]
    cells: list[Finding] = [
        {PART: f"{row[PART]}: {WHAT}", "kernel": row["kernel"], "D": f"D = {row['D']}", "cell": _cell(row)}
        for row in first
    ]
    return found + spread(cells, "D", "cell")


def _cell(row: Finding) -> str:
    text = f"{row['registers']} / {row['spills']}"
    return f"{text} / {row['instructions']:.1f} / {row['special']:.2f}" if row["instructions"] else text


def _shown(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:.2f}"
