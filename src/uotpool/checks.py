"""Validation: what is accepted, and errors that say what came.

Shapes, dtypes, devices and names are checked on every call. Values that live in tensors are read where that
is free, on the CPU outside a trace: `index`, `ptr` and tensor weights always, the contents of X, the priors
and the mask under `check(True)`. On an accelerator `index` and `ptr` are asserted asynchronously instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

_enabled = False


class check:
    """Turn the checks on tensor values (finite X, priors that sum to 1, 0/1 masks) on or off.

    A plain call sets the switch; as a context manager it restores the previous state::

        uotpool.check(True)
        with uotpool.check(False):
            ...
    """

    def __init__(self, enabled: bool = True) -> None:
        global _enabled
        if not isinstance(enabled, bool):
            raise TypeError(f"enabled: expected a bool, got {enabled!r}")
        self._before, _enabled = _enabled, enabled

    def __enter__(self) -> check:
        return self

    def __exit__(self, *exc: object) -> None:
        global _enabled
        _enabled = self._before


def values_checked() -> bool:
    """Whether `check(True)` is on and values can be looked at here at all."""
    return _enabled and not torch.compiler.is_compiling()


def readable(x: Tensor) -> bool:
    """Whether looking at the values of x is free: on the CPU, outside a trace."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling() and not isinstance(x, FakeTensor)


def describe(x: object) -> str:
    """What came, in a few words."""
    if isinstance(x, Tensor):
        return f"a {str(x.dtype).removeprefix('torch.')} tensor of shape {tuple(x.shape)} on {x.device}"
    return f"{x!r} ({type(x).__name__})"


def fail(name: str, accepted: str, came: object, error: type[Exception] = ValueError) -> None:
    """Raise: the argument, what is accepted, what came."""
    raise error(f"{name}: expected {accepted}, got {came if isinstance(came, str) else describe(came)}")


def one_of(name: str, value: object, accepted: Sequence[str]) -> None:
    if value not in accepted:
        names = ", ".join(repr(a) for a in accepted)
        raise ValueError(f"{name}: expected one of {names}, got {value!r}")


def tensor(name: str, x: object, accepted: str) -> None:
    if not isinstance(x, Tensor):
        fail(name, accepted, x, TypeError)


def floating(name: str, x: Tensor, accepted: str) -> None:
    tensor(name, x, accepted)
    if not x.is_floating_point():
        fail(name, accepted, x, TypeError)


def same_device(name: str, x: Tensor, X: Tensor) -> None:
    if x.device != X.device:
        raise ValueError(f"{name}: expected the device of X ({X.device}), got {x.device}")


def integers(name: str, x: Tensor) -> None:
    accepted = "a 1-d tensor of int64"
    tensor(name, x, accepted)
    if x.dim() != 1:
        fail(name, accepted, x)
    if x.dtype not in (torch.int64, torch.int32):
        fail(name, accepted, x, TypeError)


def number(name: str, x: Any, *, positive: bool) -> float:
    """A weight given as a number."""
    accepted = f"a finite number {'> 0' if positive else '>= 0'}"
    if isinstance(x, bool) or not isinstance(x, (int, float)):
        fail(name, accepted, x, TypeError)
    if not math.isfinite(x) or x < 0 or (positive and x == 0):
        fail(name, accepted, x)
    return float(x)


def count(name: str, x: Any, least: int) -> int:
    if isinstance(x, bool) or not isinstance(x, (int, torch.SymInt)):
        fail(name, f"an integer >= {least}", x, TypeError)
    if x < least:
        fail(name, f"an integer >= {least}", x)
    return x


def weight_values(name: str, x: Tensor, *, positive: bool) -> None:
    """A weight given as a tensor: finite and in range, where that can be seen."""
    if not readable(x) or x.numel() == 0:
        return
    low = x > 0 if positive else x >= 0
    if not bool((low & x.isfinite()).all()):
        fail(name, f"finite values {'> 0' if positive else '>= 0'}", f"{x.tolist()}")


def index_values(index: Tensor, num_sets: int) -> None:
    inside = (index >= 0) & (index < num_sets)
    if readable(index):
        if not bool(inside.all()):
            low, high = int(index.min()), int(index.max())
            fail("index", f"values in 0..{num_sets - 1} (dim_size = {num_sets})", f"values in {low}..{high}")
    elif not torch.compiler.is_compiling():
        torch._assert_async(inside.all(), "uotpool: index out of range of dim_size")


def ptr_values(ptr: Tensor, num_rows: int) -> None:
    good = (ptr[0] == 0) & (ptr[-1] == num_rows) & (ptr[1:] >= ptr[:-1]).all()
    if readable(ptr):
        if not bool(good):
            shown = f"{ptr.tolist()}" if ptr.numel() <= 12 else f"{ptr[:6].tolist()} ... {ptr[-6:].tolist()}"
            fail("ptr", f"offsets that start at 0, never fall and end at {num_rows} (rows of X)", shown)
    elif not torch.compiler.is_compiling():
        torch._assert_async(good, "uotpool: ptr must start at 0, never fall and end at the rows of X")


def finite_rows(X: Tensor, present: Tensor | None) -> None:
    bad = ~X.isfinite().all(-1, keepdim=True)
    if present is not None:
        bad = bad & present
    if bool(bad.any()):
        raise ValueError(f"X: expected finite values, got {int(bad.sum())} rows with NaN or infinity")


def distribution(name: str, total: Tensor, least: Tensor, dtype: torch.dtype) -> None:
    """Sums of 1 (of the sets that have samples) and no negative entry."""
    if least.numel() and not bool((least >= 0).all()):
        raise ValueError(f"{name}: expected probabilities >= 0, got {float(least.min())}")
    off = (total - 1).abs()
    if off.numel() and not bool((off <= 1e3 * torch.finfo(dtype).eps).all()):
        worst = float(total.flatten()[off.flatten().argmax()])
        raise ValueError(f"{name}: expected probabilities that sum to 1 in each set, got a sum of {worst:.6g}")
