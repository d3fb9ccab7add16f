"""From tensors to launches for quadratic Bregman ADMM; `launching` has what all solvers share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from uotpool.backends.triton import launching
from uotpool.backends.triton.arguments import Arguments, Saved
from uotpool.backends.triton.choice import Choice
from uotpool.backends.triton.kernels import badmm_q, badmm_q_reverse, badmm_q_sets

_NAMES = ("HEAD", "COLUMNS", "ROWS", "NUMBERS")


def _kept(saved: Saved) -> dict[str, Any]:
    """Return what is saved by the names that kernels have for it."""
    *vectors, matrices = saved
    return {**dict(zip(_NAMES, vectors, strict=True)), "YP": matrices[0], "YS": matrices[1]}


def _states(p: Arguments, saved: Saved | None) -> dict[str, Any]:
    """Return memory for the states of a call: all of them to save, or the last that are needed."""
    if saved is not None:
        return _kept(saved) | {"SLOTS": p.K + 2, "YP_SLOTS": p.K + 1, "YS_SLOTS": p.K + 1}
    M, D = p.X.shape
    given: dict[str, Any] = dict.fromkeys(_NAMES)
    given["ROWS"] = launching.new(p, 2, M, badmm_q.ROW.value)
    matrices = launching.new(p, 3, M, D)
    return given | {"YP": matrices[:2], "YS": matrices[2:], "SLOTS": 2, "YP_SLOTS": 2, "YS_SLOTS": 1}


def _common(p: Arguments, choice: Choice) -> dict[str, Any]:
    tile = launching.tile(p, choice.backward)
    return launching.numbers(p) | launching.rows(p) | launching.prior(p) | tile | {"PLAN": p.plan}


def forward(p: Arguments, out: Tensor, saved: Saved | None, choice: Choice) -> None:
    """Write the output, and what is saved of it. Every set has a program, whatever the choice says."""
    badmm_q_sets.forward_set[(p.num_sets,)](OUT=out, **_states(p, saved), **_common(p, choice))


class Backward:
    """The way back of a call: its memory, its launch, and what is left for torch to add up."""

    def __init__(self, dout: Tensor, p: Arguments, saved: Saved, wanted: list[bool], choice: Choice) -> None:
        self.p, self.wanted = p, wanted
        (M, D), B = p.X.shape, p.num_sets
        by_X, by_p, by_q, _, by_scale = wanted
        self.parts = launching.new(p, B, 4, p.K)
        self.results = {
            "DX": torch.empty_like(p.X) if by_X else None,
            "DP": launching.new(p, B, D) if by_p else None,
            "DQ": launching.new(p, M) if by_q else None,
            "DS": launching.new(p, B, D) if by_scale else None,
        }
        matrices = dict(zip(("GS", "GP", "G"), launching.new(p, 3, M, D), strict=True))
        adjoints = launching.new(p, M, badmm_q_reverse.ADJOINT.value)
        self.given = {"DOUT": dout, "ADJOINTS": adjoints} | matrices | _kept(saved) | _common(p, choice)

    def run(self) -> list[Tensor | None]:
        """Return the derivatives by each of `p.differentiable()`."""
        p = self.p
        badmm_q_sets.backward_set[(p.num_sets,)](PARTS=self.parts, **self.results, **self.given)
        dX, dp, dq, ds = self.results.values()
        dweights = self.parts.sum(0) if self.wanted[3] else None
        return [dX, launching.by_prior(dp, p), dq, dweights, launching.by_scale(ds, p)]
