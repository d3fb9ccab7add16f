"""Parameter groups for an optimiser."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from uotpool import checks
from uotpool.nn.learned import CoefficientPooling


def param_groups(module: nn.Module, weight_decay: float, **pool_options: Any) -> list[dict[str, Any]]:
    """Make two parameter groups: with weight decay, and without for the coefficients of UOT poolings.

    Weight decay would pull each of their parameters to 0: a coefficient that is learned through its logarithm
    to 1, one that is learned through softplus to 0.69, and scales to 0, the mean.

    Args:
        module: model with layers such as `UOTPooling` or `UOTAssignment`.
        weight_decay: of all other parameters, for an optimiser.
        **pool_options: options for the group of the coefficients, for example `lr`.
    """
    if not isinstance(module, nn.Module):
        checks.fail("module", "the model itself, not its parameters", module, TypeError)
    checks.number("weight_decay", weight_decay)
    raw: dict[int, Tensor] = {}
    for layer in module.modules():
        if isinstance(layer, CoefficientPooling):
            raw |= {id(p): p for p in layer.raw_parameters().values()}
    others = [p for p in module.parameters() if id(p) not in raw]
    return [
        {"params": others, "weight_decay": weight_decay},
        {"params": list(raw.values()), "weight_decay": 0.0, **pool_options},
    ]
