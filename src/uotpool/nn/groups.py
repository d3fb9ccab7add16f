"""Parameter groups for an optimiser."""

from __future__ import annotations

import difflib
import inspect
import numbers
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from uotpool import checks
from uotpool.nn.learned import CoefficientPooling


def param_groups(module: nn.Module, weight_decay: float, **pool_options: Any) -> list[dict[str, Any]]:
    """Make parameter groups for an optimiser, with weight decay for all but the coefficients of UOT poolings.

    Decay would pull each of their parameters to 0, whatever the data say: an alpha that is learned through its
    logarithm to 1, one that is learned through softplus to 0.69, and scales to 0, the mean.

    Args:
        module: model that holds layers of UOT, `UOTPooling` or `UOTAssignment`.
        weight_decay: weight decay of all other parameters.
        **pool_options: more options for the group of the coefficients, for example `lr`: those that
            an optimiser of `torch.optim` has.
    """
    if not isinstance(module, nn.Module):
        checks.fail("module", "the model itself, not its parameters", module, TypeError)
    if isinstance(weight_decay, bool) or not isinstance(weight_decay, numbers.Real):
        checks.fail("weight_decay", "a number >= 0", weight_decay, TypeError)
    if not weight_decay >= 0:
        checks.fail("weight_decay", "a number >= 0", weight_decay)
    for name in pool_options:
        _check_option(name)
    raw: dict[int, Tensor] = {}
    for layer in module.modules():
        if isinstance(layer, CoefficientPooling):
            raw |= {id(p): p for p in layer.raw_parameters().values()}
    rest: Iterable[nn.Parameter] = [p for p in module.parameters() if id(p) not in raw]
    return [
        {"params": rest, "weight_decay": weight_decay},
        {"params": list(raw.values()), "weight_decay": 0.0, **pool_options},
    ]


def _check_option(name: str) -> None:
    """Refuse what is no option of an optimiser: torch would keep the key in the group and never read it."""
    optimizers = [o for o in vars(torch.optim).values() if inspect.isclass(o)]
    known = {option for o in optimizers for option in inspect.signature(o).parameters} - {"params", "defaults"}
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        accepted = f"an option of an optimiser, such as {close[0] if close else 'lr'!r}"
        other = "other keys can be set in the returned groups"
        raise TypeError(f"{name}: expected {accepted} ({other}), got {name!r}")
