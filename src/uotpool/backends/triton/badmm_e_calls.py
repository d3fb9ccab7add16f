"""From tensors to launches for entropic Bregman ADMM; `launching` has what all solvers share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from uotpool.backends.triton import launching
from uotpool.backends.triton.arguments import Arguments, Saved
from uotpool.backends.triton.choice import Choice, power_of_two
from uotpool.backends.triton.kernels import badmm_e_chunks, badmm_e_reverse, badmm_e_sets

_NAMES = ("TOP", "HEAD", "SUMS", "STATES", "ROWS")


def _states(p: Arguments, saved: Saved | None) -> dict[str, Any]:
    """Return memory for the states of a call: all of them to save, or the last two."""
    if saved is not None:
        return {**dict(zip(_NAMES, saved, strict=True)), "SLOTS": p.K + 2}
    M, D, B = *p.X.shape, p.num_sets
    new = launching.new
    states = (new(p, B, D), None, new(p, 2, B, 2, D), new(p, 2, B, 3, D), new(p, 2, M, 5))
    return {**dict(zip(_NAMES, states, strict=True)), "SLOTS": 2}


def forward(p: Arguments, out: Tensor, saved: Saved | None, choice: Choice) -> None:
    """Write the output, and what is saved of it."""
    states = _states(p, saved)
    rows = launching.numbers(p) | launching.rows(p) | launching.tile(p, choice.forward)
    if choice.chunk:
        _forward_chunks(p, out, states, rows | {"CHUNK": choice.chunk}, choice)
        return
    badmm_e_sets.forward_set[(p.num_sets,)](OUT=out, PLAN=p.plan, **states, **rows, **launching.prior(p))


def _forward_chunks(
    p: Arguments, out: Tensor, states: dict[str, Any], rows: dict[str, Any], choice: Choice
) -> None:
    slots, D, K = launching.slots(p, choice.chunk), p.X.shape[1], p.K
    head = states.pop("HEAD")
    partial = {"PM": launching.new(p, slots, D), "PS": launching.new(p, slots, D)}
    last = {"PT": None if p.plan else launching.new(p, slots, D)}
    grid, merging = launching.merging(p, choice)
    merging |= launching.numbers(p) | {name: states[name] for name in ("TOP", "SUMS", "SLOTS")}
    for j in range(-1, K + 1):
        kind = 0 if j < K else 1 + p.plan
        badmm_e_chunks.forward_pass[(slots,)](
            j=max(j, 0), FIRST=j < 0, LAST=kind, **partial, **last, **states, **rows, **launching.prior(p)
        )
        if kind < 2:
            badmm_e_chunks.forward_merge[grid](
                j=j + 1, FIRST=j < 0, LAST=kind == 1, HEAD=head, OUT=out, **partial, **last, **merging
            )
    if p.plan:
        given = {name: states[name] for name in ("TOP", "STATES", "ROWS", "SLOTS")} | _without_prior(rows)
        badmm_e_chunks.plan_pass[(slots,)](HEAD=head, DOUT=None, OUT=out, PARTIAL=None, **partial, **given)


def _without_prior(rows: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in rows.items() if name != "LOGQ"}


class Backward:
    """The way back of a call: its memory, its launches, and what is left for torch to add up."""

    def __init__(self, dout: Tensor, p: Arguments, saved: Saved, wanted: list[bool], choice: Choice) -> None:
        self.p, self.choice, self.wanted = p, choice, wanted
        (M, D), B, K, new = p.X.shape, p.num_sets, p.K, launching.new
        self.programs = launching.slots(p, choice.chunk) if choice.chunk else B
        by_X, by_p, by_q, _, by_scale = wanted
        self.results = {
            "DX": torch.empty_like(p.X) if by_X else None,
            "DP": new(p, B, D) if by_p else None,
            "DQ": new(p, M) if by_q else None,
            "DS": new(p, self.programs, D) if by_scale else None,
        }
        self.adjoints = {
            "DOUT": dout,
            "ROW_ADJOINTS": new(p, 2, M, 4),
            "DL": new(p, K + 1, B, D),
            "DR": new(p, K + 1, M),
            "SLOPES": new(p, 1 if choice.chunk else B, 3, K + 1),
        }
        self.by_columns = {"COLUMN_ADJOINTS": new(p, 2, B, 5, D)}
        self.saved = dict(zip(_NAMES, saved, strict=True))
        self.rows = launching.numbers(p) | launching.rows(p) | launching.tile(p, choice.backward)

    def run(self) -> list[Tensor | None]:
        """Return the derivatives by each of `p.differentiable()`."""
        p = self.p
        of_rows, of_columns = self._by_chunks() if self.choice.chunk else self._by_sets()
        dX, dp, dq, ds = self.results.values()
        dweights = self._by_weights(of_rows, of_columns) if self.wanted[3] else None
        return [dX, launching.by_prior(dp, p), dq, dweights, launching.by_scale(ds, p)]

    def _by_weights(self, of_rows: Tensor, of_columns: Tensor) -> Tensor:
        weights, K = self.p.weights, self.p.K
        dweights = torch.empty_like(weights)
        rows, columns = (parts.sum(0, dtype=torch.float64) for parts in (of_rows, of_columns))
        badmm_e_reverse.by_weights[(1,)](rows, columns, weights, dweights, K, KP=power_of_two(K), num_warps=1)
        return dweights

    def _parts(self, rows: int, columns: int) -> tuple[Tensor, Tensor]:
        K = self.p.K
        return launching.new(self.p, rows, 6, K + 1), launching.new(self.p, columns, 4, K + 1)

    def _by_sets(self) -> tuple[Tensor, Tensor]:
        of_rows, of_columns = self._parts(self.programs, self.programs)
        given: dict[str, Any] = {"PLAN": self.p.plan, "ROW_PARTS": of_rows, "COLUMN_PARTS": of_columns}
        given["DU"] = launching.new(self.p, self.programs, self.p.X.shape[1])
        given |= (
            self.adjoints | self.by_columns | self.results | self.saved | self.rows | launching.prior(self.p)
        )
        badmm_e_sets.backward_set[(self.programs,)](**given)
        return of_rows, of_columns

    def _by_chunks(self) -> tuple[Tensor, Tensor]:
        p, K = self.p, self.p.K
        grid, merging = launching.merging(p, self.choice)
        of_rows, of_columns = self._parts(self.programs, grid[0] * grid[1])
        rows = self.rows | self.saved | {"CHUNK": self.choice.chunk}
        partial = None
        if p.plan:
            partial = launching.new(p, self.programs)
            given = {name: value for name, value in _without_prior(rows).items() if name != "SUMS"}
            given |= {"DOUT": self.adjoints["DOUT"], "OUT": None, "PARTIAL": partial, "PM": None, "PS": None}
            badmm_e_chunks.plan_pass[(self.programs,)](SLOTS=K + 2, **given)
        by_chunk = launching.new(p, self.programs, p.X.shape[1])
        merging |= launching.numbers(p) | launching.prior(p) | self.by_columns
        merging |= {name: rows[name] for name in ("TOP", "SUMS", "STATES", "FAST")}
        merging |= {"DL": self.adjoints["DL"], "DP": self.results["DP"], "PD": by_chunk, "PARTS": of_columns}
        merging |= {"WIDTHS": power_of_two(grid[1])}
        for j in range(K, -1, -1):
            way = 0 if j < K else 1 + p.plan
            given = {"WAY": way, "PARTIAL": partial, "PD": by_chunk, "PARTS": of_rows}
            badmm_e_chunks.backward_pass[(self.programs,)](j=j, **given, **self.adjoints, **rows)
            badmm_e_chunks.backward_merge[grid](j=j, **merging)
        results = {name: self.results[name] for name in ("DX", "DQ", "DS")}
        given = {"PLAN": p.plan, "PARTIAL": partial, "PARTS": of_rows} | results | self.by_columns
        given |= _without_prior(rows) | self.adjoints | launching.tile(p, self.choice.finish)
        badmm_e_chunks.backward_finish[(self.programs,)](**given)
        return of_rows, of_columns
