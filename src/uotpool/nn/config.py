"""The options of a pooling layer as nested plain data: strings, numbers, lists and dicts, fit for JSON."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from uotpool import checks, coefficients, solvers
from uotpool.nn.priors import FeaturePrior, SamplePrior

if TYPE_CHECKING:
    from uotpool.nn.pooling import UOTPooling

PLACES = ("device", "dtype")  # not part of a config


def of(pool: UOTPooling) -> dict[str, Any]:
    """Return the options of a layer, in the order of its arguments."""
    options: dict[str, Any] = {"dim": pool.dim, "solver": pool.solver.config()}
    options |= {"rho": None} | pool._coefficient_config()
    return options | {
        "p0": _prior("p0", pool.p0),
        "q0": _prior("q0", pool.q0),
        "reduce": pool.reduce,
        "impl": pool.impl,
    }


def options(cls: type[UOTPooling], config: Mapping[str, Any], replaced: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a layer from a config and the options that replace some of it."""
    if not isinstance(config, Mapping):
        checks.fail("config", "what get_config returned, a dict", config, TypeError)
    known = [name for name in inspect.signature(cls).parameters if name not in PLACES]
    for name in config:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else f", one of {', '.join(known)}"
            raise ValueError(f"config: expected options of {cls.__name__}{hint}, got {name!r}")
    if "dim" not in config and "dim" not in replaced:
        raise ValueError(f"config: expected dim, the number of features, got {sorted(config)}")
    arguments = {
        name: coefficients.from_config(value) for name, value in config.items() if name not in ("solver", "q0")
    }
    if "solver" in config:
        arguments["solver"] = solvers.from_config(config["solver"])
    if "q0" in config:
        q0 = config["q0"]
        dim = replaced.get("dim", config.get("dim"))
        places = {name: replaced[name] for name in PLACES if name in replaced}
        arguments["q0"] = SamplePrior(dim, **q0, **places) if isinstance(q0, Mapping) else q0
    return arguments | dict(replaced)


def _prior(name: str, prior: nn.Module | None) -> Any:
    if prior is None:
        return None
    if type(prior) is FeaturePrior:
        return "learned"
    if type(prior) is SamplePrior:
        hidden = prior.V.shape[0]
        return "learned" if hidden == prior.dim else {"hidden": hidden}
    hint = f"make the layer with {name}=... yourself, and load its state"
    raise ValueError(f"{name}: expected None or a prior of this package in a config ({hint}), got {prior}")


def plain(value: Any) -> Any:
    """Return tuples as lists, as JSON has them."""
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value
