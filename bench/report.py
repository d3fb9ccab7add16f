"""What a benchmark hands in, the tables it becomes, and the machine it was measured on."""

from __future__ import annotations

import csv
import platform
import re
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table

import uotpool
from uotpool.backends.cpu import library

ROOT = Path(__file__).resolve().parent.parent


MICROSECONDS = " us"
NOTE_END = " | "  # between the notes of a row


class Target(NamedTuple):
    """A bound on the ratio, or on the candidate's microseconds if the unit says so."""

    sign: str
    bound: float
    unit: str = ""

    def met(self, value: float) -> bool:
        return value >= self.bound if self.sign == ">=" else value <= self.bound

    def __str__(self) -> str:
        return f"{self.sign} {self.bound:g}{self.unit}"


def at_least(bound: float) -> Target:
    return Target(">=", bound)


def at_most(bound: float) -> Target:
    return Target("<=", bound)


class Case(NamedTuple):
    """What a row is about."""

    benchmark: str
    size: str
    solver: str
    mode: str
    threads: int


@dataclass(frozen=True)
class Row:
    """One line of the CSV. Times in microseconds a call, memory in MiB; None where it does not apply."""

    benchmark: str
    size: str
    solver: str
    mode: str
    threads: int
    candidate: str
    baseline: str
    candidate_us: float | None
    baseline_us: float | None
    ratio: float
    ratio_of: str
    target: str
    met: str
    note: str = ""
    candidate_mib: float | None = None
    baseline_mib: float | None = None


SPEEDUP, COST = "baseline / candidate", "candidate / baseline"
PER_ELEMENT, SLOPE = "candidate / baseline, an element", "log-log slope"
HEADINGS = {
    SPEEDUP: "as fast as",
    COST: "relative to",
    PER_ELEMENT: "an element, relative to",
    SLOPE: "exponent",
}


def judge(target: Target | None, value: float) -> tuple[str, str]:
    """The columns `target` and `met`."""
    if target is None:
        return "", ""
    return str(target), "ok" if target.met(value) else "miss"


def _row(
    ratio: float,
    ratio_of: str,
    case: Case,
    candidate: str,
    baseline: str,
    ours: float,
    theirs: float,
    target: Target | None = None,
    note: str = "",
) -> Row:
    us = (ours * 1e6, theirs * 1e6)
    return Row(*case, candidate, baseline, *us, ratio, ratio_of, *judge(target, ratio), note)


def speedup(
    case: Case, candidate: str, baseline: str, ours: float, theirs: float, *more: Any, **named: Any
) -> Row:
    """How many times as fast as the baseline the candidate is; from seconds. More: target, note."""
    return _row(theirs / ours, SPEEDUP, case, candidate, baseline, ours, theirs, *more, **named)


def cost(
    case: Case, candidate: str, baseline: str, ours: float, theirs: float, *more: Any, **named: Any
) -> Row:
    """How many times as long the candidate takes; from seconds. More: target, note."""
    return _row(ours / theirs, COST, case, candidate, baseline, ours, theirs, *more, **named)


# ---------------------------------------------------------------------------------------------------------
# the machine


def machine_facts(repeats: int) -> dict[str, str]:
    """The columns that say where and with what the rows were measured."""
    return {
        "machine": _cpu_model(),
        "isa": _isa(),
        "implementation": uotpool.resolve_impl(torch.empty(1, 1, 1), "sinkhorn"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_geometric": metadata.version("torch_geometric"),
        "pot": metadata.version("POT"),
        "uotpool": uotpool.__version__,
        "commit": _commit(),
        "repeats": str(repeats),
    }


def _cpu_model() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def _isa() -> str:
    """The instruction set of the kernels, else that of torch's own."""
    if library.missing():
        return f"torch: {torch.backends.cpu.get_cpu_capability().lower()}"
    return library.isa()


def _commit() -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        # The documentation does not count: a benchmark writes its picture there before its table.
        changed = git("status", "--porcelain", "--", ".", ":!docs")
        return git("rev-parse", "--short", "HEAD") + ("+dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


# ---------------------------------------------------------------------------------------------------------
# CSV and tables


def write_csv(path: Path, rows: Sequence[Row], facts: dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*(field.name for field in fields(Row)), *facts])
        writer.writeheader()
        for row in rows:
            values = {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in asdict(row).items()}
            writer.writerow(values | facts)


def print_tables(console: Console, rows: Sequence[Row]) -> None:
    """A line for each candidate with its ratios to all baselines; a table for lines with the same baselines."""
    lines: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        lines.setdefault((row.size, row.solver, row.mode, row.threads, row.candidate), []).append(row)
    tables: dict[tuple[tuple[str, str], ...], list[list[Row]]] = {}
    for line in lines.values():
        tables.setdefault(tuple((row.baseline, row.ratio_of) for row in line), []).append(line)
    for head, group in tables.items():
        console.print(_table(head, group))
        notes = [note for line in group for row in line for note in row.note.split(NOTE_END)]
        for note in filter(None, dict.fromkeys(notes)):
            console.print(f"  {note}", style="dim", highlight=False)


def _table(head: Sequence[tuple[str, str]], group: Sequence[Sequence[Row]]) -> Table:
    table = Table(title=group[0][0].benchmark, title_justify="left")
    for name in ("size", "solver", "mode", "threads", "candidate"):
        table.add_column(name, overflow="fold")
    table.add_column("itself", justify="right", no_wrap=True)
    for baseline, ratio_of in head:
        table.add_column(f"[dim]{HEADINGS[ratio_of]}[/]\n{baseline}", justify="right", overflow="fold")
    previous = group[0][0]
    for line in group:
        row = line[0]
        if (row.size, row.threads) != (previous.size, previous.threads):
            table.add_section()
        previous = row
        about = (row.size, row.solver, row.mode, str(row.threads), row.candidate)
        itself = _absolute(row.candidate_us, row.candidate_mib)
        if row.target.endswith(MICROSECONDS):  # then the target is on the time itself
            itself += _verdict(row)
        table.add_row(*about, itself, *map(_cell, line))
    return table


def _cell(row: Row) -> str:
    text = f"{row.ratio:.3g}" if row.ratio < 1e4 else f"{row.ratio:.0f}"
    text += "" if row.ratio_of == SLOPE else "x"
    return text if row.target.endswith(MICROSECONDS) else text + _verdict(row)


def _absolute(us: float | None, mib: float | None) -> str:
    if mib is not None:
        return f"{mib:.1f} MiB"
    if us is None:
        return ""
    return f"{us:.1f} us" if us < 1e3 else f"{us / 1e3:.2f} ms" if us < 1e6 else f"{us / 1e6:.2f} s"


def _verdict(row: Row) -> str:
    return f" ({row.target}) [{'green' if row.met == 'ok' else 'bold red'}]{row.met}[/]" if row.target else ""


def print_summary(console: Console, rows: Sequence[Row]) -> None:
    """Of each benchmark, how many targets are met, and the misses."""
    table = Table(title="targets", title_justify="left")
    for name in ("benchmark", "ok", "miss"):
        table.add_column(name, justify="left" if name == "benchmark" else "right")
    for name in dict.fromkeys(row.benchmark for row in rows):
        met = [row.met for row in rows if row.benchmark == name]
        table.add_row(name, str(met.count("ok")), str(met.count("miss")))
    console.print(table)
    for row in rows:
        if row.met == "miss":
            about = f"{row.benchmark} {row.size} {row.solver} {row.mode} {row.threads} threads: {row.candidate}"
            found = f"{row.candidate_us:.1f} us" if row.target.endswith(MICROSECONDS) else f"{row.ratio:.3g}"
            console.print(f"miss: {about} against {row.baseline} {found}, target {row.target}", highlight=False)
