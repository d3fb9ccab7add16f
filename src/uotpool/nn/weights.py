"""The weights of a layer: learned through softplus, or fixed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from uotpool import checks
from uotpool.inputs import Modules, Weight, resolve_weights, weight
from uotpool.nn.base import Pooling
from uotpool.nn.config import plain
from uotpool.problem import FLOOR, LearnedWeights, Weights, positive
from uotpool.solvers import Solver


class WeightedPooling(Pooling):
    """A pooling with weights alpha0, ...: a parameter `raw_alpha0` if learned, a buffer `alpha0` if fixed.

    Args:
        dim: number of features.
        solver: whose weights; `given` has the names.
        K: number of modules, or "converged".
        shared: one value of each learned weight for all modules.
        given: None (learned) or the value (fixed) of each weight.
        init: initial values of learned weights; softplus(0.1 randn) for the others.
        device: of parameters and buffers.
        dtype: of the parameters. Buffers are float64, whatever the layer is converted to.
    """

    def __init__(
        self,
        dim: int,
        solver: Solver,
        K: Modules,
        shared: bool,
        given: Mapping[str, Weight | None],
        init: Mapping[str, Weight] | None,
        device: torch.device | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__(dim)
        self.K: Any = K
        self.shared = shared
        self._names = tuple(given)
        self._raw_names = tuple(f"raw_{name}" for name in given)
        # One validation for layers and functions; a number stands in for a learned weight. In float32: a fixed
        # weight has to be a number there too, as the layer follows the dtype of X.
        numbers: dict[str, Any] = {name: 1.0 if value is None else value for name, value in given.items()}
        resolve_weights(torch.empty(0, dtype=torch.float32), solver, K, **{"rho": None} | numbers)
        if init is not None and not isinstance(init, Mapping):
            checks.fail("init", "a mapping from names of weights to values", init, TypeError)
        for name, value in given.items():
            if isinstance(value, Tensor) and value.requires_grad:
                learn = f"None to learn it, from init={{{name!r}: ...}}"
                raise ValueError(f"{name}: expected {learn}, or fixed numbers, got a tensor that requires grad")
        learned = [name for name in given if given[name] is None and K != 0]
        for name in init or {}:
            if name not in learned:
                way_out = f" ({name}=None learns it)" if name in given else ""
                raise ValueError(
                    f"init: expected names among the learned weights {learned}, got {name!r}{way_out}"
                )
        modules: Any = self.K
        length = 1 if shared or modules in ("converged", 0) else modules
        self._learned = frozenset(learned)
        self._raw_shape = torch.Size((length,))
        self.init = None if init is None else plain(init)
        self._init = {name: _inverse(name, value, length) for name, value in (init or {}).items()}
        for name, value in given.items():
            if name in learned:
                raw = nn.Parameter(torch.empty(length, device=device, dtype=dtype))
                self.register_parameter(f"raw_{name}", raw)
            elif value is not None:
                numbers[name] = torch.as_tensor(value, dtype=torch.float64, device="cpu").tolist()
                self.register_buffer(name, torch.tensor(numbers[name], dtype=torch.float64, device=device))
        # Of the last call, if all weights are fixed: what the rows depend on, the buffers, and the rows.
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
        return {name: getattr(self, f"raw_{name}") for name in self._names if name in self._learned}

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
        length = 1 if self.K == "converged" else self.K
        raw = self.raw_weights()
        for name, parameter in raw.items():
            if parameter.shape != self._raw_shape:
                checks.fail(f"raw_{name}", f"a parameter of shape {tuple(self._raw_shape)}", parameter)
        if raw and self._raw_shape[0] not in (1, length):
            checks.fail("K", f"{self._raw_shape[0]}, for which the layer was made", self.K)
        values = {
            name: positive(raw[name]) if name in raw else self._fixed_weight(name) for name in self._names
        }
        return {name: value.expand(length) for name, value in values.items()}

    def _fixed_weight(self, name: str) -> Tensor:
        if self.K == 0 and name not in self._buffers:
            return torch.ones(())  # no module reads it
        return cast(Tensor, getattr(self, name))

    def _weights_for(self, like: Tensor) -> Tensor | LearnedWeights:
        """Return the weights of a problem with this X; the parameters, if the backend can begin with these.

        It can if all weights are learned, in the dtype and on the device of X.
        """
        if not self._learned:
            return self._fixed_rows(like)
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
        K = 1 if self.K == "converged" else self.K
        if shape[0] not in (1, K):
            self._values()  # raises
        return LearnedWeights(raw, K)  # type: ignore[arg-type] # none is None

    def _fixed_rows(self, like: Tensor) -> Tensor:
        """Return weights of which none is learned; those of the last call, if dtype and device are the same."""
        if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined]
            return torch.stack([value.to(like) for value in self._values().values()])
        buffers = [b for name in self._names if (b := self._buffers.get(name)) is not None]
        if any(b.is_inference() for b in buffers):  # these have no version, which would tell of a write
            return torch.stack([value.to(like) for value in self._values().values()])
        # A buffer that is replaced or written to has another identity or version.
        key = (like.dtype, like.device, self.K, *[(id(b), b._version) for b in buffers])
        if self._rows is None or self._rows[0] != key:
            # What is made in inference mode could not be saved for the backward of a later call.
            with torch.inference_mode(False):
                rows = torch.stack([value.to(like) for value in self._values().values()])
            self._rows = (key, buffers, rows)  # with the buffers, so that no other gets the identity of one
        return self._rows[2]

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
