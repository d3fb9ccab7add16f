"""Coefficients of the problem, fixed or `Learned`, and the transforms from parameters to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from uotpool import checks

# csrc/coefficients.cpp has the same transforms and chain rule, csrc/uotpool.h the same numbers.
FLOOR = 1e-6  # added to "softplus", which underflows to 0: alpha0 and rho are divisors
# Adam moves a parameter by about its learning rate per step. Scales, and coefficients that are learned through
# their logarithm, have to change by orders of magnitude within a few hundred steps, so we multiply by RATE.
RATE = 10.0
LIMIT = 1e6  # "exp" is clamped to [1 / LIMIT, LIMIT], so that no step of an optimiser makes it infinite
_LOG_LIMIT = math.log(LIMIT)

Transform = Literal["exp", "softplus", "linear"]
# Where "exp" and "linear" start.
START = {"alpha0": 1.0, "alpha1": 20.0, "alpha2": 5.0, "rho": 5.0, "scale": 1.0}
PREFIX = {"exp": "log_", "softplus": "raw_", "linear": "raw_"}  # of the name of a parameter
POSITIVE = ("alpha0", "rho")


@dataclass(frozen=True)
class Learned:
    """A coefficient that a layer learns, to be passed in place of a number.

    Args:
        init: initial value, a number, or K numbers with `per_step`, or one for each feature for `scale`. None:
            1 for alpha0 and scale, 20 for alpha1, 5 for alpha2 and rho; with "softplus" softplus(0.1 randn)
            from torch's generator, as in the code of the paper's authors.
        transform: from the parameter `raw` to the coefficient: "exp" is exp(10 raw), clamped to [1e-6, 1e6],
            "softplus" is softplus(raw) + 1e-6, and "linear" is 10 raw. None: "linear" for `scale`, which takes
            no other, else "exp". (With the factor 10 Adam changes the coefficient ten times as fast.)
        per_step: whether each of the K steps has a separate value.

    Example:
        >>> uotpool.UOTPooling(64, alpha0=Learned(0.1), alpha2=Learned(per_step=True)).coefficients()["alpha2"]
        tensor([5., 5., 5., 5.], grad_fn=<ExpBackward0>)
    """

    init: float | Sequence[float] | None = None
    transform: Transform | None = None
    per_step: bool = False

    def __post_init__(self) -> None:
        if self.transform is not None:
            checks.one_of("transform", self.transform, tuple(PREFIX))
        checks.flag("per_step", self.per_step)
        if self.init is not None:
            object.__setattr__(self, "init", _plain_numbers("init", self.init))

    def __repr__(self) -> str:
        init = list(self.init) if isinstance(self.init, tuple) else self.init
        parts = [] if init is None else [repr(init)]
        parts += [] if self.transform is None else [f"transform={self.transform!r}"]
        parts += ["per_step=True"] if self.per_step else []
        return f"Learned({', '.join(parts)})"

    def for_coefficient(self, name: str, length: int, *, one_value: bool = False) -> Learned:
        """Return this with its transform and initial value filled in, for the coefficient `name`.

        Args:
            name: of the coefficient.
            length: K, or the number of features for `scale`.
            one_value: whether the solver takes only one value, as it has no steps.
        """
        is_scale = name == "scale"
        transform = self.transform or ("linear" if is_scale else "exp")
        if is_scale != (transform == "linear"):
            checks.fail(name, '"linear" for scale, "exp" or "softplus" for others, as transform', transform)
        if self.per_step and (is_scale or one_value):
            reason = "scale has one for each feature" if is_scale else "this solver has no steps"
            checks.fail(name, f"Learned without per_step ({reason})", self)
        init = START[name] if self.init is None and transform != "softplus" else self.init
        many = is_scale or self.per_step
        if isinstance(init, tuple) and len(init) != (length if many else 1):
            accepted = f"one number, or {length}" if many else "one number"
            checks.fail(name, f"{accepted} as init of Learned", init)
        for number in init if isinstance(init, tuple) else () if init is None else (init,):
            _check_start(name, transform, number)
        return Learned(init, transform, self.per_step)

    def start(self, shape: torch.Size) -> Tensor:
        """Return the initial value of the parameter, on the CPU; a random one where `init` is None."""
        if self.init is None:
            return torch.empty(shape).normal_(0.0, 0.1)
        init = torch.tensor(self.init, dtype=torch.float64, device="cpu").expand(shape)
        if self.transform == "exp":
            return init.log() / RATE
        if self.transform == "linear":
            return init / RATE
        above = (init - FLOOR).clamp_min(1e-12)
        return above + torch.log(-torch.expm1(-above))  # the inverse of softplus, for large values too

    def config(self) -> dict[str, Any]:
        """Return the options as plain data for JSON."""
        return asdict(self) | {"init": list(self.init) if isinstance(self.init, tuple) else self.init}


Coefficient = float | Sequence[float] | Learned  # what a user passes to a layer
# A checked coefficient: one number, one for each step (for scale, each feature), or the tensor it is made from.
Value = float | tuple[float, ...] | Tensor
NAMES = ("alpha0", "alpha1", "alpha2", "rho", "scale")


class Coefficients(NamedTuple):
    """Checked coefficients of a problem. rho is None for solvers without one, scale None for 1."""

    alpha0: Value
    alpha1: Value
    alpha2: Value
    rho: Value | None = None
    scale: Value | None = None
    # From a tensor to its coefficient: "identity", "exp", "softplus" or "linear". Not used for numbers.
    transforms: tuple[str, ...] = ("identity",) * len(NAMES)

    def values(self, name: str, like: Tensor) -> Tensor:
        """Return the values of a coefficient, (1,) or more, in the dtype and on the device of `like`."""
        slot = NAMES.index(name)
        return values(self[slot], self.transforms[slot], like).to(like)  # type: ignore[arg-type]


def fixed(name: str, value: Any, dtype: torch.dtype = torch.float64) -> float | tuple[float, ...]:
    """Return fixed numbers as floats; refuse those that the coefficient cannot have in this dtype."""
    if isinstance(value, (list, tuple)) and value:
        return tuple(fixed_number(name, item, dtype) for item in value)
    return fixed_number(name, value, dtype)


def fixed_number(name: str, value: Any, dtype: torch.dtype) -> float:
    return checks.number(name, value, positive=name in POSITIVE, signed=name == "scale", dtype=dtype)


def from_config(value: Any) -> Any:
    """Return the coefficient that a config describes: a `Learned` for a dict, else the numbers."""
    return Learned(**value) if isinstance(value, dict) else value


def transformed(raw: Tensor, transform: str) -> Tensor:
    """Return the coefficient of a parameter, in at least float32."""
    if raw.dtype.itemsize < 4:
        raw = raw.float()
    if transform == "softplus":
        return functional.softplus(raw).add_(FLOOR)  # in place: its derivative needs `raw` alone
    if transform == "exp":
        return (RATE * raw).clamp(-_LOG_LIMIT, _LOG_LIMIT).exp()
    return RATE * raw if transform == "linear" else raw


def chain_rule(gradient: Tensor, raw: Tensor, transform: str) -> Tensor:
    """Chain rule of `transformed`: return the derivative by a parameter from that by its coefficient."""
    if transform == "softplus":
        return torch.ops.aten.softplus_backward(gradient, raw, 1.0, 20.0)  # torch's own constants
    if transform == "exp":
        return gradient * transformed(raw, "exp") * RATE * ((RATE * raw).abs() <= _LOG_LIMIT)
    return RATE * gradient if transform == "linear" else gradient


def values(value: Value, transform: str, like: Tensor) -> Tensor:
    """Return the values of a coefficient, (1,) or more; numbers in the dtype and on the device of `like`."""
    if isinstance(value, Tensor):
        return transformed(value, transform)
    numbers = value if isinstance(value, tuple) else (value,)
    if checks.readable(like):
        return torch.tensor(numbers, dtype=like.dtype, device=like.device)
    # Copying them from the CPU would wait for the GPU.
    return torch.stack([like.new_full((), x) for x in numbers])


def length(value: Value) -> int:
    """Return how many values a coefficient has."""
    if isinstance(value, Tensor):
        return value.numel()
    return len(value) if isinstance(value, tuple) else 1


def check_length(name: str, value: Value, K: int, *, one_value: bool) -> None:
    """Refuse a coefficient that has neither one value nor one for each of the K steps."""
    count = length(value)
    if count == 1 or (count == K and not one_value):
        return
    accepted = "one number (this solver has no steps)" if one_value else f"a number, or {K}, one for each step"
    raise ValueError(f"{name}: expected {accepted}, got {count} values")


def _plain_numbers(name: str, value: Any) -> float | tuple[float, ...]:
    """Return numbers, of NumPy or a tensor too, as plain floats."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return tuple(checks.number(name, item, signed=True) for item in value)
    return checks.number(name, value, signed=True)


def _check_start(name: str, transform: str, value: float) -> None:
    ranges = {"exp": (1 / LIMIT, LIMIT), "softplus": (FLOOR, math.inf), "linear": (-math.inf, math.inf)}
    low, high = ranges[transform]
    if not low <= value <= high:
        checks.fail(name, f"an init from {low:g} to {high:g} for transform={transform!r}", value)
