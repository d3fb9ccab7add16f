"""The weights of a layer: learned through softplus or through their logarithm, or fixed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any, NamedTuple, Self, cast

import torch
from torch import Tensor, nn

from uotpool import checks
from uotpool.backends.tensors import all_eager, differentiated_in_reverse
from uotpool.inputs import Modules, Weight, resolve_weights, weight
from uotpool.nn.base import Pooling
from uotpool.nn.config import plain
from uotpool.problem import FLOOR, LOG, LOG_LIMIT, RATE, SOFTPLUS, VALUE, LearnedWeights, Weights, weight_of
from uotpool.solvers import Solver

LOG_START = {"alpha0": 1.0, "alpha1": 20.0, "alpha2": 5.0, "rho": 5.0}

PREFIXES = {LOG: "raw_log_", SOFTPLUS: "raw_", VALUE: ""}  # of the name of a weight in a state, by its form

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
        self._forms = {name: VALUE if K == 0 else _form(value) for name, value in given.items()}
        learned = [name for name, form in self._forms.items() if form != VALUE]
        for name in init or {}:
            if name not in learned:
                way_out = f' ({name}=None and {name}="log" learn it)' if name in given and K != 0 else ""
                if name == "scale":
                    way_out = ' (scales start at 1, or at 0 with start="mean")'
                raise ValueError(
                    f"init: expected names among the learned weights {learned}, got {name!r}{way_out}"
                )
        modules: Any = self.K
        length = 1 if shared or modules in ("converged", 0) else modules
        # Of each learned weight, the name of its parameter and the shape: all modules share a logarithm.
        self._raw_names = {name: PREFIXES[self._forms[name]] + name for name in learned}
        self._raw_shapes = {name: torch.Size((1 if self._forms[name] == LOG else length,)) for name in learned}
        self.init = None if init is None else plain(init)
        starts = {name: LOG_START[name] for name in learned if self._forms[name] == LOG} | dict(init or {})
        self._init = {
            name: _log_start(name, value) if self._forms[name] == LOG else _inverse(name, value, length)
            for name, value in starts.items()
        }
        for name, value in given.items():
            if name in learned:
                raw = nn.Parameter(torch.empty(self._raw_shapes[name], device=device, dtype=dtype))
                self.register_parameter(self._raw_names[name], raw)
            elif value is not None and not is_log(value):
                numbers[name] = torch.as_tensor(value, dtype=torch.float64, device="cpu").tolist()
                self.register_buffer(name, torch.tensor(numbers[name], dtype=torch.float64, device=device))
        self._kept: _Kept | None = None
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
        return {name: getattr(self, raw_name) for name, raw_name in self._raw_names.items()}

    def learned_as(self, name: str) -> str | None:
        """Return what the layer was given for a weight that it learns: "log" or None."""
        return LOG if name in self._given_logs else None

    def _check_forms(self, state_dict: Mapping[str, Any], prefix: str) -> None:
        """Refuse a state in which a weight is learned through its logarithm and ours is not, or the reverse."""
        for name in self._names:
            keys = {form: f"{prefix}{before}{name}" for form, before in PREFIXES.items()}
            said = {LOG: f"{name}='log'", SOFTPLUS: f"{name}=None", VALUE: f"a fixed {name}"}
            came = next((form for form, key in keys.items() if key in state_dict), None)
            ours = self._forms[name]
            if came not in (None, ours) and LOG in (came, ours):
                raise RuntimeError(
                    f"state_dict: expected {keys[ours]} ({said[ours]}), got {keys[came]} ({said[came]}): make "
                    "the layer with the options of the one that was saved (get_config)"
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
        values = {}
        for name, raw in self.raw_weights().items():
            shape = self._raw_shapes[name]
            if raw.shape != shape:
                checks.fail(self._raw_names[name], f"a parameter of shape {tuple(shape)}", raw)
            if shape[0] not in (1, length):
                checks.fail("K", f"{shape[0]}, for which the layer was made", self.K)
            values[name] = weight_of(raw, self._forms[name])
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
        """Return the weights of a problem with this X: the parameters, if any is learned."""
        if not self._raw_names:
            return self._fixed_rows(like).rows
        raw, K, forms = [], self._length(), tuple(self._forms.values())
        for name, shape in zip(self._raw_names.values(), self._raw_shapes.values(), strict=True):
            parameter = self._parameter(name, like)
            if parameter.shape != shape or shape[0] not in (1, K):
                self._values()  # This raises: the library trusts lengths.
            raw.append(parameter)
        if len(raw) < len(forms):
            learned, fixed = iter(raw), iter(self._fixed_rows(like).each)
            raw = [next(fixed if form == VALUE else learned) for form in forms]
        return LearnedWeights(tuple(raw), forms, K)

    def _parameter(self, name: str, like: Tensor) -> Tensor:
        """Return the parameter of this name in the dtype and on the device of `like`."""
        parameter = self._parameters.get(name)  # much faster than by attribute
        if parameter is None:
            parameter = getattr(self, name)
        on_device = (like.is_cpu and parameter.is_cpu) or parameter.device == like.device
        return parameter if on_device and parameter.dtype == like.dtype else parameter.to(like)

    def _fixed_rows(self, like: Tensor) -> _FixedRows:
        """Return the rows of the fixed weights: those of the last call, if they would be the same."""
        buffers = [self._buffers.get(name) for name, form in self._forms.items() if form == VALUE]
        key = self._key(like, buffers)
        if key is None:
            return self._make_fixed_rows(like)
        kept = self._kept  # once, as another thread may put another there
        if (
            kept is None
            or kept.key != key
            or any(a is not b for a, b in zip(kept.buffers, buffers, strict=True))
        ):
            # What is made in inference mode could not be saved for the backward of a later call.
            with torch.inference_mode(False):
                kept = self._kept = _Kept(key, buffers, self._make_fixed_rows(like))
        return kept.rows

    def _key(self, like: Tensor, buffers: list[Tensor | None]) -> tuple[Any, ...] | None:
        """Return what the rows of fixed weights depend on besides the identity of the buffers.

        It is None where other calls must not see them: somebody traces, transforms or parametrizes them.
        """
        if not (all_eager((like, *buffers)) and differentiated_in_reverse()):
            return None
        values = []
        for b in buffers:
            # A tensor of inference mode has no version, and one that requires grad has the graph of this call.
            if b is None or b.is_inference() or b.requires_grad:
                return None
            # A write to `.data` changes a value and not the version. To read values means to wait for a GPU.
            values.append(b.tolist() if b.is_cpu else b._version)
        return like.dtype, like.device, self.K, values

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is kept between calls: a copy has buffers of its own."""
        return self.__dict__ | {"_kept": None}

    def _make_fixed_rows(self, like: Tensor) -> _FixedRows:
        length = self._length()
        fixed = [self._fixed_weight(name) for name, form in self._forms.items() if form == VALUE]
        for value in fixed:
            if value.dim() == 1 and value.shape[0] not in (1, length):
                checks.fail("K", f"{value.shape[0]}, for which the layer was made", self.K)
        rows = torch.stack([value.expand(length).to(like) for value in fixed])
        return _FixedRows(rows, rows.unbind())

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


class _FixedRows(NamedTuple):
    """The fixed weights of a layer, a row each, and the rows one by one."""

    rows: Tensor
    each: tuple[Tensor, ...]


class _Kept(NamedTuple):
    """The rows of the fixed weights in the last call, with what they depend on."""

    key: tuple[Any, ...]
    buffers: list[Tensor | None]
    rows: _FixedRows


def _form(given: LayerWeight) -> str:
    """Return what the parameter of a weight is to it, from what a user passes for the weight."""
    return SOFTPLUS if given is None else LOG if is_log(given) else VALUE


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
