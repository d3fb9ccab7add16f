"""The poolings of this library, with the call of the zoo."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from uotpool.inputs import lay_out
from uotpool.nn import UOTPooling
from uotpool.zoo.base import Pooling


class UOTP(Pooling):
    r"""UOT pooling, :math:`y_d = \sum_n x_{nd} P_{nd} / \sum_m P_{md}`, P a plan of unbalanced transport.

    `pool.uot` is the `UOTPooling` itself, with `plan(...)` and `weights()`.

    Args:
        dim: number of features.
        **options: those of `UOTPooling`.

    M. Cheng, H. Xu, "Revisiting global pooling through the lens of optimal transport", 2022.
    """

    def __init__(self, dim: int, **options: Any) -> None:
        super().__init__(dim)
        self.uot = UOTPooling(dim, **options)

    def forward(
        self,
        x: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        mask: Tensor | None = None,
        *,
        edge_index: Tensor | None = None,
        edge_weight: Tensor | None = None,
    ) -> Tensor:
        """As `Pooling.forward`; the layer sees to layouts and precision itself."""
        try:
            return self.uot(x, index, ptr, dim_size, mask=mask)
        except (TypeError, ValueError):
            lay_out(x, index, ptr, dim_size, mask, name="x")  # the same error, by the name it has here
            self._check_dim(x)
            raise

    def reset_parameters(self) -> None:
        self.uot.reset_parameters()
