"""Record which pools of a network were swapped as plain data, and swap them again from the record.

A state dict has the numbers of the new layers, but does not make the layers: a network built anew
has its old pools, and `from_pretrained` of transformers drops weights that it has no place for. So
a swap leaves a record, a list with one dict per layer, of strings, numbers and lists alone, fit for
JSON and `torch.load(weights_only=True)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from uotpool import checks
from uotpool.nn.images import AdaptiveUOTPool2d, UOTPool2d

RECORD = "uotpool_swaps"  # attribute of a network, and of its config where it is one of transformers
KINDS: dict[str, type[nn.Module]] = {kind.__name__: kind for kind in (AdaptiveUOTPool2d, UOTPool2d)}
_NOT_DATA = "not_recorded"
_ENTRY = {"name", "layer", "options", _NOT_DATA}
Model = TypeVar("Model", bound=nn.Module)


def restore_pools(model: Model, record: Sequence[Mapping[str, Any]] | None = None, **uot: Any) -> Model:
    """Put the layers of a recorded swap into a network that was built anew, ready for its state dict.

    Args:
        model: the network as it was before `replace_global_pool` or `replace_local_pools`; it is
            changed in place. Pools that are swapped already stay.
        record: the `model.uotpool_swaps` after the swap. Default: the record of `model` itself or
            of its `config`, which `save_pretrained` of transformers keeps.
        **uot: options that a record cannot hold, for all layers: a module as `p0` or `q0`.

    Returns:
        The model. New layers have random weights, and the device and dtype of the model's first
        parameter.
    """
    if not isinstance(model, nn.Module):
        checks.fail("model", "a network (nn.Module)", model, TypeError)
    entries = _validated(_recorded(model) if record is None else record)
    modules = dict(model.named_modules(remove_duplicate=False))
    like = next(iter(model.parameters()), torch.empty(0))
    new: dict[str, nn.Module] = {}
    for entry in entries:
        name, kind = entry["name"], KINDS[entry["layer"]]
        if not name or name not in modules:
            raise ValueError(f"record: expected names of layers of the model, got {name!r}")
        lost = [option for option in entry[_NOT_DATA] if option not in uot]
        if lost:
            raise ValueError(
                f"uot: expected {lost[0]}=..., a module, which no record can hold, for {name!r}, got none"
            )
        if not isinstance(modules[name], kind):
            new[name] = kind(**{"device": like.device, "dtype": like.dtype} | entry["options"] | uot)
    for name, layer in new.items():
        layer.train(modules[name].training)
        put(model, name, layer)
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

    Swapped.__name__ = cls.__name__  # for messages, and for `save_pretrained`, which writes the name
    model: Any = Swapped.from_pretrained(folder, **options)
    model.__class__ = cls
    return model


def remember(model: nn.Module, new: Mapping[str, tuple[type[nn.Module], dict[str, Any]]]) -> None:
    """Add layers, given by name with their class and options, to the record of a network."""
    entries = list(getattr(model, RECORD, []))
    for name, (kind, options) in new.items():
        kept = {key: value for key, value in options.items() if key not in ("device", "dtype")}
        lost = sorted(key for key, value in kept.items() if isinstance(value, nn.Module))
        data = {key: _data(value) for key, value in kept.items() if key not in lost}
        entries.append({"name": name, "layer": kind.__name__, "options": data, _NOT_DATA: lost})
    _remember(model, entries)


def put(model: nn.Module, where: str, layer: nn.Module) -> nn.Module:
    """Put this layer in the place of another one, under all names of that one; return the model."""
    old = model.get_submodule(where)
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if module is old:
            if not name:
                return layer
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, layer)
    return model


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
        good = isinstance(entry, Mapping) and set(entry) == _ENTRY and isinstance(entry["options"], Mapping)
        if not good or not isinstance(entry["name"], str) or not isinstance(entry[_NOT_DATA], list):
            checks.fail("record", accepted, entry)
        checks.one_of("record: layer", entry["layer"], tuple(KINDS))
    return list(record)


def _data(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    if hasattr(value, "item"):  # a numpy number, which JSON does not know
        value = value.item()
    if isinstance(value, Mapping):
        return {str(key): _data(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_data(inner) for inner in value]
    return value if value is None or isinstance(value, (bool, int, str)) else float(value)
