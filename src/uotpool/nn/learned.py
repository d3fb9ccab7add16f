"""The base class of poolings with coefficients that are learned or fixed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from uotpool import checks, coefficients
from uotpool.coefficients import PREFIX, Coefficient, Coefficients, Learned, Value
from uotpool.nn import config as configs
from uotpool.nn.base import Pooling
from uotpool.solvers import Solver, as_solver


class Slot(NamedTuple):
    """One coefficient of a layer: `Learned` with a parameter, or fixed."""

    learned: Learned | None
    parameter: str  # its name; "" where there is none
    shape: torch.Size
    value: float | tuple[float, ...]  # of a fixed one


_NONE = Slot(None, "", torch.Size(), 1.0)  # where a layer has no such coefficient


class CoefficientPooling(Pooling):
    """A pooling with coefficients, `Learned` or fixed.

    The name of a parameter says its transform, `log_alpha1` in exp(10 log_alpha1) and `raw_alpha1` in
    softplus(raw_alpha1), so that loading a state dict of another transform fails. Fixed coefficients are not in
    the state dict.

    Args:
        dim: number of features.
        solver: the algorithm.
        options: coefficients by name; rho None for the default of a solver that has one.
        device, dtype: of the parameters.
    """

    def __init__(
        self,
        dim: int,
        solver: Solver | str,
        options: Mapping[str, Coefficient | None],
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim)
        checks.floating_dtype("dtype", dtype)
        self.solver = as_solver(solver)
        if not self.solver.uses_rho and options.get("rho") is not None:
            checks.fail("rho", f"None, as {self.solver} has no step size", options["rho"])
        self._slots: dict[str, Slot] = {}
        for name, value in options.items():
            if name == "rho" and not self.solver.uses_rho:
                continue
            default = Learned() if name == "rho" and value is None else value
            self._slots[name] = slot = self._slot(name, default)  # type: ignore[arg-type] # checked there
            if slot.parameter:
                empty = torch.empty(slot.shape, device=device, dtype=dtype)
                self.register_parameter(slot.parameter, nn.Parameter(empty))
        # For each call: a number, or the name and shape of a parameter.
        self._values: list[tuple[float | tuple[float, ...] | None, str, torch.Size]] = []
        transforms = []
        for name in coefficients.NAMES:
            slot = self._slots.get(name, _NONE)
            transforms.append((slot.learned and slot.learned.transform) or "identity")
            fixed = None if slot is _NONE or (name == "scale" and slot.value == 1.0) else slot.value
            self._values.append((fixed, slot.parameter, slot.shape))
        self._transforms = tuple(transforms)
        self._draw()

    def _slot(self, name: str, value: Coefficient) -> Slot:
        solver = self.solver
        length = self.dim if name == "scale" else solver.K
        if isinstance(value, Learned):
            learned = value.for_coefficient(name, length, one_value=solver.converges)
            assert learned.transform is not None
            many = name == "scale" or learned.per_step
            # Without steps the coefficient is not used, so there is nothing to learn.
            key = "" if solver.K == 0 else PREFIX[learned.transform] + name
            return Slot(learned, key, torch.Size((length if many else 1,)), 1.0)
        if isinstance(value, Tensor) or hasattr(value, "tolist"):
            accepted = "a number, or a list of them, to fix it, or Learned(...) to learn it"
            checks.fail(name, accepted, value, TypeError)
        # It has to be finite in float32 too, as the layer computes in the dtype of X.
        numbers = coefficients.fixed(name, value, torch.float32)
        if name == "scale":
            if isinstance(numbers, tuple) and len(numbers) != self.dim:
                checks.fail(name, f"a number, or {self.dim}, one for each feature", value)
        else:
            coefficients.check_length(name, numbers, length, one_value=solver.converges)
        return Slot(None, "", torch.Size(), numbers)

    def _draw(self) -> None:
        with torch.no_grad():
            for slot in self._slots.values():
                if slot.parameter:
                    assert slot.learned is not None
                    getattr(self, slot.parameter).copy_(slot.learned.start(slot.shape))

    def _coefficients(self, X: Tensor) -> Coefficients:
        """Return the coefficients for a problem with this X: parameters in its dtype and on its device."""
        dtype = X.dtype if X.dtype.itemsize >= 4 else torch.float32
        values: list[Value | None] = []
        for value, name, shape in self._values:
            if not name:
                values.append(value)
                continue
            # Much faster than getattr, which a parametrization or a replica of DataParallel needs.
            raw: Tensor | None = self._parameters.get(name)
            raw = getattr(self, name) if raw is None else raw
            if raw.shape != shape:
                checks.fail(name, f"a parameter of shape {tuple(shape)}", raw)
            if raw.dtype != dtype or raw.device != X.device:
                raw = raw.to(device=X.device, dtype=dtype)
            values.append(raw)
        return Coefficients(*values, self._transforms)  # type: ignore[arg-type, call-arg] # five of them

    def raw_parameters(self) -> dict[str, Tensor]:
        """Return the parameters behind the learned coefficients, by the names of these."""
        return {name: getattr(self, slot.parameter) for name, slot in self._slots.items() if slot.parameter}

    def coefficients(self) -> dict[str, Tensor]:
        """Return the current alpha0, alpha1, alpha2 and, if any, rho: (1,), or (K,), one for each step."""
        return {name: self._current(name) for name in self._slots if name != "scale"}

    def _current(self, name: str) -> Tensor:
        slot = self._slots[name]
        if not slot.parameter:
            values = slot.value if isinstance(slot.value, tuple) else (slot.value,)
            return torch.tensor(values, dtype=torch.float64)  # a fixed number keeps its precision
        assert slot.learned is not None
        assert slot.learned.transform is not None
        return coefficients.transformed(getattr(self, slot.parameter), slot.learned.transform)

    def _coefficient_config(self) -> dict[str, Any]:
        return {
            name: slot.learned.config() if slot.learned else configs.plain(slot.value)
            for name, slot in self._slots.items()
        }
