"""Run a network on an example and see which pools it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from uotpool import checks
from uotpool.nn.images import AdaptiveUOTPool1d, AdaptiveUOTPool2d, AdaptiveUOTPool3d
from uotpool.nn.last import last_pools
from uotpool.nn.restore import check_network
from uotpool.nn.sites import Site
from uotpool.nn.tokens import first
from uotpool.nn.watch import Watch, quiet

_SIZE = 224  # of the picture that is sent through a network if none is given and it tells no other size
ADAPTIVE = (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
FIXED = (nn.AvgPool2d, nn.MaxPool2d)
# Adaptive average pools, with the number of spatial dimensions and the layer for their place.
_ADAPTIVE_AVERAGE: dict[type[nn.Module], tuple[int, type[nn.Module]]] = {
    nn.AdaptiveAvgPool1d: (1, AdaptiveUOTPool1d),
    nn.AdaptiveAvgPool2d: (2, AdaptiveUOTPool2d),
    nn.AdaptiveAvgPool3d: (3, AdaptiveUOTPool3d),
}
_TORCHS = (*ADAPTIVE, *FIXED, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool3d)


@dataclass
class Seen:
    """A pool of the network that is a layer of torch, its inputs and its outputs."""

    name: str
    layer: nn.Module
    inputs: list[Tensor] = field(default_factory=list)  # same shape, device and dtype, but no values
    by_keyword: bool = False  # whether it gets them by a keyword, which our layers do not know
    outputs: list[torch.Size] = field(default_factory=list)

    @property
    def is_average(self) -> bool:
        return isinstance(self.layer, (nn.AvgPool2d, *_ADAPTIVE_AVERAGE))

    @property
    def axes(self) -> int:
        """The number of spatial dimensions."""
        return next((axes for kind, (axes, _) in _ADAPTIVE_AVERAGE.items() if isinstance(self.layer, kind)), 2)

    @property
    def has_positions(self) -> bool:
        """Whether there is more than one position to pool."""
        return any(x.shape[-self.axes :].numel() > 1 for x in self.inputs)

    @property
    def new(self) -> type[nn.Module]:
        """The layer that takes the place of a global average."""
        return next(new for axes, new in _ADAPTIVE_AVERAGE.values() if axes == self.axes)

    @property
    def is_global(self) -> bool:
        """Whether the pool averages over all positions.

        A max pool that happens to see one window is a local pool.
        """
        if isinstance(self.layer, (*ADAPTIVE, *_ADAPTIVE_AVERAGE)):
            size: Any = self.layer.output_size
            return set(size if isinstance(size, (tuple, list)) else (size,)) == {1}
        if not isinstance(self.layer, nn.AvgPool2d):
            return False
        reach = [k - p for k, p in zip(pair(self.layer.kernel_size), pair(self.layer.padding), strict=True)]
        return all(shape[-2:] == (1, 1) for shape in self.outputs) and all(
            side <= most for x in self.inputs for side, most in zip(x.shape[-2:], reach, strict=True)
        )

    def options(self, uot: dict[str, Any]) -> dict[str, Any]:
        """Return options for a new layer: the channels, device and dtype of the input of the pool."""
        if self.by_keyword:
            raise ValueError(
                f"model: expected a pool that gets its input by position, as pool(x), but {self.name!r} gets "
                "it by keyword"
            )
        kinds = {(x.shape[-1 - self.axes], x.device, x.dtype) for x in self.inputs}
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
            padded = pair(layer.padding) != (0, 0) and layer.count_include_pad
            if padded or layer.divisor_override is not None:
                raise ValueError(
                    f"start: expected none, as {self.name!r} is {layer!r}, which counts padding as zeros or "
                    'divides by a number of its own; "mean" is the mean of what is there'
                )


Pool = Seen | Site


@dataclass
class Look:
    """What one run of a network shows."""

    model: nn.Module
    example: Any
    pools: dict[str, Seen]  # layers of torch that it uses, by name
    watch: Watch

    def run(self) -> Any:
        """Run the network again."""
        return self.model(self.example)

    def last(self, found: Mapping[str, Pool]) -> dict[str, Pool]:
        """Return those pools that are the last ones of the network; one of a single position pools nothing."""
        pools = {n: p for n, p in found.items() if not isinstance(p, Seen) or p.has_positions} or found
        modules = {name: self.model.get_submodule(name) for name in pools}
        with quiet(self.model):
            names = last_pools(self.model, self.example, modules)
        return {name: pools[name] for name in names}


def look(model: nn.Module, example: Tensor | None) -> Look:
    """Run the network on an example; return what it shows of its pools."""
    check_network(model)
    if next(iter(model.parameters()), None) is None:
        checks.fail("model", "a network with parameters", model)
    picture = _picture(model) if example is None else example
    pools = {n: Seen(n, m) for n, m in model.named_modules() if _is_torchs(m)}
    watch = Watch(model)
    handles = [s.layer.register_forward_hook(_recorder(s), with_kwargs=True) for s in pools.values()]
    handles += watch.hooks()
    try:
        with quiet(model):
            model(picture)
    except Exception as error:
        accepted = "to be given, for this network" if example is None else "an input that the network takes"
        raise ValueError(
            f"example: expected {accepted}; it failed on {checks.describe(picture)}: {error}"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    used = {name: seen for name, seen in pools.items() if seen.inputs}
    return Look(model, picture, used, watch)


def _is_torchs(module: nn.Module) -> bool:
    """Return whether a pool is torch's own. A subclass with another `forward` may pad as it likes."""
    known = next((kind for kind in _TORCHS if isinstance(module, kind)), None)
    return known is not None and type(module).forward is known.forward


def _recorder(seen: Seen) -> Callable[..., None]:
    def record(_layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        x = first(args, kwargs)
        seen.by_keyword |= not args
        seen.inputs.append(x.new_empty(()).expand(x.shape))
        seen.outputs.append((output[0] if isinstance(output, tuple) else output).shape)

    return record


def _picture(model: nn.Module) -> Tensor:
    """Return noise, on which tokens differ, of the size that the network was made for."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and not isinstance(module.weight, nn.UninitializedParameter):
            noise = torch.randn(
                1, module.in_channels, *_size(model), generator=torch.Generator().manual_seed(0)
            )
            return noise.to(module.weight)
    raise ValueError("example: expected to be given, for a network without an nn.Conv2d to tell it, got None")


def _size(model: nn.Module) -> tuple[int, int]:
    """Return the height and width that a transformer says it was made for, or the usual ones."""
    for module in model.modules():
        for name in ("img_size", "image_size"):
            size = pair(getattr(module, name, None))
            if all(isinstance(side, int) for side in size):
                return size
    return _SIZE, _SIZE


def pair(size: Any) -> tuple[Any, Any]:
    """Return a height and a width."""
    height, width = size if isinstance(size, (tuple, list)) and len(size) == 2 else (size, size)
    return height, width
