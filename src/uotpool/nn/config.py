"""The options of a pooling layer as plain data: strings, numbers, lists and dicts, fit for JSON."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from uotpool import checks
from uotpool.nn.priors import FeaturePrior, SamplePrior

if TYPE_CHECKING:
    from uotpool.nn.pooling import UOTPooling

MODULE = "module"  # stands for a prior that is a module of the user's own, which no data can describe
PLACES = ("device", "dtype")  # where a layer lives is no part of what it is
# `repr` leaves these out: the usual values, and what a layer shows as parts of its own.
_USUAL: dict[str, tuple[Any, ...]] = {
    "scale": (None,),
    "formulation": ("exact",),
    "shared": (False,),
    "rho": ("log",),
    "readout": ("conditional",),
    "impl": ("auto",),
    "p0": ("learned", MODULE),
    "q0": ("learned", MODULE),
}


def of(pool: UOTPooling) -> dict[str, Any]:
    """Return the options of a layer, in the order of its arguments."""
    options, fixed = pool.options, pool.fixed_weights()
    weights = {name: fixed.get(name, pool.learned_as(name)) for name in ("alpha0", "alpha1", "alpha2", "rho")}
    found = {
        "dim": pool.dim,
        "solver": options.solver.name,
        "K": pool.K,
        "scale": None if pool.raw_scale is None else "feature",
        "formulation": options.formulation,
        "shared": pool.shared,
        **weights,
        "p0": _prior(pool.p0),
        "q0": _prior(pool.q0),
        "init": pool.init,
        "start": pool.start,
        "readout": options.readout,
        "tol": options.tol,
        "max_iter": options.max_iter,
        "impl": options.impl,
    }
    return {name: plain(value) for name, value in found.items()}


def options(cls: type[UOTPooling], config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a layer from a config and from options that take its place."""
    if not isinstance(config, Mapping):
        checks.fail("config", "what get_config returned, a dict", config, TypeError)
    known = [name for name in inspect.signature(cls).parameters if name not in PLACES]
    for name in config:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else f", one of {', '.join(known)}"
            raise ValueError(f"config: expected options of {cls.__name__}{hint}, got {name!r}")
    if "dim" not in config and "dim" not in given:
        raise ValueError(f"config: expected dim, the number of features, got {sorted(config)}")
    merged = {**config, **given}
    for name in ("p0", "q0"):
        if merged.get(name) == MODULE:
            raise ValueError(
                f"{name}: expected {name}=..., a module, beside a config of a layer that had one of the user's "
                "own, got none"
            )
    return merged


def text(config: Mapping[str, Any]) -> str:
    """Write a config as arguments, without those of the usual values."""
    parts = [str(config["dim"])]
    for name, value in config.items():
        if name != "dim" and value is not None and value not in _USUAL.get(name, ()):
            parts.append(f"{name}={value!r}")
    return ", ".join(parts)


def plain(value: Any) -> Any:
    """Return a number, tensor, list or mapping as plain data."""
    if isinstance(value, Tensor):
        return value.tolist()
    if hasattr(value, "item"):  # a NumPy number, which JSON does not know
        value = value.item()
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return value if value is None or isinstance(value, (bool, int, str)) else float(value)


def _prior(prior: nn.Module | None) -> Any:
    if prior is None:
        return "uniform"
    if type(prior) is FeaturePrior:
        return "learned"
    if type(prior) is SamplePrior:
        hidden = prior.V.shape[0]
        return "learned" if hidden == prior.dim else {"hidden": hidden}
    return MODULE
