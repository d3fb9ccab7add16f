"""The methods of a UOT pooling for modules that hold one and convert their input for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from torch import Tensor

from uotpool import checks
from uotpool.nn import config as configs
from uotpool.nn.pooling import UOTPooling
from uotpool.problem import Problem

# From values of samples, (samples..., *rest), to the layout of the wrapper's input.
Restore = Callable[[Tensor], Tensor]


class PoolWrapper:
    """Mixin with the methods of `self.pool` in the layout of the input, with the arguments of `forward`."""

    pool: UOTPooling
    # The names of the options of the class itself, which are attributes.
    _options: ClassVar[tuple[str, ...]] = ()

    def _sets(self, *inputs: Any, **options: Any) -> tuple[dict[str, Any], Restore]:
        """Return the arguments for `self.pool`, and a function that brings values of samples back."""
        raise NotImplementedError

    def plan(self, *inputs: Any, **options: Any) -> Tensor:
        """Return the transport plan of `forward`, in at least float32."""
        arguments, restore = self._sets(*inputs, **options)
        return self._features_in_place(restore(self.pool.plan(**arguments)))

    def scores(
        self, *inputs: Any, output: Tensor | Callable[[Tensor], Tensor] | None = None, **options: Any
    ) -> Tensor:
        """Return a score for each sample, as `UOTPooling.scores` does; several outputs come last."""
        arguments, restore = self._sets(*inputs, **options)
        return restore(self.pool.scores(**arguments, output=output))

    def problem(self, *inputs: Any, **options: Any) -> Problem:
        """Return the problem that `self.pool` solves for this input, in its layout."""
        return self.pool.problem(**self._sets(*inputs, **options)[0])

    def scales(self) -> Tensor:
        """Return the current scales, one per feature."""
        return self.pool.scales()

    def coefficients(self) -> dict[str, Tensor]:
        """Return the current coefficients, as `UOTPooling.coefficients` does."""
        return self.pool.coefficients()

    def get_config(self) -> dict[str, Any]:
        """Return every option as plain data, ready for JSON; `from_config` makes the module again."""
        options = {name: configs.plain(getattr(self, name)) for name in self._options}
        return options | self.pool.get_config()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **options: Any) -> Self:
        """Make the module from what `get_config` returned.

        Args:
            config: the options.
            **options: options that replace those of `config`, and device and dtype.
        """
        if not isinstance(config, Mapping):
            checks.fail("config", "what get_config returned, a dict", config, TypeError)
        merged = {**config, **options}
        arguments = {name: merged.pop(name) for name in cls._options if name in merged}
        return cls(**arguments, **configs.options(UOTPooling, merged, {}))

    def _features_in_place(self, P: Tensor) -> Tensor:
        """Move the features of a plan from its last dimension to where the input has them."""
        return P
