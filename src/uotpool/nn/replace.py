"""Swap the pooling layers of a finished network."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from uotpool import checks
from uotpool.nn.images import AdaptiveUOTPool2d, UOTPool2d
from uotpool.nn.restore import put, remember

Report = Callable[[str], None]
_New = tuple[type[nn.Module], dict[str, Any]]  # class and options of a layer

_log = logging.getLogger("uotpool")
_SIZE = 224  # of the picture that is sent through a network if none is given
_ADAPTIVE = (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
_FIXED = (nn.AvgPool2d, nn.MaxPool2d)


def replace_global_pool(
    model: nn.Module,
    *,
    name: str | None = None,
    example: Tensor | None = None,
    report: Report | None = None,
    **uot: Any,
) -> nn.Module:
    """Put an `AdaptiveUOTPool2d` in the place of a network's global average pool.

    The network is run once on an example, in eval mode and without gradients, to see which pool is
    global and how many channels it gets; nothing else in it changes. It may be a ResNet of
    transformers, torchvision or timm, or any other network that pools by a layer
    `nn.AdaptiveAvgPool2d(1)` or `nn.AvgPool2d`.

    Args:
        model: the network, which is changed in place.
        name: name of the pool, where there are several (squeeze-and-excitation blocks have one
            each).
        example: input of the network, a batch of one. Default: zeros (1, C, 224, 224), with the C
            of the first convolution.
        report: called with a line on each layer that was swapped; default: the logger "uotpool",
            level INFO.
        **uot: options of `UOTPooling`. With `start="mean"` the network computes what it did before,
            and learns from there.

    Returns:
        The model. Parameters of the new layer have the device and dtype of its input.
        `model.uotpool_swaps` records the swap as plain data, from which `restore_pools` makes the
        layers again.
    """
    seen = _look(model, example)
    found = {n: s for n, s in seen.items() if s.is_global and s.is_average}
    if name is not None:
        if name not in found:
            raise ValueError(f"name: expected one of the global average pools {sorted(found)}, got {name!r}")
        found = {name: found[name]}
    if not found:
        accepted = (
            "one global average pool as a layer (nn.AdaptiveAvgPool2d(1), or nn.AvgPool2d over all positions)"
        )
        raise ValueError(f"model: expected {accepted}, got {_others(model, seen)}")
    if len(found) > 1:
        raise ValueError(f"model: expected one global average pool, got {_list(found)}; say which by name=...")
    (pool,) = found.values()
    pool.check_start(uot)
    return _swap(model, {pool.name: (AdaptiveUOTPool2d, {"output_size": 1, **pool.options(uot)})}, report)


def replace_local_pools(
    model: nn.Module,
    *,
    names: Collection[str] | None = None,
    example: Tensor | None = None,
    report: Report | None = None,
    **uot: Any,
) -> nn.Module:
    """Put a `UOTPool2d` of the same geometry in the place of each max and average pool inside a network.

    Args:
        model: the network, which is changed in place.
        names: names of the pools to swap; default: all that are not global.
        example, report: as in `replace_global_pool`.
        **uot: options of `UOTPooling`. Each layer has weights of its own. `start="mean"` is for
            average pools.

    Returns:
        The model. Parameters of the new layers have the device and dtype of their inputs.
    """
    if names is not None and (isinstance(names, str) or not isinstance(names, Collection)):
        checks.fail("names", "a list of names of layers", names, TypeError)
    seen = _look(model, example)
    found = {n: s for n, s in seen.items() if not s.is_global}
    for name in names or ():
        if name not in found:
            raise ValueError(f"names: expected some of the local pools {sorted(found)}, got {name!r}")
    if names is not None:
        found = {n: s for n, s in found.items() if n in names}
    if not found:
        raise ValueError(
            "model: expected at least one max or average pool as a layer that is not global, got "
            f"{_others(model, seen)}"
        )
    return _swap(model, {n: _local(s, uot) for n, s in found.items()}, report)


@dataclass
class _Seen:
    """A pool of the network, its inputs and its outputs."""

    name: str
    layer: nn.Module
    inputs: list[Tensor] = field(default_factory=list)  # same shape, device and dtype, but no values
    outputs: list[torch.Size] = field(default_factory=list)

    @property
    def is_average(self) -> bool:
        return isinstance(self.layer, (nn.AvgPool2d, nn.AdaptiveAvgPool2d))

    @property
    def is_global(self) -> bool:
        """Whether the pool averages over all positions.

        A max pool that happens to see one window is a local pool.
        """
        if isinstance(self.layer, _ADAPTIVE):
            return _pair(self.layer.output_size) == (1, 1)
        if not isinstance(self.layer, nn.AvgPool2d):
            return False
        reach = [k - p for k, p in zip(_pair(self.layer.kernel_size), _pair(self.layer.padding), strict=True)]
        return all(shape[-2:] == (1, 1) for shape in self.outputs) and all(
            side <= most for x in self.inputs for side, most in zip(x.shape[-2:], reach, strict=True)
        )

    def options(self, uot: dict[str, Any]) -> dict[str, Any]:
        """Return options for a new layer: the channels, device and dtype of the input of the pool."""
        kinds = {(x.shape[-3], x.device, x.dtype) for x in self.inputs}
        if len(kinds) > 1:
            raise ValueError(
                "model: expected a pool that gets one number of channels, device and dtype, but "
                f"{self.name!r} gets {sorted(map(str, kinds))}"
            )
        ((dim, device, dtype),) = kinds
        return {"dim": dim, "device": device, "dtype": dtype} | uot

    def check_start(self, uot: dict[str, Any]) -> None:
        """Refuse to start as the mean where the old layer computes something else."""
        layer = self.layer
        if uot.get("start") != "mean":
            return
        if not self.is_average:
            raise ValueError(
                f'start: expected none, as "mean" begins as average pooling and {self.name!r} is {layer!r}; '
                "names=... can leave it out"
            )
        if isinstance(layer, nn.AvgPool2d):
            padded = _pair(layer.padding) != (0, 0) and layer.count_include_pad
            if padded or layer.divisor_override is not None:
                raise ValueError(
                    f"start: expected none, as {self.name!r} is {layer!r}, which counts padding as zeros or "
                    'divides by a number of its own; "mean" is the mean of what is there'
                )


def _look(model: nn.Module, example: Tensor | None) -> dict[str, _Seen]:
    """Run the network on an example; return the pools that it uses, by name."""
    if not isinstance(model, nn.Module):
        checks.fail("model", "a network (nn.Module)", model, TypeError)
    if next(iter(model.parameters()), None) is None:
        checks.fail("model", "a network with parameters", model)
    picture = _picture(model) if example is None else example
    pools = {n: _Seen(n, m) for n, m in model.named_modules() if _is_torchs(m)}
    handles = [s.layer.register_forward_hook(_recorder(s)) for s in pools.values()]
    modes = [(m, m.training) for m in model.modules()]
    try:
        model.eval()
        with torch.no_grad():
            model(picture)
    except Exception as error:
        accepted = "to be given, for this network" if example is None else "an input that the network takes"
        raise ValueError(
            f"example: expected {accepted}; it failed on {checks.describe(picture)}: {error}"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
        for module, training in modes:
            module.training = training
    return {name: seen for name, seen in pools.items() if seen.inputs}


def _is_torchs(module: nn.Module) -> bool:
    """Return whether a pool is torch's own. A subclass with another `forward` may pad as it likes."""
    known = next((kind for kind in _ADAPTIVE + _FIXED if isinstance(module, kind)), None)
    return known is not None and type(module).forward is known.forward


def _recorder(seen: _Seen) -> Callable[[nn.Module, Any, Any], None]:
    def record(_layer: nn.Module, inputs: Any, output: Any) -> None:
        seen.inputs.append(inputs[0].new_empty(()).expand(inputs[0].shape))
        seen.outputs.append((output[0] if isinstance(output, tuple) else output).shape)

    return record


def _picture(model: nn.Module) -> Tensor:
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and not isinstance(module.weight, nn.UninitializedParameter):
            return module.weight.new_zeros(1, module.in_channels, _SIZE, _SIZE)
    raise ValueError("example: expected to be given, for a network without an nn.Conv2d to tell it, got None")


def _pair(size: Any) -> tuple[Any, Any]:
    height, width = size if isinstance(size, (tuple, list)) else (size, size)
    return height, width


def _local(seen: _Seen, uot: dict[str, Any]) -> _New:
    layer = seen.layer
    seen.check_start(uot)
    indices = isinstance(layer, (nn.MaxPool2d, nn.AdaptiveMaxPool2d)) and layer.return_indices
    if indices or (isinstance(layer, nn.MaxPool2d) and _pair(layer.dilation) != (1, 1)):
        raise ValueError(f"model: {seen.name!r} is {layer!r}, and UOT pooling has no dilation and no indices")
    options = seen.options(uot)
    if isinstance(layer, _ADAPTIVE):
        return AdaptiveUOTPool2d, {"output_size": _pair(layer.output_size), **options}
    assert isinstance(layer, _FIXED)
    geometry = {name: _pair(getattr(layer, name)) for name in ("kernel_size", "stride", "padding")}
    return UOTPool2d, {**geometry, "ceil_mode": layer.ceil_mode, **options}


def _swap(model: nn.Module, new: dict[str, _New], report: Report | None) -> nn.Module:
    say = report or _log.info
    layers = {where: kind(**options) for where, (kind, options) in new.items()}  # all or none
    remember(model, new)
    for where, layer in layers.items():
        old = model.get_submodule(where)
        layer.train(old.training)
        model = put(model, where, layer)
        say(f"{where or 'the model itself'}: {old!r} -> {type(layer).__name__}({_inside(layer)})")
    return model


def _inside(layer: nn.Module) -> str:
    pool: Any = layer.pool
    return f"{pool.extra_repr()}; {layer.extra_repr()}"


def _others(model: nn.Module, seen: dict[str, _Seen]) -> str:
    """Say what the network has instead of the pool that was looked for, and what can be done."""
    ours = {n: m for n, m in model.named_modules() if isinstance(m, (AdaptiveUOTPool2d, UOTPool2d))}
    if ours:
        names = ", ".join(f"{name} ({type(layer).__name__})" for name, layer in ours.items())
        rest = f"; besides, it has {_list(seen)}" if seen else ""
        return f"a model whose pools were swapped already: {names}{rest}"
    if seen:
        return _list(seen)
    return (
        "a network without a pooling layer: one that averages in `forward`, or takes a class token as ViT "
        "does, has none to swap; pool its positions or tokens by a UOTPooling of your own"
    )


def _list(seen: dict[str, _Seen]) -> str:
    return ", ".join(f"{name} ({seen[name].layer!r})" for name in sorted(seen)) or "no pooling layers"
