"""The cost of training with each pooling against the mean, and how much of it is pooling: for any task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from uotpool_experiments.tasks.spec import RunSpec

from bench.rows import Case, Comparison, cost
from bench.session import Session
from bench.timing import Call

BASELINE = "mean"


class Parts(NamedTuple):
    """A stretch of training, and the calls of the pooling in it alone."""

    whole: Call
    pooling: Call


def spec(task: str, dataset: str, pooling: str) -> RunSpec:
    """Return the run whose model is timed."""
    return RunSpec.make(task=task, dataset=dataset, pooling=pooling, protocol="paper", fold=0, seed=0)


def compared(
    session: Session, task: str, size: str, stretch: str, parts: Mapping[str, Parts], note: str
) -> list[Comparison]:
    """Return two rows per pooling: its training against that with the mean, and its share in its training.

    Args:
        session: the options of the run.
        task: the name of the measurement.
        size: what is trained on.
        stretch: what `Parts.whole` is: "epoch", "steps".
        parts: the calls of each pooling.
        note: what stands below the table.
    """
    whole = session.measure({name: part.whole for name, part in parts.items()}, 1)
    alone = session.measure({name: part.pooling for name, part in parts.items()}, 1)
    rows = []
    for name in parts:
        case = Case(task, size, name, stretch, 1)
        rows.append(cost(case, name, BASELINE, whole[name], whole[BASELINE], None, note))
        case = Case(task, size, name, f"pooling in {stretch}", 1)
        rows.append(cost(case, name, f"its {stretch}", alone[name], whole[name], None, note))
    return rows


def pooling_calls(pool: nn.Module, batches: Sequence[tuple[Tensor, Tensor]], forward: int, both: int) -> Call:
    """Return a call that pools batches (X, ptr), each so often without a gradient and so often with one."""
    wanted = list(pool.parameters())
    leaves = [(X.requires_grad_(), ptr) for X, ptr in batches]

    def call() -> object:
        for X, ptr in leaves:
            with torch.no_grad():
                for _ in range(forward):
                    pool(X, ptr=ptr)
            for _ in range(both):
                y = pool(X, ptr=ptr)
                torch.autograd.grad(y, [X, *wanted], torch.ones_like(y), allow_unused=True)
        return None

    return call
