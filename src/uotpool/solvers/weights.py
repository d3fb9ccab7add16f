"""The weights of the K modules."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Weights(NamedTuple):
    """alpha0, alpha1, alpha2 and, for Bregman ADMM, rho: a (K,) tensor each."""

    alpha0: Tensor
    alpha1: Tensor
    alpha2: Tensor
    rho: Tensor | None = None

    @property
    def K(self) -> int:
        return self.alpha0.shape[0]
