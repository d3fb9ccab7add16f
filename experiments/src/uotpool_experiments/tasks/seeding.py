"""Seeds that do not depend on the pooling, and progress reports for a part of a run, for all tasks."""

from __future__ import annotations

import hashlib

from uotpool_experiments.tasks.spec import Report, RunSpec


def seed_for(spec: RunSpec, what: str) -> int:
    """Return the seed for one use.

    It is the same for all poolings, so all start alike and see one order of data.
    """
    text = f"{spec.task} {spec.dataset} {spec.fold} {spec.seed} {what}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")


def part(report: Report, i: int, n: int) -> Report:
    """Return a function that reports progress of the i-th of n parts as progress of the whole."""
    return lambda done, total: report(i * total + done, n * total)
