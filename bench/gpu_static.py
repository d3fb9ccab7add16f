"""The GPU kernels as compiled, without a GPU: registers, spills, instructions. Prints tables of docs/gpu.md.

Compiled kernels are kept in a folder of temporary files, from which a run that was stopped goes on.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import torch

from bench.offline import figures, limits
from bench.offline.driver import VERSION, unusable
from bench.offline.figures import Figure, Subject
from bench.rows import PART, Finding, spread
from bench.session import Session
from uotpool.backends.triton.choice import MOST_WINDOW, window_entries

LIMITS = "most of all kernels and features"
WHAT = "registers / spills / instructions / special ones for each entry"
CACHE = Path(tempfile.gettempdir()) / "uotpool-kernels"
COLUMNS = ("registers", "spills", "shared", "conversions", "instructions", "special")


def measure(session: Session) -> list[Finding]:
    if reason := unusable():
        raise SystemExit(f"bench: {reason}")
    chosen = [Subject("sm_80", 64)] if session.quick else subjects()
    # The compiler has one thread for each kernel. A process that has started threads must not be forked.
    workers = min(os.cpu_count() or 1, len(chosen))
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        found = session.track(pool.map(partial(figures.measure, cache=str(CACHE)), chosen), "gpu-static")
        return [_row(figure) for subject in found for figure in subject]


def subjects() -> list[Subject]:
    """Return all that the limits are for."""
    sets = [
        Subject(target, D, dtype, scale, solver)
        for solver, kinds in limits.KINDS.items()
        for scale, dtype in kinds
        for target in limits.TARGETS
        for D in limits.FEATURES
    ]
    images = [(window, dtype) for window in limits.SIDE_BY_SIDE for dtype in limits.DTYPES]
    images += [(window, torch.float32) for window in limits.OVERLAPPING]
    windows = [
        Subject(target, C, dtype, True, window=window)
        for window, dtype in images
        for target in limits.TARGETS
        for C in limits.CHANNELS
        if window_entries(C, window.side**2) <= MOST_WINDOW
    ]
    return sets + windows


def _row(figure: Figure) -> Finding:
    target, D, dtype, scale, solver, window = figure.subject
    what = solver if window is None else str(window)
    about: Finding = {PART: f"{what}, {target}, {str(dtype).removeprefix('torch.')}{', scale' * scale}"}
    about |= {
        "solver": what,
        "target": target,
        "dtype": str(dtype).removeprefix("torch."),
        "scale": int(scale),
    }
    about |= {"kernel": figure.kernel, "D": D, "triton": VERSION}
    return about | dict(zip(COLUMNS, figure[2:], strict=True)) | {"broken": "; ".join(limits.broken(figure))}


def summary(rows: list[Finding]) -> list[Finding]:
    """Return a table of what the limits are about, and one of the kernels of each solver in float32."""
    found: list[Finding] = []
    parts = _groups(rows, PART)
    for name, own in parts.items():
        most = {column: max(float(row[column]) for row in own) for column in COLUMNS}
        broken = sum(bool(row["broken"]) for row in own)
        found.append(
            {PART: LIMITS, "": name, **{k: _shown(v) for k, v in most.items()}, "broken limits": broken}
        )
    shown = [own[0] for own in _groups(rows, "solver").values()]  # of each the first GPU, dtype and scale
    for part in [row[PART] for row in shown]:
        cells: list[Finding] = [
            {PART: f"{part}: {WHAT}", "kernel": row["kernel"], "D": f"D = {row['D']}", "cell": _cell(row)}
            for row in parts[str(part)]
        ]
        found += spread(cells, "D", "cell")
    return found


def _groups(rows: list[Finding], key: str) -> dict[str, list[Finding]]:
    """Return the rows by a cell of theirs, in the order in which these come."""
    found: dict[str, list[Finding]] = {}
    for row in rows:
        found.setdefault(str(row[key]), []).append(row)
    return found


def _cell(row: Finding) -> str:
    text = f"{row['registers']} / {row['spills']}"
    return f"{text} / {row['instructions']:.1f} / {row['special']:.2f}" if row["instructions"] else text


def _shown(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:.2f}"
