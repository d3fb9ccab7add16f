"""What all tasks share: seeds that do not depend on the pooling, and the progress of a part."""

from __future__ import annotations

import hashlib

from uotpool_experiments.tasks.spec import Report, RunSpec


def seed_for(spec: RunSpec, what: str) -> int:
    """A seed for one use, the same for every pooling: all have one start and one order of data."""
    text = f"{spec.task} {spec.dataset} {spec.fold} {spec.seed} {what}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")


def part(report: Report, i: int, n: int) -> Report:
    """Tell of the progress of the i-th of n parts as progress of the whole."""
    return lambda done, total: report(i * total + done, n * total)
