"""Mixed pooling as a hierarchy of UOT poolings (Proposition 2)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from uotpool import checks
from uotpool.functional import uot_pool
from uotpool.nn.pooling import ATTENTION, UOTPooling
from uotpool.nn.scripting import NotScriptable


class MixedMeanMax(NotScriptable, nn.Module):
    r"""Mixed and gated mean-max pooling (Lee et al. 2016) from three UOT poolings.

    .. math::
        f(X) = f_{uot}([f_{uot}(X; \theta_{mean}), f_{uot}(X; \theta_{max})]; \theta_3)
        \approx \omega\, \text{mean}(X) + (1 - \omega) \max(X)

    where the third pooling is in the attention setting and has the sample prior [omega, 1 - omega].

    Args:
        dim: number of features D.
        gated: if False, omega is one learned number, sigmoid(raw_omega). If True, it is a function
            of the set, sigmoid(w^T mean_n(x_n) + b).
        temperature: temperature of the max pooling; see `UOTPooling.max`.

    Shape:
        The same as `UOTPooling`.
    """

    def __init__(self, dim: int, *, gated: bool = False, temperature: float = 1e-3) -> None:
        super().__init__()
        checks.flag("gated", gated)
        self.dim = dim
        self.mean = UOTPooling.mean(dim)
        self.max = UOTPooling.max(dim, temperature)
        self.gate: nn.Linear | None = nn.Linear(dim, 1) if gated else None
        self.raw_omega: nn.Parameter | None = None if gated else nn.Parameter(torch.zeros(()))

    def reset_parameters(self) -> None:
        if self.gate is not None:
            self.gate.reset_parameters()
        if self.raw_omega is not None:
            nn.init.zeros_(self.raw_omega)

    def omega(self, mean: Tensor) -> Tensor:
        """Return the weight of the mean, (B,), from the mean-pooled vectors (B, D)."""
        if self.gate is None:
            assert self.raw_omega is not None
            return self.raw_omega.sigmoid().expand(mean.shape[0])
        # The gate works in the precision of the input, as the learned priors do.
        weight, bias = self.gate.weight.to(mean.dtype), self.gate.bias.to(mean.dtype)
        return nn.functional.linear(mean, weight, bias).squeeze(-1).sigmoid()

    def forward(
        self,
        X: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Return the pooled vectors (B, D), in the dtype of X."""
        layout: dict[str, Any] = {"index": index, "ptr": ptr, "dim_size": dim_size, "mask": mask}
        mean, top = self.mean(X, **layout), self.max(X, **layout)
        omega = self.omega(mean)
        q0 = torch.stack([omega, 1 - omega], dim=-1)
        alphas = (ATTENTION[name] for name in ("alpha0", "alpha1", "alpha2"))
        return uot_pool(torch.stack([mean, top], dim=1), *alphas, q0=q0, K=2)
