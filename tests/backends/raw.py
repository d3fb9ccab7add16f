"""Calls of the C interface, as `library.Call` with tensors for arrays."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from tests.backends.harness import modules, rand, randn
from uotpool.backends.cpu import library
from uotpool.backends.ops import FIXED, SLOTS, TRANSFORMS
from uotpool.coefficients import NAMES

DTYPES = (torch.float32, torch.float64)
GRADIENTS = ("dX", "dlog_p0", "dlog_q0", *(f"dcoefficient_{name}" for name in NAMES))
INPUTS = ("X", "ptr", "rows", "log_p0", "log_q0", *(f"coefficient_{name}" for name in NAMES), "dout")
NATIVE: Any = library.load()
assert SLOTS == NAMES


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
        transforms: tuple[str, ...] = ("identity",) * 5,
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
        own = (*modules(solver, K, seed), randn(scale, seed=seed + 4) if scale else None)
        numbers = dict(zip(NAMES, own, strict=True))
        log_p0 = {"each": randn(B, D, seed=seed + 1), "shared": randn(D, seed=seed + 1), "uniform": None}[p0]
        out = (M, D) if plan else (B, D)
        arrays: dict[str, Tensor | None] = {
            "X": rand(M, D, seed=seed),
            "log_p0": log_p0,
            "log_q0": randn(M, seed=seed + 2) if q0 else None,
            "dout": randn(*out, seed=seed + 3),
            "out": torch.full(out, torch.nan),
            "dX": torch.full((M, D), torch.nan),
            "dlog_p0": None if log_p0 is None else torch.full_like(log_p0, torch.nan),
            "dlog_q0": torch.full((M,), torch.nan) if q0 else None,
        }
        codes: dict[str, int] = {}
        for (name, t), transform in zip(numbers.items(), transforms, strict=True):
            code = 0 if t is None else TRANSFORMS.index(transform)
            codes |= {f"transform_{name}": code, f"length_{name}": 0 if t is None else len(t)}
            arrays[f"coefficient_{name}"] = t
            arrays[f"dcoefficient_{name}"] = (
                torch.full_like(t, torch.nan) if code > FIXED and t is not None else None
            )
        # Fixed numbers are doubles, whatever the dtype.
        kept = {f"coefficient_{name}" for name, code in zip(NAMES, transforms, strict=True) if code == "fixed"}
        self.arrays: dict[str, Tensor | None] = {
            name: t if t is None or name in kept else t.detach().to(dtype).contiguous()
            for name, t in arrays.items()
        }
        self.arrays |= {"ptr": ptr, "rows": order}
        self.sizes = {
            "dtype": DTYPES.index(dtype),
            "solver": library.SOLVERS[solver],
            "head": int(plan),
            **{"K": K, "B": B, "M": M, "N": N, "D": D},
            "threads": threads,
            "p0_shared": int(p0 == "shared"),
            **codes,
        }

    def call(self, **other: Any) -> library.Call:
        """With sizes and addresses of one's own where named."""
        values = {name: None if t is None else t.data_ptr() for name, t in self.arrays.items()}
        return library.Call(**{**self.sizes, **values, **other})

    def forward(self, **other: Any) -> int:
        return NATIVE.uotpool_forward(ctypes.byref(self.call(**other)))

    def backward(self, **other: Any) -> int:
        return NATIVE.uotpool_backward(ctypes.byref(self.call(**other)))

    def scratch(self, backward: bool, **other: Any) -> int:
        """Of other sizes than those of the arrays, too: nothing is read. Every length is K or D or 1."""
        if "K" in other:
            lengths = {name: n for name, n in self.sizes.items() if name.startswith("length_") and n}
            other = dict.fromkeys(lengths, other["K"]) | {"length_scale": self.sizes["length_scale"]} | other
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
