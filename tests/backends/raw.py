"""Calls of the C interface, as `library.Call` with tensors for arrays."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from tests.backends.harness import modules, rand, randn
from uotpool.backends.cpu import library

DTYPES = (torch.float32, torch.float64)
GRADIENTS = ("dX", "dlog_p0", "dlog_q0", "dweights", "dscale")
NATIVE: Any = library.load()


class Raw:
    """One problem: sizes by name, arrays by name. Outputs are filled with NaN."""

    def __init__(
        self,
        solver: str = "sinkhorn",
        dtype: torch.dtype = torch.float64,
        *,
        sizes: list[int] | None = None,
        B: int = 3,
        N: int = 5,
        D: int = 7,
        K: int = 2,
        plan: bool = False,
        absent: int = 0,
        rows: bool = False,
        p0: str = "each",
        q0: bool = True,
        scale: int = 0,
        seed: int = 0,
        threads: int = 1,
    ) -> None:
        """Without `sizes` dense. `rows`: in a random order, `absent` of them in no bag. `scale`: its length."""
        ptr = None if sizes is None else torch.tensor([0, *sizes]).cumsum(0)
        order = None
        if ptr is not None:
            B, N, M = len(ptr) - 1, 0, int(ptr[-1]) + absent
            if rows or absent:
                order = torch.randperm(M, generator=torch.Generator().manual_seed(seed))
        else:
            M = B * N
        weights = torch.stack([w for w in modules(solver, K, seed) if w is not None])
        self.sizes = {
            "dtype": DTYPES.index(dtype),
            "solver": library.SOLVERS[solver],
            "head": int(plan),
            "K": K,
            "B": B,
            "M": M,
            "N": N,
            "D": D,
            "threads": threads,
            "p0_shared": int(p0 == "shared"),
            "scale_length": scale,
        }
        log_p0 = {"each": randn(B, D, seed=seed + 1), "shared": randn(D, seed=seed + 1), "uniform": None}[p0]
        out = (M, D) if plan else (B, D)
        self.arrays: dict[str, Tensor | None] = {
            "X": rand(M, D, seed=seed),
            "ptr": ptr,
            "rows": order,
            "log_p0": log_p0,
            "log_q0": randn(M, seed=seed + 2) if q0 else None,
            "weights": weights,
            "scale": randn(scale, seed=seed + 4) if scale else None,
            "dout": randn(*out, seed=seed + 3),
            "out": torch.full(out, torch.nan),
            "dX": torch.full((M, D), torch.nan),
            "dlog_p0": None if log_p0 is None else torch.full_like(log_p0, torch.nan),
            "dlog_q0": torch.full((M,), torch.nan) if q0 else None,
            "dweights": torch.full_like(weights, torch.nan),
            "dscale": torch.full((scale,), torch.nan) if scale else None,
        }
        for name, t in self.arrays.items():
            if t is not None and t.is_floating_point():
                self.arrays[name] = t.to(dtype).contiguous()

    def call(self, **other: Any) -> library.Call:
        """With sizes and addresses of one's own where named."""
        values = {name: None if t is None else t.data_ptr() for name, t in self.arrays.items()}
        return library.Call(**{**self.sizes, **values, **other})

    def forward(self, **other: Any) -> int:
        return NATIVE.uotpool_forward(ctypes.byref(self.call(**other)))

    def backward(self, **other: Any) -> int:
        return NATIVE.uotpool_backward(ctypes.byref(self.call(**other)))

    def scratch(self, backward: bool, **other: Any) -> int:
        return NATIVE.uotpool_scratch(ctypes.byref(self.call(**other)), int(backward))

    def outputs(self) -> dict[str, Tensor]:
        named = ((name, self.arrays[name]) for name in ("out", *GRADIENTS))
        return {name: t for name, t in named if t is not None}

    def run(self, **other: Any) -> dict[str, Tensor]:
        """Forward and backward into fresh outputs."""
        for t in self.outputs().values():
            t.fill_(torch.nan)
        assert self.forward(**other) == library.OK
        assert self.backward(**other) == library.OK
        return {name: t.clone() for name, t in self.outputs().items()}
