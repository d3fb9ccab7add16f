"""Record which pools of a network were swapped as plain data, and swap them again from the record.

A state dict has the numbers of the new layers, but does not make the layers: a network built anew
has its old pools, and `from_pretrained` of transformers drops weights that it has no place for. So
a swap leaves a record, a list with one dict per layer, of strings, numbers and lists alone, fit for
JSON and `torch.load(weights_only=True)`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from uotpool import checks
from uotpool.nn.config import MODULE, PLACES, plain
from uotpool.nn.images import AdaptiveUOTPool1d, AdaptiveUOTPool2d, AdaptiveUOTPool3d, UOTPool2d
from uotpool.nn.pooling import UOTPooling
from uotpool.nn.sites import ATTN_POOL
from uotpool.nn.tokens import OWN, TokenPool, put_beside

RECORD = "uotpool_swaps"  # attribute of a network, and of its config where it is one of transformers
_LAYERS = (AdaptiveUOTPool2d, UOTPool2d, AdaptiveUOTPool1d, AdaptiveUOTPool3d, TokenPool)
KINDS: dict[str, type[nn.Module]] = {kind.__name__: kind for kind in _LAYERS}
HOOKED = ("before", "after", "output")  # places of a `TokenPool` that takes the place of code, not of a layer
_NOT_DATA, _PLACE = "not_recorded", "place"
_ENTRY = {"name", "layer", "options", _NOT_DATA}
Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True)
class New:
    """A layer to be made, with its place: "in" that of a module, or before, after or at the output of one."""

    kind: type[nn.Module]
    options: dict[str, Any]
    place: str = "in"
    was: str = ""  # what it takes the place of


def restore_pools(model: Model, record: Sequence[Mapping[str, Any]] | None = None, **uot: Any) -> Model:
    """Put the layers of a recorded swap into a network that was built anew, ready for its state dict.

    Args:
        model: the network as it was before `replace_global_pool` or `replace_local_pools`; it is
            changed in place. Pools that are swapped already stay.
        record: the `model.uotpool_swaps` after the swap. Default: the record of `model` itself or
            of its `config`, which `save_pretrained` of transformers keeps.
        **uot: options of `UOTPooling` in place of recorded ones, for all layers, or that a record
            cannot hold: a module of your own as `p0` or `q0`.

    Returns:
        The model. New layers have random weights, and the device and dtype of the model's first
        parameter.
    """
    check_network(model)
    check_options(uot)
    entries = _validated(_recorded(model) if record is None else record)
    modules = dict(model.named_modules(remove_duplicate=False))
    like = next(iter(model.parameters()), torch.empty(0))
    new: dict[str, nn.Module] = {}
    for entry in entries:
        name, kind, place = entry["name"], KINDS[entry["layer"]], entry.get(_PLACE, "in")
        if place in HOOKED:
            known, there = name in modules, getattr(modules.get(name), OWN, None)
        else:
            known, there = bool(name) and name in modules, modules.get(name)
            known = known or _is_free(modules, name)
        if not known:
            raise ValueError(f"record: expected names of layers of the model, got {name!r}")
        if place == "output" and type(modules[name]).__module__.startswith("torch.nn."):
            raise ValueError(
                "record: place: expected 'output' at a model of transformers, which returns a pooled output "
                f"beside its hidden state, got it at {name!r}, {checks.describe(modules[name])}"
            )
        lost = [option for option in entry[_NOT_DATA] if option not in uot]
        if lost:
            raise ValueError(
                f"uot: expected {lost[0]}=..., a module, which no record can hold, for {name!r}, got none"
            )
        if not isinstance(there, kind):
            check_free(modules, name, place)
            layer = kind(**{"device": like.device, "dtype": like.dtype} | entry["options"] | uot)
            new[name] = layer.train(model.training if there is None else there.training)
    places = {entry["name"]: entry.get(_PLACE, "in") for entry in entries}
    for name, layer in new.items():
        put(model, name, layer, places[name])
    # Layers that stay, with these options or others, and layers that are not named keep their entries.
    kept = {entry["name"]: entry for entry in getattr(model, RECORD, [])}
    for entry in entries:
        if entry["name"] in new or entry["name"] not in kept:
            kept[entry["name"]] = dict(entry)
    _remember(model, list(kept.values()))
    return model


def load_swapped(cls: type[Model], folder: Any, **options: Any) -> Model:
    """Load a swapped model of transformers that `save_pretrained` wrote, with the weights of our layers.

    Args:
        cls: class of the model, for example `ResNetForImageClassification`; not an Auto class.
        folder: the folder or name for `cls.from_pretrained`.
        **options: options of `cls.from_pretrained`.
    """
    if not (isinstance(cls, type) and issubclass(cls, nn.Module) and hasattr(cls, "from_pretrained")):
        checks.fail("cls", "a class of models of transformers (not an Auto class)", cls, TypeError)

    class Swapped(cls):  # type: ignore[valid-type, misc]
        """The model with its pools swapped before transformers looks for the weights."""

        def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__(config, *args, **kwargs)
            restore_pools(self)

    # The name is for messages and for `save_pretrained`, which writes it. The module tells transformers that
    # the weights have the names that its own class has, some of which are others in a file.
    Swapped.__name__, Swapped.__module__ = cls.__name__, cls.__module__
    model: Any = Swapped.from_pretrained(folder, **options)
    model.__class__ = cls
    return model


def ours(model: nn.Module) -> dict[str, nn.Module]:
    """Return the layers of a network that a swap makes, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, _LAYERS)}


def check_network(model: Any) -> None:
    """Refuse what is no network, and one that is compiled, whose program would go on without the new layers."""
    if not isinstance(model, nn.Module):
        checks.fail("model", "a network (nn.Module)", model, TypeError)
    for name, module in model.named_modules():
        # What torch.compile returns holds the network as `_orig_mod`; `module.compile()` leaves the other mark.
        if "_orig_mod" in module._modules or getattr(module, "_compiled_call_impl", None) is not None:
            at = f"whose {name!r} is compiled" if name else "that is compiled"
            raise ValueError(
                "model: expected a network that is not compiled yet, as a compiled program does not see new "
                f"layers, got one {at}: swap before compiling"
            )


def check_options(uot: Mapping[str, Any]) -> None:
    """Refuse options that are none of the pooling's: the network decides the shapes of the layers."""
    known = [option for option in inspect.signature(UOTPooling).parameters if option != "dim"]
    for option in uot:
        if option not in known:
            raise ValueError(f"uot: expected options of UOTPooling, one of {', '.join(known)}, got {option!r}")


def check_free(modules: Mapping[str, nn.Module], name: str, place: str) -> None:
    """Refuse a place beside a module that has something else under the name of our layer."""
    if place in HOOKED and hasattr(modules[name], OWN):
        raise ValueError(
            f"model: expected {name!r} without an attribute {OWN!r}, the name of the new layer there, got "
            f"{checks.describe(getattr(modules[name], OWN))}: give it another name"
        )


def remember(model: nn.Module, new: Mapping[str, New], layers: Mapping[str, nn.Module]) -> None:
    """Add layers, given by name, to the record of a network.

    Every option is recorded, defaults too, so that a saved swap stays what it is if these change.
    """
    entries = list(getattr(model, RECORD, []))
    for name, made in new.items():
        pool: Any = layers[name].pool
        config = pool.get_config()
        lost = sorted(option for option, value in config.items() if value == MODULE)
        shape = {key: plain(value) for key, value in made.options.items() if key not in (*config, *PLACES)}
        data = shape | {option: value for option, value in config.items() if option not in lost}
        entry = {"name": name, "layer": made.kind.__name__, "options": data, _NOT_DATA: lost}
        entries.append(entry if made.place == "in" else entry | {_PLACE: made.place})
    _remember(model, entries)


def put(model: nn.Module, where: str, layer: nn.Module, place: str = "in") -> None:
    """Put this layer in the place of another one, under all its names, or beside it."""
    if place in HOOKED:
        assert isinstance(layer, TokenPool)
        put_beside(model.get_submodule(where), layer, place)
        return
    parent, _, own = where.rpartition(".")
    if (
        getattr(model.get_submodule(parent), own, model) is None
    ):  # timm's transformers have an empty `attn_pool`
        setattr(model.get_submodule(parent), own, layer)
        return
    old = model.get_submodule(where)
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if module is old:
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, layer)


def _is_free(modules: Mapping[str, nn.Module], name: str) -> bool:
    """Return whether this is the empty place for a pooling module of one of timm's transformers."""
    parent, _, own = name.rpartition(".")
    return own == ATTN_POOL and parent in modules and getattr(modules[parent], own, parent) is None


def _remember(model: nn.Module, entries: list[dict[str, Any]]) -> None:
    setattr(model, RECORD, entries)
    config = getattr(model, "config", None)
    if callable(getattr(config, "save_pretrained", None)):
        setattr(config, RECORD, entries)


def _recorded(model: nn.Module) -> Any:
    for holder in (model, getattr(model, "config", None)):
        found = getattr(holder, RECORD, None)
        if found is not None:
            return found
    raise ValueError(
        f"record: expected what `model.{RECORD}` was after the swap, as neither the model nor its config has "
        "one, got None"
    )


def _validated(record: Any) -> list[Any]:
    """Validate a record, which may come from somebody else's file: it names our layers and nothing else."""
    accepted = f"a list of dicts with {', '.join(sorted(_ENTRY))}, as a swap leaves it"
    if not isinstance(record, (list, tuple)):
        checks.fail("record", accepted, record, TypeError)
    for entry in record:
        good = isinstance(entry, Mapping) and set(entry) - {_PLACE} == _ENTRY
        good = good and isinstance(entry["options"], Mapping)
        if not good or not isinstance(entry["name"], str) or not isinstance(entry[_NOT_DATA], list):
            checks.fail("record", accepted, entry)
        checks.one_of("record: layer", entry["layer"], tuple(KINDS))
        if _PLACE in entry:
            checks.one_of("record: place", entry[_PLACE], HOOKED)
            checks.one_of("record: layer", entry["layer"], (TokenPool.__name__,))
    return list(record)
