"""From tensors to launches: the K modules of a batch of sets, forward and backward, on whatever device X is.

On a GPU the kernels run. Under TRITON_INTERPRET=1, set before the first import of triton, they are
interpreted on CPU tensors: slow, and for tests. No value is read on the host, and shapes decide all that is
launched.
"""

from __future__ import annotations

import contextlib
from functools import cache
from typing import Any, NamedTuple, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from uotpool.backends.triton.arguments import Arguments, Saved
from uotpool.backends.triton.choice import LANES, Choice, Tile, choose, power_of_two
from uotpool.backends.triton.kernels import chunks, sets

MERGED_CHUNKS = 16  # at once
MERGED_COLUMNS = 32  # of a program


class Target(NamedTuple):
    """What a launch has to know of a GPU: processors, lanes of a warp, and whether NVIDIA made it."""

    processors: int
    lanes: int
    nvidia: bool


def target(device: torch.device) -> Target:
    """Return the processor that a launch for a tensor on this device goes to."""
    if interpreted():
        return Target(108, LANES, False)
    if device.type == "cuda":
        return _gpu(device.index if device.index is not None else torch.cuda.current_device())
    from triton.runtime.driver import driver  # noqa: PLC0415 # a stand-in, which launches for CPU tensors

    found = driver.active.get_current_target()
    processors = driver.active.utils.get_device_properties(0)["multiprocessor_count"]
    return Target(processors, found.warp_size, found.backend == "cuda")


@cache
def _gpu(index: int) -> Target:
    properties = torch.cuda.get_device_properties(index)
    return Target(properties.multi_processor_count, properties.warp_size, torch.version.hip is None)


def interpreted() -> bool:
    """Say whether the kernels are interpreted on the CPU: the JIT decided it when they were defined."""
    return not isinstance(sets.forward_set, triton.JITFunction)


def chosen(p: Arguments) -> Choice:
    """Return the choice of a call."""
    M, D = p.X.shape
    modules = p.K if p.solver == "sinkhorn" else p.K + 1  # with the closing update
    return choose(M, p.num_sets, D, modules, p.X.element_size(), target(p.X.device).processors)


def forward(p: Arguments, *, save: bool = True, choice: Choice | None = None) -> tuple[Tensor, Saved | None]:
    """Return the pooled output (B, D), or the plan (M, D), and with `save` what its derivatives need.

    Args:
        p: what to solve.
        save: whether derivatives may be asked for.
        choice: the regime and the tiles, in place of those that the shapes choose.
    """
    out = torch.empty(p.output_shape(), dtype=p.X.dtype, device=p.X.device)
    if p.X.shape[0] == 0 or p.num_sets == 0:
        empty = Saved.empty(p) if save else None
        return out.zero_(), empty
    choice = chosen(p) if choice is None else choice
    saved = Saved.empty(p) if save else None
    with _on(p.X.device):
        if p.solver == "badmm-e":
            badmm_calls().forward(p, out, saved, choice)
        elif choice.chunk:
            _forward_chunks(p, out, saved, choice)
        else:
            _forward_sets(p, out, saved, choice)
    return out, saved


def backward(
    dout: Tensor, p: Arguments, saved: Saved, wanted: list[bool], *, choice: Choice | None = None
) -> list[Tensor | None]:
    """Return the derivatives by each of `p.differentiable()`; None for one that is not wanted.

    Args:
        dout: derivative by the output, contiguous.
        p: what was solved.
        saved: what `forward` saved.
        wanted: which derivatives to return.
        choice: that of `forward`.
    """
    wanted = [w and t is not None for t, w in zip(p.differentiable(), wanted, strict=True)]
    if p.X.shape[0] == 0 or p.num_sets == 0:
        return [torch.zeros_like(t) if w else None for t, w in zip(p.differentiable(), wanted, strict=True)]  # type: ignore[arg-type]
    choice = chosen(p) if choice is None else choice
    with _on(p.X.device):
        if p.solver == "badmm-e":
            return cast(list[Tensor | None], badmm_calls().Backward(dout, p, saved, wanted, choice).run())
        return _Backward(dout, p, saved, wanted, choice).run()


def badmm_calls() -> Any:
    """Return the module `badmm_calls`, which imports this one."""
    from uotpool.backends.triton import badmm_calls  # noqa: PLC0415

    return badmm_calls


def _on(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Launch on this device, whatever the current one is."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def _numbers(p: Arguments) -> dict[str, Any]:
    """Return the arguments that all kernels have."""
    double = p.dtype == torch.float64
    return {
        "PTR": p.ptr,
        "WEIGHTS": p.weights,
        "SCALE": p.scale,
        "K": p.K,
        "M": p.X.shape[0],
        "N": p.N,
        "B": p.num_sets,
        "STEP": int(p.scale is not None and p.scale.shape[0] > 1),
        "D": p.X.shape[1],
        "CT": tl.float64 if double else tl.float32,
        "LOW": -4e307 if double else -8e37,
    }


def _rows(p: Arguments) -> dict[str, Any]:
    """Return the arguments of kernels that read rows."""
    present = None if p.present is None else p.present.view(torch.uint8)
    return {"X": p.X, "ORDER": p.order, "PRESENT": present, "LOGQ": p.log_q0, "FAST": _fast(p)}


def _prior(p: Arguments) -> dict[str, Any]:
    step = 0 if p.log_p0 is None or p.log_p0.dim() == 1 else p.X.shape[1]
    return {"LOGP": p.log_p0, "p_step": step}


def _fast(p: Arguments) -> bool:
    return p.dtype == torch.float32 and target(p.X.device).nvidia


def _tile(p: Arguments, tile: Tile) -> dict[str, int]:
    warps = max(1, tile.warps * LANES // target(p.X.device).lanes)
    return {"R": tile.R, "C": tile.C, "W": tile.W, "BL": tile.BL, "num_warps": warps}


def _kept(saved: Saved | None) -> dict[str, Tensor | None]:
    """Return what is saved by the names that kernels have for it."""
    names = ("TOP", "HEAD", "MAXIMA", "SUMS", "ROWS")
    return dict.fromkeys(names) if saved is None else dict(zip(names, saved, strict=True))


def _new(p: Arguments, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=p.dtype, device=p.X.device)


def _forward_sets(p: Arguments, out: Tensor, saved: Saved | None, choice: Choice) -> None:
    kept = _kept(saved)
    if p.plan and saved is None:
        kept["ROWS"] = _new(p, p.K, p.X.shape[0])
    common = _numbers(p) | _rows(p) | _prior(p) | _tile(p, choice.forward)
    sets.forward_set[(p.num_sets,)](OUT=out, PLAN=p.plan, **kept, **common)


def _slots(p: Arguments, chunk: int) -> int:
    """Return the number of slots for chunks; see `kernels.chunks`."""
    if p.ptr is None:
        return p.num_sets * max(-(-p.N // chunk), 1)
    return p.X.shape[0] // chunk + p.num_sets


def _merging(p: Arguments, choice: Choice) -> tuple[tuple[int, int], dict[str, Any]]:
    """Return the grid of a merge and the arguments that only merges have."""
    width = min(power_of_two(p.X.shape[1]), MERGED_COLUMNS)
    widths = -(-p.X.shape[1] // width)
    return (p.num_sets, widths), {
        "CHUNKS": MERGED_CHUNKS,
        "WIDTH": width,
        "CHUNK": choice.chunk,
        "num_warps": 4,
    }


def _forward_chunks(p: Arguments, out: Tensor, saved: Saved | None, choice: Choice) -> None:
    slots, D, K = _slots(p, choice.chunk), p.X.shape[1], p.K
    kept = _kept(saved if saved is not None else Saved.empty(p))
    if saved is None:
        kept["HEAD"] = None
        if not p.plan:
            kept["ROWS"] = None
    head = kept.pop("HEAD")
    partial = {"PM": _new(p, slots, D), "PS": _new(p, slots, D)}
    last = {"PT": None if p.plan else _new(p, slots, D)}
    rows = _numbers(p) | _rows(p) | _prior(p) | _tile(p, choice.forward) | {"CHUNK": choice.chunk}
    grid, merging = _merging(p, choice)
    merging |= _numbers(p) | {name: kept[name] for name in ("TOP", "MAXIMA", "SUMS")}
    for k in range(-1, K):
        steps = {"FIRST": k < 0, "LAST": k == K - 1}
        chunks.forward_pass[(slots,)](k=max(k, 0), PLAN=p.plan, **steps, **partial, **last, **kept, **rows)
        if not (p.plan and k == K - 1):
            chunks.forward_merge[grid](k=k + 1, HEAD=head, OUT=out, **steps, **partial, **last, **merging)
    if p.plan:
        chunks.plan_pass[(slots,)](HEAD=head, DOUT=None, OUT=out, PARTIAL=None, **partial, **kept, **rows)


class _Backward:
    """The way back of a call: its memory, its launches, and what is left for torch to add up."""

    def __init__(self, dout: Tensor, p: Arguments, saved: Saved, wanted: list[bool], choice: Choice) -> None:
        self.p, self.choice, self.wanted = p, choice, wanted
        (M, D), B, K = p.X.shape, p.num_sets, p.K
        self.programs = _slots(p, choice.chunk) if choice.chunk else B
        by_X, by_p, by_q, _, by_scale = wanted
        self.dX = torch.empty_like(p.X) if by_X else None
        self.dp = _new(p, B, D) if by_p else None
        self.dq = _new(p, M) if by_q else None
        self.ds = _new(p, self.programs, D) if by_scale else None
        self.du = _new(p, K, B, D)
        self.adjoints: dict[str, Tensor | None] = {
            "DOUT": dout,
            "U": _new(p, K, B, D),
            "DL": _new(p, K, B, D),
            "FACTORS": _new(p, K, M),
        }
        self.adjoints["MASSES"] = _new(p, M) if p.plan else None
        self.results = {"DU": self.du, "DX": self.dX, "DP": self.dp, "DS": self.ds}
        self.rows = _numbers(p) | _rows(p) | _kept(saved) | _tile(p, choice.backward)

    def run(self) -> list[Tensor | None]:
        parts = self._by_chunks() if self.choice.chunk else self._by_sets()
        p = self.p
        _, by_p, _, by_weights, by_scale = self.wanted
        dp, dweights, ds = self.dp, None, None
        if by_p and p.log_p0 is not None and p.log_p0.dim() == 1:
            assert dp is not None
            dp = dp.sum(0)
        if by_weights:
            summed = parts.sum(0)
            dweights = torch.cat((summed[:1] + summed[1:2], summed[2:]))
        if by_scale:
            assert self.ds is not None
            assert p.scale is not None
            ds = self.ds.sum(0) if p.scale.shape[0] == p.X.shape[1] else self.ds.sum().reshape(1)
        return [self.dX, dp, self.dq, dweights, ds]

    def _by_sets(self) -> Tensor:
        parts = _new(self.p, self.programs, 4, self.p.K)
        common = self.rows | self.adjoints | self.results | _prior(self.p)
        sets.backward_set[(self.programs,)](PLAN=self.p.plan, DQ=self.dq, PARTS=parts, **common)
        return parts

    def _by_chunks(self) -> Tensor:
        p, K = self.p, self.p.K
        grid, merging = _merging(p, self.choice)
        parts = _new(p, self.programs + grid[0] * grid[1], 4, K)
        of_rows, of_merges = parts[: self.programs], parts[self.programs :]
        rows = self.rows | {"CHUNK": self.choice.chunk}
        partial = None
        if p.plan:
            partial = _new(p, self.programs)
            given = {"DOUT": self.adjoints["DOUT"], "OUT": None, "PARTIAL": partial, "PM": None, "PS": None}
            chunks.plan_pass[(self.programs,)](**given, **rows, **_prior(p))
        by_chunk = _new(p, self.programs, p.X.shape[1])
        merging |= _numbers(p) | _prior(p) | {name: rows[name] for name in ("TOP", "MAXIMA", "SUMS", "FAST")}
        merging |= {"WIDTHS": power_of_two(grid[1]), "PD": by_chunk, "PARTS": of_merges}
        merging |= {"DU": self.du, "DL": self.adjoints["DL"]}
        given = {"PARTIAL": partial, "PD": by_chunk, "DQ": self.dq, "PARTS": of_rows}
        for k in range(K, 0, -1):
            way = 0 if k < K else 1 + p.plan
            chunks.backward_pass[(self.programs,)](k=k, WAY=way, **given, **self.adjoints, **rows, **_prior(p))
            chunks.backward_merge[grid](k=k - 1, **merging)
        common = rows | self.adjoints | self.results | _tile(p, self.choice.finish)
        chunks.backward_finish[(self.programs,)](PLAN=p.plan, PARTIAL=partial, PARTS=of_rows, **common)
        return parts
