"""From tensors to launches for Sinkhorn; `launching` has what all solvers share."""

from __future__ import annotations

import torch
from torch import Tensor

from uotpool.backends.triton import launching
from uotpool.backends.triton.arguments import Arguments, Saved
from uotpool.backends.triton.choice import Choice, power_of_two
from uotpool.backends.triton.kernels import chunks, sets


def forward(p: Arguments, out: Tensor, saved: Saved | None, choice: Choice) -> None:
    """Write the output, and what is saved of it."""
    if choice.chunk:
        _forward_chunks(p, out, saved, choice)
    else:
        _forward_sets(p, out, saved, choice)


def _kept(saved: Saved | None) -> dict[str, Tensor | None]:
    """Return what is saved by the names that kernels have for it."""
    names = ("TOP", "HEAD", "MAXIMA", "SUMS", "ROWS")
    return dict.fromkeys(names) if saved is None else dict(zip(names, saved, strict=True))


def _forward_sets(p: Arguments, out: Tensor, saved: Saved | None, choice: Choice) -> None:
    kept = _kept(saved)
    if p.plan and saved is None:
        kept["ROWS"] = launching.new(p, p.K, p.X.shape[0])
    common = launching.numbers(p) | launching.rows(p) | launching.prior(p) | launching.tile(p, choice.forward)
    sets.forward_set[(p.num_sets,)](OUT=out, PLAN=p.plan, **kept, **common)


def _forward_chunks(p: Arguments, out: Tensor, saved: Saved | None, choice: Choice) -> None:
    slots, D, K = launching.slots(p, choice.chunk), p.X.shape[1], p.K
    kept = _kept(saved if saved is not None else Saved.empty(p))
    if saved is None:
        kept["HEAD"] = None
        if not p.plan:
            kept["ROWS"] = None
    head = kept.pop("HEAD")
    partial = {"PM": launching.new(p, slots, D), "PS": launching.new(p, slots, D)}
    last = {"PT": None if p.plan else launching.new(p, slots, D)}
    rows = (
        launching.numbers(p)
        | launching.rows(p)
        | launching.prior(p)
        | launching.tile(p, choice.forward)
        | {"CHUNK": choice.chunk}
    )
    grid, merging = launching.merging(p, choice)
    merging |= launching.numbers(p) | {name: kept[name] for name in ("TOP", "MAXIMA", "SUMS")}
    for k in range(-1, K):
        steps = {"FIRST": k < 0, "LAST": k == K - 1}
        chunks.forward_pass[(slots,)](k=max(k, 0), PLAN=p.plan, **steps, **partial, **last, **kept, **rows)
        if not (p.plan and k == K - 1):
            chunks.forward_merge[grid](k=k + 1, HEAD=head, OUT=out, **steps, **partial, **last, **merging)
    if p.plan:
        chunks.plan_pass[(slots,)](HEAD=head, DOUT=None, OUT=out, PARTIAL=None, **partial, **kept, **rows)


class Backward:
    """The way back of a call: its memory, its launches, and what is left for torch to add up."""

    def __init__(self, dout: Tensor, p: Arguments, saved: Saved, wanted: list[bool], choice: Choice) -> None:
        self.p, self.choice, self.wanted = p, choice, wanted
        (M, D), B, K = p.X.shape, p.num_sets, p.K
        self.programs = launching.slots(p, choice.chunk) if choice.chunk else B
        by_X, by_p, by_q, _, by_scale = wanted
        self.dX = torch.empty_like(p.X) if by_X else None
        self.dp = launching.new(p, B, D) if by_p else None
        self.dq = launching.new(p, M) if by_q else None
        self.ds = launching.new(p, self.programs, D) if by_scale else None
        self.du = launching.new(p, K, B, D)
        self.adjoints: dict[str, Tensor | None] = {
            "DOUT": dout,
            "U": launching.new(p, K, B, D),
            "DL": launching.new(p, K, B, D),
            "FACTORS": launching.new(p, K, M),
        }
        self.adjoints["MASSES"] = launching.new(p, M) if p.plan else None
        self.results = {"DU": self.du, "DX": self.dX, "DP": self.dp, "DS": self.ds}
        self.rows = launching.numbers(p) | launching.rows(p) | _kept(saved) | launching.tile(p, choice.backward)

    def run(self) -> list[Tensor | None]:
        parts = self._by_chunks() if self.choice.chunk else self._by_sets()
        p = self.p
        dweights = None
        if self.wanted[3]:
            summed = parts.sum(0)
            dweights = torch.cat((summed[:1] + summed[1:2], summed[2:]))
        dp, ds = launching.by_prior(self.dp, p), launching.by_scale(self.ds, p)
        return [self.dX, dp, self.dq, dweights, ds]

    def _by_sets(self) -> Tensor:
        parts = launching.new(self.p, self.programs, 4, self.p.K)
        common = self.rows | self.adjoints | self.results | launching.prior(self.p)
        sets.backward_set[(self.programs,)](PLAN=self.p.plan, DQ=self.dq, PARTS=parts, **common)
        return parts

    def _by_chunks(self) -> Tensor:
        p, K = self.p, self.p.K
        grid, merging = launching.merging(p, self.choice)
        parts = launching.new(p, self.programs + grid[0] * grid[1], 4, K)
        of_rows, of_merges = parts[: self.programs], parts[self.programs :]
        rows = self.rows | {"CHUNK": self.choice.chunk}
        partial = None
        if p.plan:
            partial = launching.new(p, self.programs)
            given = {"DOUT": self.adjoints["DOUT"], "OUT": None, "PARTIAL": partial, "PM": None, "PS": None}
            chunks.plan_pass[(self.programs,)](**given, **rows, **launching.prior(p))
        by_chunk = launching.new(p, self.programs, p.X.shape[1])
        merging |= (
            launching.numbers(p)
            | launching.prior(p)
            | {name: rows[name] for name in ("TOP", "MAXIMA", "SUMS", "FAST")}
        )
        merging |= {"WIDTHS": power_of_two(grid[1]), "PD": by_chunk, "PARTS": of_merges}
        merging |= {"DU": self.du, "DL": self.adjoints["DL"]}
        given = {"PARTIAL": partial, "PD": by_chunk, "DQ": self.dq, "PARTS": of_rows}
        for k in range(K, 0, -1):
            way = 0 if k < K else 1 + p.plan
            chunks.backward_pass[(self.programs,)](
                k=k, WAY=way, **given, **self.adjoints, **rows, **launching.prior(p)
            )
            chunks.backward_merge[grid](k=k - 1, **merging)
        common = rows | self.adjoints | self.results | launching.tile(p, self.choice.finish)
        chunks.backward_finish[(self.programs,)](PLAN=p.plan, PARTIAL=partial, PARTS=of_rows, **common)
        return parts
