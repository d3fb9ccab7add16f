"""Replace the pooling layers of a network by UOT pooling."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from uotpool import checks
from uotpool.coefficients import Learned
from uotpool.nn.images import AdaptiveUOTPool1d, AdaptiveUOTPool2d, AdaptiveUOTPool3d, UOTPool2d
from uotpool.nn.pooling import UOTPooling

# Defaults with which a layer starts as the mean that it replaces.
AS_MEAN: dict[str, Any] = {"scale": Learned(0.0)}
_SIZE = 224  # of the image of noise that is the default example
_ADAPTIVE: dict[type[nn.Module], tuple[int, type[nn.Module]]] = {
    nn.AdaptiveAvgPool1d: (1, AdaptiveUOTPool1d),
    nn.AdaptiveAvgPool2d: (2, AdaptiveUOTPool2d),
    nn.AdaptiveAvgPool3d: (3, AdaptiveUOTPool3d),
}
_BY_HAND = """Where {name} pools by a call, write in its class or a subclass
    self.pool = AdaptiveUOTPool2d(channels, {mean})  # in __init__
    x = self.pool(x).flatten(1)  # in forward, for F.adaptive_avg_pool2d(x, 1).flatten(1) or x.mean((2, 3))
    x = self.pool(x)  # for x.mean(1) of tokens (B, N, D), with self.pool = UOTPooling(D, {mean})"""


def replace_global_pool(
    model: nn.Module, name: str | None = None, example: Tensor | None = None, **options: Any
) -> nn.Module:
    """Replace the global average pool of a network by UOT pooling, and return the network.

    The new layer starts as the mean, so that the network computes what it did before. The network is
    run once or twice in eval mode to find the pools that it calls and their numbers of channels.

    Args:
        model: the network, which is changed in place. Its pool is a module: `nn.AdaptiveAvgPool1d`,
            `2d` or `3d` of output 1, an `nn.AvgPool2d` over all positions, or timm's average.
        name: dotted name of the pool, or of a module with this pool and no other. Needed where the
            network calls several pools, such as those of squeeze-and-excitation gates.
        example: an input of the network. With it, the last of several pools is replaced. Default: an image
            of noise, 224 x 224.
        **options: options of `UOTPooling`.

    To undo the swap, set the old layer: `model.avgpool = nn.AdaptiveAvgPool2d(1)`. To load a swapped
    network, build it, swap by the same call, and call `load_state_dict`.

    Example:
        >>> pool = torch.nn.AdaptiveAvgPool2d(1)
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), pool, torch.nn.Flatten())
        >>> x = torch.rand(1, 3, 32, 32)
        >>> before = model(x)
        >>> model = replace_global_pool(model)
        >>> type(model[1]).__name__
        'AdaptiveUOTPool2d'
        >>> torch.allclose(model(x), before, atol=1e-5)
        True
    """
    if name is not None and not isinstance(name, str):
        checks.fail("name", "the dotted name of a pooling layer", name, TypeError)
    default = example is None
    example = _checked(model, example)
    inputs = _inputs(model, example, (*_ADAPTIVE, nn.AvgPool2d))
    modules = dict(model.named_modules(remove_duplicate=False))
    pools = {n: x for n, x in inputs.items() if _is_global(modules[n], x)}
    if name is not None:
        inside = {n for n in pools if modules[n] is modules.get(name) or n.startswith(f"{name}.")}
        if len(inside) != 1:
            checks.fail("name", f"one of the global average pools {sorted(pools)}", name)
        (chosen,) = inside
    elif not pools:
        raise ValueError(f"model: expected a global average pool as a layer, got none. {_by_hand(model)}")
    elif len(pools) > 1 and default:
        checks.fail("name", f"one of {list(pools)}, or an example to take the last that is called", name)
    else:
        chosen = list(pools)[-1]
        if not _decides_alone(model, modules[chosen], example):
            raise ValueError(
                f"name: expected name={chosen!r} or that of another pool, as {chosen!r} does not decide the "
                f"output alone, such as the pool of a gate, got None. {_by_hand(model)}"
            )
    _put(model, {chosen: _global_layer(chosen, modules[chosen], pools[chosen], options)})
    return model


def replace_local_pools(
    model: nn.Module, names: Collection[str] | None = None, example: Tensor | None = None, **options: Any
) -> nn.Module:
    """Replace max and average pools by `UOTPool2d` of the same geometry, and return the network.

    Args:
        model: the network, which is changed in place.
        names: names of the pools to replace. Default: all `nn.MaxPool2d` and `nn.AvgPool2d` whose windows do
            not cover all positions.
        example: as in `replace_global_pool`.
        **options: options of `UOTPooling`. A layer in place of an average pool starts as the mean; none
            starts exactly as the maximum.
    """
    if names is not None and (isinstance(names, str) or not isinstance(names, Collection)):
        checks.fail("names", "a list of names of layers", names, TypeError)
    example = _checked(model, example)
    inputs = _inputs(model, example, (nn.MaxPool2d, nn.AvgPool2d))
    modules = dict(model.named_modules(remove_duplicate=False))
    local = {n: x for n, x in inputs.items() if not _is_global(modules[n], x)}
    if names is None and not local:
        raise ValueError("model: expected nn.MaxPool2d or nn.AvgPool2d that are not global, got none")
    for name in names or ():
        if name not in local:
            checks.fail("names", f"some of the local pools {sorted(local)}", name)
    chosen = local if names is None else {n: x for n, x in local.items() if n in names}
    _put(model, {n: _local_layer(n, modules[n], x, options) for n, x in chosen.items()})
    return model


def _checked(model: Any, example: Any) -> Tensor:
    """Return the example, or an image of noise if there is none."""
    if not isinstance(model, nn.Module):
        checks.fail("model", "a network (nn.Module)", model, TypeError)
    for module in model.modules():
        # torch.compile(model) has the network as `_orig_mod`; `model.compile()` sets the other attribute.
        if "_orig_mod" in module._modules or getattr(module, "_compiled_call_impl", None) is not None:
            raise ValueError("model: expected a network that is not compiled yet: swap first, then compile")
    if example is None:
        conv = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
        if conv is None:
            checks.fail("example", "an input of the network, which has no nn.Conv2d to tell its channels", None)
        assert conv is not None
        return _noise((1, conv.in_channels, _SIZE, _SIZE), conv.weight)
    if not isinstance(example, Tensor):
        checks.fail("example", "a tensor, an input of the network", example, TypeError)
    return example


def _noise(shape: tuple[int, ...], like: Tensor, seed: int = 0) -> Tensor:
    # A separate generator, so that torch's own keeps its state.
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(like)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Switch to eval mode without gradients; restore the mode of each module afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training


def _inputs(model: nn.Module, example: Tensor, kinds: Collection[type]) -> dict[str, list[Tensor]]:
    """Run the network and return the inputs of each pool that it calls, in the order of their last calls."""
    inputs: dict[str, list[Tensor]] = {}

    def hook_of(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            inputs[name] = [*inputs.pop(name, []), next(iter((*args, *kwargs.values())))]

        return hook

    pools = {name: m for name, m in model.named_modules() if name and (type(m) in kinds or _is_timms(m))}
    handles = [m.register_forward_pre_hook(hook_of(name), with_kwargs=True) for name, m in pools.items()]
    try:
        with _evaluating(model):
            model(example)
    except Exception as error:
        shown = checks.describe(example)
        raise ValueError(
            f"example: expected an input of the network, which fails on {shown}: {error}"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    return inputs


def _is_timms(module: nn.Module) -> bool:
    """Whether this is timm's global average pool, whose input has channels second or last."""
    return type(module).__name__ == "FastAdaptiveAvgPool" and type(module).__module__.startswith("timm.")


def _is_global(pool: Any, inputs: list[Tensor]) -> bool:
    if type(pool) in _ADAPTIVE:
        size = pool.output_size
        return set(size if isinstance(size, (tuple, list)) else (size,)) == {1}
    if isinstance(pool, nn.AvgPool2d):
        plain = _pair(pool.padding) == (0, 0) and pool.divisor_override is None
        return plain and all(x.shape[-2:] == _pair(pool.kernel_size) for x in inputs)
    return _is_timms(pool)


def _decides_alone(model: nn.Module, pool: nn.Module, example: Tensor) -> bool:
    """Whether the output of the network depends on its input through this pool only, not as with a gate.

    A second input runs with the pooled output of the first. Without values to compare the answer is yes.
    """
    if example.is_meta or not example.is_floating_point():
        return True
    outputs: list[Tensor] = []

    def first_output(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
        outputs.append(output)
        return outputs[0]

    other = _noise(tuple(example.shape), example, seed=1)
    with _evaluating(model), pool.register_forward_hook(first_output):
        before, after = list(_tensors(model(example))), list(_tensors(model(other)))
    same = (
        torch.allclose(a, b, rtol=1e-4, atol=0.0, equal_nan=True) for a, b in zip(before, after, strict=True)
    )
    return bool(before) and all(same)


def _tensors(output: Any) -> Iterator[Tensor]:
    """Yield the tensors of an output, which may be in tuples, lists, dicts and dataclasses."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        yield from _tensors(list(output.values()))
    elif isinstance(output, (tuple, list)):
        for part in output:
            yield from _tensors(part)
    elif is_dataclass(output):
        yield from _tensors(vars(output))


def _layer(
    name: str, new: type[nn.Module], inputs: list[Tensor], axis: int, options: Mapping[str, Any], *shape: Any
) -> nn.Module:
    """Return a layer for inputs with channels along `axis`, with their device and dtype."""
    widths = {x.shape[axis] for x in inputs}
    if len(widths) > 1:
        raise ValueError(f"model: expected {name!r} to get one number of channels, got {sorted(widths)}")
    return new(widths.pop(), *shape, **{"device": inputs[0].device, "dtype": inputs[0].dtype, **options})


def _global_layer(name: str, old: Any, inputs: list[Tensor], options: Mapping[str, Any]) -> nn.Module:
    options = AS_MEAN | dict(options)
    if _is_timms(old) and tuple(old.dim) == (1, 2):  # (B, H, W, C)
        pool = _layer(name, UOTPooling, inputs, -1, options)
        shape = () if old.flatten else (nn.Unflatten(1, (1, 1, -1)),)
        return nn.Sequential(nn.Flatten(1, 2), pool, *shape)
    axes, new = _ADAPTIVE.get(type(old), (2, AdaptiveUOTPool2d))
    pool = _layer(name, new, inputs, -1 - axes, options, 1)
    return nn.Sequential(pool, nn.Flatten(1)) if getattr(old, "flatten", False) else pool


def _local_layer(name: str, old: Any, inputs: list[Tensor], options: Mapping[str, Any]) -> nn.Module:
    if isinstance(old, nn.MaxPool2d):
        if old.return_indices or _pair(old.dilation) != (1, 1):
            raise ValueError(f"names: expected pools without indices and dilation, got {name!r}: {old}")
    else:
        options = AS_MEAN | dict(options)
        counts_padding = old.count_include_pad and _pair(old.padding) != (0, 0)
        if counts_padding or old.divisor_override is not None:
            accepted = "average pools with count_include_pad=False or no padding, and without divisor_override"
            raise ValueError(f"names: expected {accepted}, got {name!r}: {old}")
    shape = (old.kernel_size, old.stride, old.padding, old.ceil_mode)
    return _layer(name, UOTPool2d, inputs, -3, options, *shape)


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else tuple(size)


def _put(model: nn.Module, layers: Mapping[str, nn.Module]) -> None:
    """Replace modules by layers, under all names that a module has."""
    modules = dict(model.named_modules(remove_duplicate=False))
    for where, layer in layers.items():
        layer.train(modules[where].training)
        for name in [n for n, module in modules.items() if module is modules[where]]:
            parent, _, attribute = name.rpartition(".")
            setattr(modules[parent], attribute, layer)


def _by_hand(model: nn.Module) -> str:
    mean = ", ".join(f"{option}={value!r}" for option, value in AS_MEAN.items())
    text = _BY_HAND.format(name=type(model).__name__, mean=mean)
    return f"{text}\nor call uotpool.integrations.timm.fill_attn_pool" if hasattr(model, "attn_pool") else text
