"""What can be asked of a UOT pooling, for modules that hold one as `pool` and lay out its input themselves."""

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
    """Mixin that asks `self.pool` for its plan, scores, scales and coefficients, in the layout of the input.

    The arguments of these methods are those of `forward`.
    """

    pool: UOTPooling
    # The options of the class itself, which are attributes of the same names.
    _options: ClassVar[tuple[str, ...]] = ()

    def _sets(self, *inputs: Any, **more: Any) -> tuple[dict[str, Any], Restore]:
        """Return the arguments for `self.pool`, and what brings values of samples back."""
        raise NotImplementedError

    def plan(self, *inputs: Any, **more: Any) -> Tensor:
        """Return the transport plan behind `forward`, in at least float32, in the layout of the input."""
        arguments, restore = self._sets(*inputs, **more)
        return self._features_in_place(restore(self.pool.plan(**arguments)))

    def scores(
        self, *inputs: Any, output: Tensor | Callable[[Tensor], Tensor] | None = None, **more: Any
    ) -> Tensor:
        """Return what each sample counts for, as `UOTPooling.scores` does; several outputs come last."""
        arguments, restore = self._sets(*inputs, **more)
        return restore(self.pool.scores(**arguments, output=output))

    def problem(self, *inputs: Any, **more: Any) -> Problem:
        """Return the problem that is solved for this input, in the layout of `self.pool`."""
        return self.pool.problem(**self._sets(*inputs, **more)[0])

    def scales(self) -> Tensor:
        """Return the scales in force, one per feature."""
        return self.pool.scales()

    def coefficients(self) -> dict[str, Tensor]:
        """Return the coefficients in force, as `UOTPooling.coefficients` does."""
        return self.pool.coefficients()

    def get_config(self) -> dict[str, Any]:
        """Return every option as plain data, ready for JSON; `from_config` makes the module again."""
        own = {name: configs.plain(getattr(self, name)) for name in self._options}
        return own | self.pool.get_config()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **options: Any) -> Self:
        """Make the module from what `get_config` returned.

        Args:
            config: the options.
            **options: options to take in place of those of `config`, or that it cannot hold: device, dtype.
        """
        if not isinstance(config, Mapping):
            checks.fail("config", "what get_config returned, a dict", config, TypeError)
        merged = {**config, **options}
        own = {name: merged.pop(name) for name in cls._options if name in merged}
        return cls(**own, **configs.options(UOTPooling, merged, {}))

    def _features_in_place(self, P: Tensor) -> Tensor:
        """Move the features of a plan from its last dimension to where the input has them."""
        return P
