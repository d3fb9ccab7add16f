"""The weights of a layer: learned through softplus or through their logarithm, or fixed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from uotpool import checks
from uotpool.backends.tensors import all_eager, differentiated_in_reverse
from uotpool.inputs import Modules, Weight, resolve_weights, weight
from uotpool.nn.base import Pooling
from uotpool.nn.config import plain
from uotpool.problem import FLOOR, LearnedWeights, Weights, positive
from uotpool.solvers import Solver

# Adam moves a parameter by about its learning rate per step. Scales, and weights that are learned through their
# logarithm, have to travel over orders of magnitude within a few hundred steps, so they are RATE times as fast.
RATE = 10.0
LOG = "log"  # what a user passes for a weight that is learned through its logarithm
LOG_START = {"alpha0": 1.0, "alpha1": 20.0, "alpha2": 5.0, "rho": 5.0}
# Such a weight stays between 1 / LOG_LIMIT and LOG_LIMIT, so that no step of an optimiser makes it infinite.
LOG_LIMIT = 1e6
_LIMIT = math.log(LOG_LIMIT)

LayerWeight = Weight | str | None  # what a user passes as alpha0, ... of a layer


class WeightedPooling(Pooling):
    """A pooling with weights alpha0, ...: a parameter if learned, a buffer `alpha0` if fixed.

    The parameter is `raw_alpha0` of softplus(raw_alpha0), or `raw_log_alpha0` of exp(RATE * raw_log_alpha0).

    Args:
        dim: number of features.
        solver: whose weights; `given` has the names.
        K: number of modules, or "converged".
        shared: one value of each learned weight for all modules.
        given: None (learned through softplus), "log" (learned through its logarithm, one value for all modules)
            or the value (fixed) of each weight.
        init: initial values of learned weights; softplus(0.1 randn) or LOG_START for the others.
        device: of parameters and buffers.
        dtype: of the parameters. Buffers are float64, whatever the layer is converted to.
    """

    def __init__(
        self,
        dim: int,
        solver: Solver,
        K: Modules,
        shared: bool,
        given: Mapping[str, LayerWeight],
        init: Mapping[str, Weight] | None,
        device: torch.device | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__(dim)
        self.K: Any = K
        self.shared = shared
        self._names = tuple(given)
        self._raw_names = tuple(f"raw_{name}" for name in given)
        self._given_logs = {name for name in given if is_log(given[name])}
        # One validation for layers and functions; a number stands in for a learned weight. In float32: a fixed
        # weight has to be a number there too, as the layer follows the dtype of X.
        numbers: dict[str, Any] = {
            name: 1.0 if value is None or is_log(value) else value for name, value in given.items()
        }
        for name, value in given.items():
            if isinstance(value, str) and not is_log(value):
                accepted = 'a number or K numbers to fix it, None or "log" to learn it'
                checks.fail(name, accepted, value)
        resolve_weights(torch.empty(0, dtype=torch.float32), solver, K, **{"rho": None} | numbers)
        if init is not None and not isinstance(init, Mapping):
            checks.fail("init", "a mapping from names of weights to values", init, TypeError)
        for name, value in given.items():
            if isinstance(value, Tensor) and value.requires_grad:
                learn = f"None to learn it, from init={{{name!r}: ...}}"
                raise ValueError(f"{name}: expected {learn}, or fixed numbers, got a tensor that requires grad")
        learned = [name for name in given if given[name] is None and K != 0]
        logs = [name for name in given if is_log(given[name]) and K != 0]
        known = [name for name in given if name in learned or name in logs]
        for name in init or {}:
            if name not in known:
                way_out = f' ({name}=None and {name}="log" learn it)' if name in given and K != 0 else ""
                if name == "scale":
                    way_out = ' (scales start at 1, or at 0 with start="mean")'
                raise ValueError(
                    f"init: expected names among the learned weights {known}, got {name!r}{way_out}"
                )
        modules: Any = self.K
        length = 1 if shared or modules in ("converged", 0) else modules
        self._learned = frozenset(learned)
        self._logs = tuple(logs)
        # Rows of fixed weights come before those of logarithms; this is where each weight is among them.
        self._places = tuple(name for name in given if name not in logs)
        self._order = [(*self._places, *logs).index(name) for name in given]
        self._raw_shape = torch.Size((length,))
        self.init = None if init is None else plain(init)
        starts = {name: LOG_START[name] for name in logs} | dict(init or {})
        self._init = {
            name: _log_start(name, value) if name in logs else _inverse(name, value, length)
            for name, value in starts.items()
        }
        for name, value in given.items():
            if name in learned or name in logs:
                raw = nn.Parameter(torch.empty(length if name in learned else 1, device=device, dtype=dtype))
                self.register_parameter(f"raw_{name}" if name in learned else f"raw_log_{name}", raw)
            elif value is not None and not is_log(value):
                numbers[name] = torch.as_tensor(value, dtype=torch.float64, device="cpu").tolist()
                self.register_buffer(name, torch.tensor(numbers[name], dtype=torch.float64, device=device))
        # Of the fixed weights in the last call: what their rows depend on, the buffers, and the rows.
        self._rows: tuple[Any, list[Tensor], Tensor] | None = None
        self._fixed = {name: numbers[name] for name in given if name in self._buffers}
        self._draw()

    def _state(self) -> Iterable[Tensor]:
        """Leave out the fixed weights, which keep their precision."""
        return [t for name, t in self.named_buffers() if name not in self._names] + list(self.parameters())

    def _draw(self) -> None:
        with torch.no_grad():
            for name, raw in self.raw_weights().items():
                if name in self._init:
                    raw.copy_(self._init[name].expand(raw.shape))
                else:
                    raw.normal_(0.0, 0.1)

    def raw_weights(self) -> dict[str, nn.Parameter]:
        """Return the parameters behind the learned weights."""
        # By attribute and not from `_parameters`, where a parametrization or the replica of a data parallel
        # model does not have them.
        raw_names = {name: f"raw_log_{name}" if name in self._logs else f"raw_{name}" for name in self._names}
        known = [name for name in self._names if name in self._learned or name in self._logs]
        return {name: getattr(self, raw_names[name]) for name in known}

    def learned_as(self, name: str) -> str | None:
        """Return what the layer was given for a weight that it learns: "log" or None."""
        return LOG if name in self._given_logs else None

    def _check_forms(self, state_dict: Mapping[str, Any], prefix: str) -> None:
        """Refuse a state in which a weight is learned through its logarithm and ours is not, or the reverse."""
        for name in self._names:
            forms = {"raw_log_": f"{name}='log'", "raw_": f"{name}=None", "": f"a fixed {name}"}
            came = next((form for form in forms if f"{prefix}{form}{name}" in state_dict), None)
            ours = "raw_log_" if name in self._logs else "raw_" if name in self._learned else ""
            if came not in (None, ours) and "raw_log_" in (came, ours):
                raise RuntimeError(
                    f"state_dict: expected {prefix}{ours}{name} ({forms[ours]}), got {prefix}{came}{name} "
                    f"({forms[came]}): make the layer with the options of the one that was saved (get_config)"
                )

    def fixed_weights(self) -> dict[str, Any]:
        """Return the values of the fixed weights, a number or a list of numbers each."""
        buffers = {name: self._buffers.get(name) for name in self._names}
        return {
            name: self._fixed[name] if value.is_meta else value.tolist()
            for name, value in buffers.items()
            if value is not None
        }

    def weights(self) -> Weights:
        """Return the weights in force, (K,) each (one value for K="converged"), in at least float32."""
        return Weights(**self._values())

    def _values(self) -> dict[str, Tensor]:
        length = self._length()
        raw = self.raw_weights()
        for name, parameter in raw.items():
            shape = torch.Size((1,)) if name in self._logs else self._raw_shape
            if parameter.shape != shape:
                argument = f"raw_log_{name}" if name in self._logs else f"raw_{name}"
                checks.fail(argument, f"a parameter of shape {tuple(shape)}", parameter)
        if self._learned and self._raw_shape[0] not in (1, length):
            checks.fail("K", f"{self._raw_shape[0]}, for which the layer was made", self.K)
        values = {name: positive(raw[name]) for name in self._learned}
        values |= {name: _from_log(raw[name]) for name in self._logs}
        return {
            name: (values[name] if name in values else self._fixed_weight(name)).expand(length)
            for name in self._names
        }

    def _length(self) -> int:
        return 1 if self.K == "converged" else cast(int, self.K)

    def _fixed_weight(self, name: str) -> Tensor:
        if self.K == 0 and name not in self._buffers:
            return torch.ones(())  # no module reads it
        return cast(Tensor, getattr(self, name))

    def _weights_for(self, like: Tensor) -> Tensor | LearnedWeights:
        """Return the weights of a problem with this X; the parameters, if the backend can begin with these.

        It can if all weights are learned, in the dtype and on the device of X.
        """
        if not self._learned:
            return self._rows_with_logs(like) if self._logs else self._fixed_rows(like)
        raw = tuple([self._parameters.get(name) for name in self._raw_names])
        dtype, on_cpu, shape = like.dtype, like.is_cpu, self._raw_shape
        for parameter in raw:
            if (
                parameter is None
                or parameter.dtype != dtype
                or parameter.shape != shape  # the library trusts it
                or not ((on_cpu and parameter.is_cpu) or parameter.device == like.device)
            ):
                return torch.stack([value.to(like) for value in self._values().values()])
        K = self._length()
        if shape[0] not in (1, K):
            self._values()  # raises
        return LearnedWeights(raw, K)  # type: ignore[arg-type] # none is None

    def _fixed_rows(self, like: Tensor) -> Tensor:
        """Return the rows of the fixed weights; those of the last call, if dtype and device are the same."""
        if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined]
            return self._make_fixed_rows(like)
        buffers = [b for name in self._names if (b := self._buffers.get(name)) is not None]
        if any(b.is_inference() for b in buffers):  # these have no version, which would tell of a write
            return self._make_fixed_rows(like)
        # A buffer that is replaced or written to has another identity or version.
        key = (like.dtype, like.device, self.K, *[(id(b), b._version) for b in buffers])
        if self._rows is None or self._rows[0] != key:
            # What is made in inference mode could not be saved for the backward of a later call.
            with torch.inference_mode(False):
                rows = self._make_fixed_rows(like)
            self._rows = (key, buffers, rows)  # with the buffers, so that no other gets the identity of one
        return self._rows[2]

    def _make_fixed_rows(self, like: Tensor) -> Tensor:
        length = self._length()
        fixed = [self._fixed_weight(name).expand(length) for name in self._names if name not in self._logs]
        return torch.stack([value.to(like) for value in fixed])

    def _rows_with_logs(self, like: Tensor) -> Tensor:
        """Return the rows of weights of which some are learned through their logarithm, the others fixed."""
        raw = [getattr(self, f"raw_log_{name}") for name in self._logs]
        quick = like.is_cpu and all_eager((like, *raw)) and differentiated_in_reverse()
        for name, parameter in zip(self._logs, raw, strict=True):
            quick = quick and parameter.is_cpu
            if parameter.shape != (1,):
                checks.fail(f"raw_log_{name}", "a parameter of shape (1,)", parameter)
        fixed = self._fixed_rows(like) if self._places else like.new_empty(0, self._length())
        if not quick:
            rows = _log_rows(fixed, *raw)
        elif torch.is_grad_enabled():
            rows = cast(Tensor, _LogRows.apply(fixed, *raw))
        else:
            rows = _quick_rows(fixed, raw)[0]
        return rows if self._places == self._names[: len(self._places)] else rows[self._order]

    def _weight_rows(self, like: Tensor) -> Tensor:
        """Return the weights as rows of one tensor, in the dtype and on the device of `like`."""
        weights = self._weights_for(like)
        return weights.rows() if isinstance(weights, LearnedWeights) else weights

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the fixed weights with `.to()`, `.half()` and the like, but leave their precision.

        1e10 is infinite in float16, and 0.1 in float32 is another number.
        """
        fixed = {name: self._buffers.pop(name) for name in self._names if name in self._buffers}
        super()._apply(fn, recurse)
        for name, value in fixed.items():
            assert value is not None
            target = fn(torch.empty(0, device=value.device)).device
            exact = value.float() if target.type == "mps" else value  # mps has no float64
            moved = fn(exact)
            if value.is_meta and not moved.is_meta:  # `to_empty`: a fixed weight is known all the same
                moved = torch.tensor(self._fixed[name], dtype=exact.dtype, device=moved.device)
            self.register_buffer(name, moved if moved.dtype == exact.dtype else exact.to(moved.device))
        return self


class _LogRows(torch.autograd.Function):
    """`_log_rows` in one step for parameters on the CPU, whose few numbers Python computes faster."""

    @staticmethod
    def forward(ctx: Any, fixed: Tensor, *raw: Tensor) -> Tensor:
        ctx.save_for_backward(*raw)
        ctx.first = fixed.shape[0]
        rows, ctx.values = _quick_rows(fixed, raw)
        return rows

    @staticmethod
    def backward(ctx: Any, *drows: Tensor) -> tuple[Tensor | None, ...]:
        raw = ctx.saved_tensors
        sums = drows[0][ctx.first :].sum(-1)
        inside = [abs(RATE * parameter.item()) <= _LIMIT for parameter in raw]
        if torch.is_grad_enabled():  # somebody wants second derivatives
            found = zip(sums, raw, inside, strict=True)
            return (None, *[(i * RATE * d * _from_log(p)).to(p) for d, p, i in found])
        by_log = zip(sums.tolist(), ctx.values, inside, raw, strict=True)
        return (None, *[p.new_full((1,), RATE * d * value if i else 0.0) for d, value, i, p in by_log])


def _quick_rows(fixed: Tensor, raw: Sequence[Tensor]) -> tuple[Tensor, list[float]]:
    """Return what `_log_rows` does, to rounding, and the weights below the fixed ones."""
    values = [math.exp(_within(RATE * parameter.item())) for parameter in raw]
    return torch.cat([fixed, fixed.new_tensor([[value] * fixed.shape[1] for value in values])]), values


def _within(log: float) -> float:
    return log if math.isnan(log) else min(max(log, -_LIMIT), _LIMIT)


def _log_rows(fixed: Tensor, *raw: Tensor) -> Tensor:
    """Return the rows of fixed weights, and below them those of weights that are learned by their logarithm."""
    K = fixed.shape[1]
    return torch.cat([fixed, *[_from_log(parameter.to(fixed)).expand(1, K) for parameter in raw]])


def _from_log(raw: Tensor) -> Tensor:
    """Return exp(RATE * raw) within its limits, in at least float32."""
    return (RATE * (raw if raw.dtype.itemsize >= 4 else raw.float())).clamp(-_LIMIT, _LIMIT).exp()


def is_log(value: object) -> bool:
    """Return whether this stands for a weight that is learned through its logarithm."""
    return isinstance(value, str) and value == LOG


def refuse_step(rho: LayerWeight, solver: str, K: Modules) -> None:
    """Refuse the value of a step where there is none. How to learn one may be said: that is a default."""
    if rho is not None and not is_log(rho):
        checks.fail("rho", f"None: no step size with solver={solver!r}, K={K!r}", rho)


def _log_start(name: str, value: Weight) -> Tensor:
    """Return the value of the parameter whose weight is `value`, (1,)."""
    numbers = value.detach().reshape(-1).tolist() if isinstance(value, Tensor) else [value]
    number = float(numbers[0]) if len(numbers) == 1 and isinstance(numbers[0], Real) else 0.0
    if isinstance(value, bool) or not 1 / LOG_LIMIT <= number <= LOG_LIMIT:
        checks.fail(f"init[{name!r}]", f"one number from {1 / LOG_LIMIT} to {LOG_LIMIT}", value)
    return torch.tensor([math.log(number) / RATE], dtype=torch.float64, device="cpu")


def _inverse(name: str, value: Weight, length: int) -> Tensor:
    """Return the parameter values whose weight is `value`."""
    argument = f"init[{name!r}]"
    like = torch.empty(0, dtype=torch.float64, device="cpu")
    target = weight(argument, value, like, positive=True).detach()
    if target.dim() == 1 and target.shape[0] not in (1, length):
        checks.fail(argument, "one number" if length == 1 else f"a number or {length} numbers", value)
    if bool((target < FLOOR).any()):
        checks.fail(argument, f"values >= {FLOOR}, the least that a learned {name} can be", value)
    above = (target - FLOOR).clamp_min(1e-12)
    return above + torch.log(-torch.expm1(-above))  # softplus^-1, for large values too
