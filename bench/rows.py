"""What a measurement hands in: comparisons of times or sizes, or findings of any kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

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
class Comparison:
    """A candidate and a baseline: microseconds per call and MiB of memory, None where it does not apply."""

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
    """Return the columns `target` and `met`."""
    if target is None:
        return "", ""
    return str(target), "ok" if target.met(value) else "miss"


def compare(
    ratio: float,
    ratio_of: str,
    case: Case,
    candidate: str,
    baseline: str,
    ours: float,
    theirs: float,
    target: Target | None = None,
    note: str = "",
) -> Comparison:
    """Make a ratio of seconds; the target is on the time itself if its unit says so."""
    us = (ours * 1e6, theirs * 1e6)
    verdict = judge(target, us[0] if target is not None and target.unit == MICROSECONDS else ratio)
    return Comparison(*case, candidate, baseline, *us, ratio, ratio_of, *verdict, note)


def speedup(
    case: Case, candidate: str, baseline: str, ours: float, theirs: float, *more: Any, **named: Any
) -> Comparison:
    """Say how many times as fast as the baseline the candidate is, from seconds. More: target, note."""
    return compare(theirs / ours, SPEEDUP, case, candidate, baseline, ours, theirs, *more, **named)


def cost(
    case: Case, candidate: str, baseline: str, ours: float, theirs: float, *more: Any, **named: Any
) -> Comparison:
    """Say how many times as long the candidate takes, from seconds. More: target, note."""
    return compare(ours / theirs, COST, case, candidate, baseline, ours, theirs, *more, **named)


def memory(
    case: Case, candidate: str, baseline: str, ours: float, theirs: float, *more: Any, **named: Any
) -> Comparison:
    """Say how many times as much memory the candidate takes, from bytes. More: target, note."""
    row = cost(case, candidate, baseline, ours, theirs, *more, **named)
    row = replace(row, candidate_us=None, baseline_us=None)
    return replace(row, candidate_mib=ours / 2**20, baseline_mib=theirs / 2**20)


# What a study found, by the name of its column. The columns are the study's own, but for `PART`, which says
# which of its tables the line belongs to.
Finding = dict[str, str | int | float]
PART = "part"


def spread(findings: Iterable[Finding], over: str, *values: str) -> list[Finding]:
    """Return one line for all findings that differ in `over` alone, with one column per value of that."""
    lines: dict[tuple[object, ...], Finding] = {}
    several = len(values) > 1
    for one in findings:
        about = {name: cell for name, cell in one.items() if name != over and name not in values}
        line = lines.setdefault(tuple(about.items()), about)
        head = f"{over}={one[over]}" if over == "K" else str(one[over])
        line |= {f"{head} {name}" if several else head: one[name] for name in values}
    return list(lines.values())
