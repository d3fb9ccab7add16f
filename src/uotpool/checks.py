"""Validation of arguments, with errors that say what is accepted and what came.

Shapes, dtypes, devices and names are checked on every call. Values that live in tensors are read
where that is free, on the CPU outside a trace: `index`, `ptr`, the mask and tensor weights always.
The contents of X, P and the priors are read under `check(True)`, on any device. On an accelerator
`index`, `ptr` and the mask are asserted asynchronously instead.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

_enabled = False


class check:
    """Turn the checks on tensor values (finite X, priors that sum to 1, plans >= 0) on or off.

    A plain call sets the switch; as a context manager it restores the previous state::

        uotpool.check(True)
        with uotpool.check(False):
            ...
    """

    def __init__(self, enabled: bool = True) -> None:
        global _enabled
        flag("enabled", enabled)
        self._before, _enabled = _enabled, enabled

    def __enter__(self) -> check:
        return self

    def __exit__(self, *exc: object) -> None:
        global _enabled
        _enabled = self._before


def values_checked(x: Tensor) -> bool:
    """Return whether `check(True)` is on and the values of x can be read here at all."""
    return _enabled and has_values(x)


def readable(x: Tensor) -> bool:
    """Return whether reading the values of x is free: on the CPU, outside a trace."""
    return x.device.type == "cpu" and has_values(x)


def has_values(x: Tensor) -> bool:
    return not (torch.compiler.is_compiling() or x.is_meta or isinstance(x, FakeTensor))


def describe(x: object) -> str:
    """Describe an argument in a few words."""
    if isinstance(x, Tensor):
        dtype = str(x.dtype).removeprefix("torch.")
        kind = "" if x.layout == torch.strided else f"{str(x.layout).removeprefix('torch.')} "
        article = "an" if dtype.startswith("int") and not kind else "a"
        if x.is_nested:  # one in the old layout has no shape
            shape = f" of shape {tuple(x.shape)}" if x.layout == torch.jagged else ""
            return f"a nested {dtype} tensor{shape} on {x.device}"
        return f"{article} {kind}{dtype} tensor of shape {tuple(x.shape)} on {x.device}"
    if _is_numpy(x):
        return f"a NumPy array of {x.dtype} and shape {x.shape}"  # type: ignore[attr-defined]
    if isinstance(x, dict):
        return f"a dict with the keys {', '.join(map(repr, x))}"[:100]
    if _is_tensors(x):
        return f"a {type(x).__name__} of {len(x)} tensors"  # type: ignore[arg-type]
    text = repr(x)
    return f"{text if len(text) <= 100 else text[:97] + '...'} ({type(x).__name__})"


def fail(name: str, accepted: str, came: object, error: type[Exception] = ValueError) -> None:
    """Raise an error that names the argument, what is accepted and what came."""
    raise error(f"{name}: expected {accepted}, got {describe(came)}{_way_out(name, accepted, came)}")


def _way_out(name: str, accepted: str, came: object) -> str:
    """Say what helps, for mistakes that can be recognised from what came."""
    if _is_numpy(came) and "tensor" in accepted:
        return f": torch.from_numpy({name}) makes a tensor of it"
    whole = isinstance(came, Tensor) and came.numel() == 1 and not came.is_floating_point()
    if "an integer" in accepted and whole:
        return f": int({name}) makes one"
    if name == "X" and _is_tensors(came):
        return ": sets of several sizes are torch.cat(X) with index=... or ptr=..., or a jagged nested tensor"
    images = {4: ("(B, C, H, W)", "AdaptiveUOTPool2d"), 5: ("(B, C, D, H, W)", "AdaptiveUOTPool3d")}
    if name == "X" and "(B, N, D)" in accepted and isinstance(came, Tensor) and came.dim() in images:
        layout, layer = images[came.dim()]
        return f": for images {layout} there is {layer}"
    return ""


def _is_tensors(x: object) -> bool:
    return isinstance(x, (list, tuple)) and len(x) > 0 and all(isinstance(one, Tensor) for one in x)


def _is_numpy(x: object) -> bool:
    """Return whether x is a NumPy array, without an import of NumPy, which torch can do without."""
    return type(x).__module__ == "numpy" and type(x).__name__ == "ndarray"


def one_of(name: str, value: object, accepted: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in accepted:
        fail(name, "one of " + ", ".join(repr(a) for a in accepted), value)


def flag(name: str, x: object) -> None:
    if not isinstance(x, bool):
        fail(name, "a bool", x, TypeError)


def device(name: str, x: object) -> torch.device | None:
    """Return a device, or None for None."""
    try:
        return None if x is None else torch.device(x)  # type: ignore[call-overload]
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"{name}: expected a device such as 'cpu' or 'cuda:0', got {describe(x)}") from error


def floating_dtype(name: str, dtype: object) -> None:
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        fail(name, "a floating dtype", dtype, TypeError)


def tensor(name: str, x: object, accepted: str) -> None:
    if not isinstance(x, Tensor):
        fail(name, accepted, x, TypeError)


def strided(name: str, x: object, accepted: str) -> None:
    """Refuse what is no tensor, and nested and sparse tensors, which have no plain shape."""
    tensor(name, x, accepted)
    assert isinstance(x, Tensor)
    if x.is_nested or x.layout != torch.strided:
        fail(name, accepted, x, TypeError)


def floating(name: str, x: Tensor, accepted: str) -> None:
    tensor(name, x, accepted)
    if not x.is_floating_point():
        fail(name, accepted, x, TypeError)


def same_device(name: str, x: Tensor, X: Tensor) -> None:
    if x.device != X.device:
        raise ValueError(f"{name}: expected the device of X ({X.device}), got {x.device}")


def one_device(operator: str, *tensors: Tensor | None) -> None:
    """Refuse tensors on several devices, in operators that anyone can call.

    With a single meta tensor among the arguments torch calls the shape function, which fills
    nothing, so the result would be whatever the memory held before.
    """
    devices = {str(x.device) for x in tensors if x is not None}
    if len(devices) > 1:
        raise ValueError(f"{operator}: expected all tensors on one device, got {' and '.join(sorted(devices))}")


def integers(name: str, x: Tensor) -> None:
    accepted = "a 1-d tensor of int64 or int32"
    strided(name, x, accepted)
    if x.dim() != 1:
        fail(name, accepted, x)
    if x.dtype not in (torch.int64, torch.int32):
        fail(name, accepted, x, TypeError)


def number(name: str, x: Any, *, positive: bool, dtype: torch.dtype = torch.float64) -> float:
    """Return a weight that is given as a number; refuse one outside of the range of the dtype."""
    accepted = f"a finite number {'> 0' if positive else '>= 0'}"
    if isinstance(x, bool) or not isinstance(x, numbers.Real):
        fail(name, accepted, x, TypeError)
    if (not isinstance(x, numbers.Integral) and not math.isfinite(x)) or x < 0 or (positive and x == 0):
        fail(name, accepted, x)
    low, high = _range(dtype, positive)
    if not isinstance(x, numbers.Integral):
        x = float(x)  # NumPy compares a float32 in float32, where the range is infinite
    if not low <= x <= high:
        fail(name, f"a number in the range of {dtype}, {low:.2g} to {high:.2g}", x)
    return float(x)


def signed_number(name: str, x: Any, accepted: str, dtype: torch.dtype) -> float:
    """Return a number of any sign; refuse one that is not finite in the dtype."""
    if isinstance(x, bool) or not isinstance(x, numbers.Real):
        fail(name, accepted, x, TypeError)
    if not isinstance(x, numbers.Integral) and not math.isfinite(x):
        fail(name, accepted, x)
    high = torch.finfo(dtype).max
    if not -high <= x <= high:
        fail(name, f"a number in the range of {dtype}, {-high:.2g} to {high:.2g}", x)
    return float(x)


def _range(dtype: torch.dtype, positive: bool) -> tuple[float, float]:
    """Return the range of numbers that are neither infinite nor, for a divisor, 0 in the dtype."""
    info = torch.finfo(dtype)
    return info.tiny if positive else 0.0, info.max


def count(name: str, x: Any, least: int, *, most: int | None = None) -> int:
    accepted = f"an integer >= {least}" if most is None else f"an integer from {least} to {most}"
    whole = isinstance(x, (numbers.Integral, torch.SymInt)) and not isinstance(x, bool)
    if not whole:
        fail(name, accepted, x, TypeError)
    if x < least or (most is not None and x > most):
        fail(name, accepted, x)
    return x


def weight_values(name: str, x: Tensor, *, positive: bool, dtype: torch.dtype) -> None:
    """Refuse a tensor of weights with values outside of the range of the dtype, where values can be read."""
    if x.numel() == 0 or torch.compiler.is_compiling() or x.is_meta:
        return
    low, high = _range(dtype, positive)
    values = x.detach() if x.device.type == "mps" else x.detach().double()  # mps has no float64
    good = ((values >= low) & (values <= high) & (values > 0 if positive else values >= 0)).all()
    if not readable(x):
        torch._assert_async(good, f"uotpool: {name} out of range")
    elif not bool(good):
        accepted = f"finite values {'> 0' if positive else '>= 0'} in the range of {dtype}"
        raise ValueError(f"{name}: expected {accepted}, got {x.tolist()}")


def scale_values(name: str, x: Tensor, dtype: torch.dtype) -> None:
    """Refuse a tensor with a value that is not finite in the dtype, where values can be read."""
    if torch.compiler.is_compiling() or x.is_meta:
        return
    good = x.detach().to(dtype).isfinite()
    if not readable(x):
        torch._assert_async(good.all(), f"uotpool: {name} must be finite")
    elif not bool(good.all()):
        raise ValueError(f"{name}: expected finite values in the range of {dtype}, got {x[~good].tolist()[0]}")


def index_values(index: Tensor, num_sets: int, given: bool = True) -> None:
    """Refuse sets outside of 0 .. num_sets - 1; `given` says whether the caller chose that number."""
    inside = (index >= 0) & (index < num_sets)
    if readable(index):
        if not bool(inside.all()):
            low, high = int(index.min()), int(index.max())
            accepted = (
                f"values >= 0 and < {num_sets} (dim_size, the number of sets)" if given else "values >= 0"
            )
            raise ValueError(f"index: expected {accepted}, got values in {low}..{high}")
    elif not torch.compiler.is_compiling():
        torch._assert_async(inside.all(), "uotpool: index out of range of dim_size")


def mask_values(mask: Tensor, accepted: str) -> None:
    """Refuse integers other than 0 and 1."""
    good = (mask == 0) | (mask == 1)
    if readable(mask):
        if not bool(good.all()):
            odd = mask[~good][0].item()
            raise ValueError(f"mask: expected {accepted}, 1 where a sample is present, got the value {odd}")
    elif not torch.compiler.is_compiling():
        torch._assert_async(good.all(), "uotpool: mask must hold 0 and 1 only, 1 where a sample is present")


def ptr_values(ptr: Tensor, num_rows: int) -> None:
    good = (ptr[0] == 0) & (ptr[-1] == num_rows) & (ptr[1:] >= ptr[:-1]).all()
    if readable(ptr):
        if not bool(good):
            shown = f"{ptr.tolist()}" if ptr.numel() <= 12 else f"{ptr[:6].tolist()} ... {ptr[-6:].tolist()}"
            accepted = f"offsets that start at 0, never fall and end at {num_rows} (the number of rows)"
            raise ValueError(f"ptr: expected {accepted}, got {shown}")
    elif not torch.compiler.is_compiling():
        torch._assert_async(good, "uotpool: ptr must start at 0, never fall and end at the number of rows")


def finite_rows(name: str, X: Tensor, present: Tensor | None) -> None:
    bad = ~X.isfinite().all(-1, keepdim=True)
    if present is not None:
        bad = bad & present
    if bool(bad.any()):
        raise ValueError(f"{name}: expected finite values, got {int(bad.sum())} rows with NaN or infinity")


def plan_values(P: Tensor) -> None:
    bad = ~(P.isfinite() & (P >= 0))
    if bool(bad.any()):
        raise ValueError(f"P: expected finite entries >= 0, got {float(P[bad][0])}")


def distribution(name: str, total: Tensor, least: Tensor, dtype: torch.dtype) -> None:
    """Refuse negative entries, and sums other than 1 in sets that have samples."""
    if least.numel() and not bool((least >= 0).all()):
        raise ValueError(f"{name}: expected probabilities >= 0, got {float(least.detach().min())}")
    off = (total - 1).abs()
    if off.numel() and not bool((off <= min(1e3 * torch.finfo(dtype).eps, 1e-2)).all()):
        worst = float(total.detach().flatten()[off.flatten().argmax()])
        raise ValueError(f"{name}: expected probabilities that sum to 1 in each set, got a sum of {worst:.6g}")
