"""Validation of arguments, with errors that say what was expected and what was passed.

Shapes, dtypes, devices and names are checked on every call. The values of `index`, `ptr`, the mask and of
coefficients that are tensors are checked on the CPU outside a trace, where reading them is free, and
asserted asynchronously on an accelerator. Those of X, P and the priors are checked under `check(True)`.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
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
    """Whether `check(True)` is on and x has values to read."""
    return _enabled and has_values(x)


def readable(x: Tensor) -> bool:
    """Whether reading the values of x is free: on the CPU, outside a trace."""
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


def fail(name: str, accepted: str, actual: object, error: type[Exception] = ValueError) -> None:
    """Raise an error of the form "name: expected X, got Y"."""
    raise error(f"{name}: expected {accepted}, got {describe(actual)}{_hint(name, accepted, actual)}")


def _hint(name: str, accepted: str, actual: object) -> str:
    """Return what helps against some frequent mistakes, else ""."""
    if _is_numpy(actual) and "tensor" in accepted:
        return f": torch.from_numpy({name}) makes a tensor of it"
    is_integer = isinstance(actual, Tensor) and actual.numel() == 1 and not actual.is_floating_point()
    if "an integer" in accepted and is_integer:
        return f": int({name}) makes one"
    if name == "X" and _is_tensors(actual):
        return ": sets of several sizes are torch.cat(X) with index=... or ptr=..., or a jagged nested tensor"
    images = {4: ("(B, C, H, W)", "AdaptiveUOTPool2d"), 5: ("(B, C, D, H, W)", "AdaptiveUOTPool3d")}
    if name == "X" and "(B, N, D)" in accepted and isinstance(actual, Tensor) and actual.dim() in images:
        layout, layer = images[actual.dim()]
        return f": for images {layout} there is {layer}"
    return ""


def _is_tensors(x: object) -> bool:
    return isinstance(x, (list, tuple)) and len(x) > 0 and all(isinstance(item, Tensor) for item in x)


def _is_numpy(x: object) -> bool:
    """Whether x is a NumPy array, without an import of NumPy, which torch does not need."""
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


def floating_of_shape(name: str, x: Tensor, like: Tensor, *shapes: tuple[int, ...], prefix: str = "") -> None:
    """Refuse x unless it is a strided floating tensor of one of these shapes, on the device of `like`."""
    fits = isinstance(x, Tensor) and not x.is_nested and x.layout == torch.strided and x.is_floating_point()
    if fits and x.shape in shapes and x.device == like.device:
        return
    accepted = f"{prefix}a floating tensor of shape {' or '.join(str(tuple(shape)) for shape in shapes)}"
    strided(name, x, accepted)
    floating(name, x, accepted)
    same_device(name, x, like)
    fail(name, accepted, x)


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


def number(
    name: str, x: Any, *, positive: bool = False, signed: bool = False, dtype: torch.dtype = torch.float64
) -> float:
    """Return x as a float; refuse what is not > 0, >= 0 or `signed`, or outside the range of the dtype."""
    accepted = "a finite number" + ("" if signed else " > 0" if positive else " >= 0")
    if isinstance(x, bool) or not isinstance(x, numbers.Real):
        fail(name, accepted, x, TypeError)
    if not isinstance(x, numbers.Integral):
        x = float(x)  # NumPy compares a float32 in float32, where the range is infinite
    low, high = _range(dtype, positive, signed)
    if not low <= x <= high:
        fail(name, accepted if dtype == torch.float64 else f"{accepted} in the range of {dtype}", x)
    return float(x)


def _range(dtype: torch.dtype, positive: bool, signed: bool) -> tuple[float, float]:
    """Return the range of numbers that are neither infinite nor, for a divisor, 0 in the dtype."""
    info = torch.finfo(dtype)
    return -info.max if signed else info.tiny if positive else 0.0, info.max


def count(name: str, x: Any, low: int, *, high: int | None = None) -> int:
    """Return x; refuse what is not an integer from `low` to `high`."""
    accepted = f"an integer >= {low}" if high is None else f"an integer from {low} to {high}"
    if not isinstance(x, (numbers.Integral, torch.SymInt)) or isinstance(x, bool):
        fail(name, accepted, x, TypeError)
    if x < low or (high is not None and x > high):
        fail(name, accepted, x)
    return x


def values(name: str, x: Tensor, good: Tensor, accepted: str, describe_bad: Callable[[], object]) -> None:
    """Refuse x unless all of `good`: now if reading it is free, later on an accelerator. Not for a trace."""
    if readable(x):
        if not bool(good.all()):
            raise ValueError(f"{name}: expected {accepted}, got {describe_bad()}")
    else:
        torch._assert_async(good.all(), f"uotpool: {name}: expected {accepted}")


def coefficient_values(
    name: str, x: Tensor, dtype: torch.dtype, *, positive: bool = False, signed: bool = False
) -> None:
    """Refuse values that are not > 0, >= 0 or `signed`, or outside the range of the dtype."""
    if x.numel() == 0 or torch.compiler.is_compiling() or x.is_meta:
        return
    low, high = _range(dtype, positive, signed)
    wide = x.detach() if x.device.type == "mps" else x.detach().double()  # mps has no float64
    accepted = "finite values" + ("" if signed else " > 0" if positive else " >= 0")
    good = (wide >= low) & (wide <= high)
    values(name, x, good, f"{accepted} in the range of {dtype}", lambda: describe_list(x[~good]))


def index_values(index: Tensor, num_sets: int, is_chosen: bool = True) -> None:
    """Refuse sets outside 0 .. num_sets - 1; `is_chosen`: the caller passed that number as `dim_size`."""
    if torch.compiler.is_compiling():  # no value can be read, and no text be made of a size
        return
    good = (index >= 0) & (index < num_sets)
    accepted = f"values >= 0 and < {num_sets} (dim_size, the number of sets)" if is_chosen else "values >= 0"
    values("index", index, good, accepted, lambda: f"values in {int(index.min())}..{int(index.max())}")


def mask_values(mask: Tensor, accepted: str) -> None:
    """Refuse integers other than 0 and 1."""
    if torch.compiler.is_compiling():
        return
    good = (mask == 0) | (mask == 1)
    accepted = f"{accepted}, 1 where a sample is present"
    values("mask", mask, good, accepted, lambda: f"the value {mask[~good][0].item()}")


def ptr_values(ptr: Tensor, num_rows: int) -> None:
    """Refuse offsets that do not share out the rows."""
    if torch.compiler.is_compiling():  # no value can be read, and no text be made of a size
        return
    good = (ptr[0] == 0) & (ptr[-1] == num_rows) & (ptr[1:] >= ptr[:-1]).all()
    accepted = f"offsets that start at 0, never fall and end at {num_rows} (the number of rows)"
    values("ptr", ptr, good, accepted, lambda: describe_list(ptr))


def describe_list(x: Tensor) -> str:
    """Return the values of a 1-d tensor; of a long one the first and the last."""
    return f"{x.tolist()}" if x.numel() <= 12 else f"{x[:6].tolist()} ... {x[-6:].tolist()}"


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


def distribution(name: str, prior: Tensor, total: Tensor, dtype: torch.dtype) -> None:
    """Refuse a prior with negative entries, and totals of the sets other than 1."""
    if prior.numel() and not bool((prior >= 0).all()):
        raise ValueError(f"{name}: expected probabilities >= 0, got {float(prior.detach().min())}")
    error = (total - 1).abs()
    if error.numel() and not bool((error <= min(1e3 * torch.finfo(dtype).eps, 1e-2)).all()):
        worst = float(total.detach().flatten()[error.flatten().argmax()])
        raise ValueError(f"{name}: expected probabilities that sum to 1 in each set, got a sum of {worst:.6g}")
