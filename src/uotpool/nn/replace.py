"""Swap the pooling layers of a finished network."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Tensor, nn

from uotpool import checks
from uotpool.nn.images import AdaptiveUOTPool2d, UOTPool2d
from uotpool.nn.look import ADAPTIVE, FIXED, Look, Pool, Seen, look, pair
from uotpool.nn.restore import New, check_free, check_options, ours, put, remember
from uotpool.nn.sites import CLASS, OTHER, Site
from uotpool.nn.tokens import TokenPool
from uotpool.nn.watch import quiet

Report = Callable[[str], None]

_log = logging.getLogger("uotpool")


def replace_global_pool(
    model: nn.Module,
    *,
    name: str | None = None,
    example: Tensor | None = None,
    tokens: str | None = None,
    report: Report | None = None,
    **uot: Any,
) -> nn.Module:
    """Put UOT pooling in the place of a network's global average pool.

    The network is run on an example, in eval mode and without gradients, to see where and what it
    pools; nothing else in it changes. It may be

    - a network with a pooling layer: `nn.AdaptiveAvgPool2d(1)`, `nn.AvgPool2d`, or a module that does
      nothing but average over positions. ResNets, other CNNs and Swin transformers have one;
    - a vision transformer that averages its patch tokens in `forward`, or pools them by a module;
    - with `tokens`, a vision transformer that takes its class token alone.

    Args:
        model: the network, which is changed in place.
        name: name of the pool, where several decide an output alone, as in a network of two heads; of
            another pool, such as one in a squeeze-and-excitation block; or of a module that makes a
            vector of tokens in a way of its own.
        example: input of the network, a batch of one. Default: noise (1, C, H, W), with the C of the
            first convolution, and the H and W that the network has as `img_size` or `image_size`,
            else 224.
        tokens: for vision transformers, which tokens are pooled. Default: those that the network
            averages. "patches": the patch tokens, class and register tokens left out. "all": class
            and register tokens too. A network that takes its class token alone needs one of the two,
            and computes something else afterwards. Where the class token is joined to the mean, as in
            the classifier of DINOv2, it stays.
        report: called with a line on each layer that was swapped; default: the logger "uotpool",
            level INFO.
        **uot: options of `UOTPooling`. With `start="mean"` a network that averages computes what it
            did before, and learns from there.

    Returns:
        The model. Parameters of the new layer have the device and dtype of its input.
        `model.uotpool_swaps` records the swap as plain data, from which `restore_pools` makes the
        layers again.

    Example:
        >>> pool = nn.AdaptiveAvgPool2d(1)
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), pool, nn.Flatten(), nn.Linear(8, 2))
        >>> x = torch.rand(1, 3, 32, 32)
        >>> before = model(x)
        >>> model = replace_global_pool(model, start="mean")
        >>> type(model[1]).__name__
        'AdaptiveUOTPool2d'
        >>> torch.allclose(model(x), before, atol=1e-5)  # it begins where the network was
        True
    """
    if tokens is not None:
        checks.one_of("tokens", tokens, ("patches", "all"))
    check_options(uot)
    seen = look(model, example)
    found: dict[str, Pool] = {n: s for n, s in seen.pools.items() if s.is_global and s.is_average}
    found |= seen.watch.layers(known=seen.pools)
    if name not in found:
        _refuse_second(model, found)
    gates = found
    if name is None:
        found = seen.last(found)
        gates = {gate: pool for gate, pool in gates.items() if gate not in found}
    if name is None and len(found) > 1:
        raise ValueError(f"model: expected one global average pool, got {_list(found)}; say which by name=...")
    pool = next(iter(found.values()), None) if name is None else found.get(name)
    if pool is not None and tokens is not None:
        raise ValueError(
            f"tokens: expected None, as {pool.name!r} pools positions of a feature map, which has no class "
            f"token, got {tokens!r}"
        )
    if pool is None and (name is not None or not found):
        with quiet(model):
            pool = seen.watch.site(seen.run, name)
    if isinstance(pool, Seen):
        pool.check_start(uot)
        return _swap(model, {pool.name: New(pool.new, {"output_size": 1, **pool.options(uot)})}, report)
    if isinstance(pool, Site):
        return _swap(model, _token_pool(pool, tokens, uot), report)
    if name is not None:
        raise ValueError(
            f"name: expected one of the global average pools {sorted(found)}, or a module that makes a "
            f"vector of tokens, got {name!r}"
        )
    errors = seen.watch.errors
    raise ValueError(
        f"model: expected one global average pool, as a layer or of tokens, got {_others(seen, gates)}"
    ) from (errors[-1] if errors else None)


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
    check_options(uot)
    seen = {n: s for n, s in look(model, example).pools.items() if s.axes == 2}
    found = {n: s for n, s in seen.items() if not s.is_global}
    for name in names or ():
        if name not in found:
            raise ValueError(f"names: expected some of the local pools {sorted(found)}, got {name!r}")
    if names is not None:
        found = {n: s for n, s in found.items() if n in names}
    if not found:
        raise ValueError(
            "model: expected at least one max or average pool as a layer that is not global, got "
            f"{_swapped(model) or _list(seen)}"
        )
    return _swap(model, {n: _local(s, uot) for n, s in found.items()}, report)


def _token_pool(site: Site, tokens: str | None, uot: dict[str, Any]) -> dict[str, New]:
    if site.what == CLASS and tokens is None:
        raise ValueError(
            'tokens: expected "patches" or "all", as the model takes the class token alone and averages '
            'nothing, got None: tokens="patches" pools the patch tokens instead, which computes something '
            "else, so fine-tune the model"
        )
    if tokens == "patches" and site.prefix is None:
        raise ValueError(
            'tokens: expected "all", as nothing tells how many tokens of the model are no patches, got '
            '"patches"'
        )
    if site.what == OTHER and tokens is None and uot.get("start") == "mean":
        raise ValueError(
            f'start: expected none, as "mean" begins as the mean and {site.name!r} pools in a way of its own; '
            'tokens="patches" says that the mean of the patch tokens is a good start all the same'
        )
    if site.instead is not None and tokens == "all" and site.cut:
        site = site.instead
    return {site.name: New(TokenPool, site.options(tokens) | uot, site.place, site.what)}


def _local(seen: Seen, uot: dict[str, Any]) -> New:
    layer = seen.layer
    seen.check_start(uot)
    indices = isinstance(layer, (nn.MaxPool2d, nn.AdaptiveMaxPool2d)) and layer.return_indices
    if indices or (isinstance(layer, nn.MaxPool2d) and pair(layer.dilation) != (1, 1)):
        raise ValueError(f"model: {seen.name!r} is {layer!r}, and UOT pooling has no dilation and no indices")
    options = seen.options(uot)
    if isinstance(layer, ADAPTIVE):
        return New(AdaptiveUOTPool2d, {"output_size": pair(layer.output_size), **options})
    assert isinstance(layer, FIXED)
    geometry = {name: pair(getattr(layer, name)) for name in ("kernel_size", "stride", "padding")}
    return New(UOTPool2d, {**geometry, "ceil_mode": layer.ceil_mode, **options})


def _swap(model: nn.Module, new: dict[str, New], report: Report | None) -> nn.Module:
    """Swap all layers or none: what may fail comes before the first one is put into its place."""
    say = report or _log.info
    modules = dict(model.named_modules(remove_duplicate=False))
    layers = {}
    for where, made in new.items():
        check_free(modules, where, made.place)
        old = modules.get(where)
        layers[where] = made.kind(**made.options).train((model if old is None else old).training)
    for where, layer in layers.items():
        put(model, where, layer, new[where].place)
    remember(model, new, layers)
    for where, layer in layers.items():
        at, made = where or "the model itself", new[where]
        place = {"in": at, "output": f"pooled output of {at}"}.get(made.place, f"{made.place} {at}")
        say(f"{place}: {_old(modules.get(where), made)} -> {type(layer).__name__}({_inside(layer)})")
    return model


def _old(old: nn.Module | None, new: New) -> str:
    """Say what a new layer takes the place of, in a line."""
    if old is None or new.place != "in":
        return new.was
    return repr(old) if not any(True for _ in old.children()) else type(old).__name__


def _inside(layer: nn.Module) -> str:
    pool: Any = layer.pool
    return "; ".join(part for part in (pool.extra_repr(), layer.extra_repr()) if part)


def _refuse_second(model: nn.Module, found: Mapping[str, Pool]) -> None:
    """Refuse a network that has a global pool of ours, as another one beside it would pool one token."""
    one = ((1,), (1, 1), (1, 1, 1))
    layers = ours(model).values()
    if any(isinstance(layer, TokenPool) or getattr(layer, "output_size", None) in one for layer in layers):
        rest = f"; name=... swaps another one of {_list(found)}" if found else ""
        raise ValueError(
            f"model: expected a network whose global pool was not swapped, got {_swapped(model)}; build it "
            f"anew to swap it with other options{rest}"
        )


def _swapped(model: nn.Module) -> str:
    names = ", ".join(f"{name} ({type(layer).__name__})" for name, layer in ours(model).items())
    return f"a model whose pools were swapped already: {names}" if names else ""


def _others(seen: Look, gates: Mapping[str, Pool]) -> str:
    """Say what the network has instead of the pool that was looked for, and what can be done."""
    if gates:
        return f"{_list(gates)}, which decides no output alone, as the pool of a gate; name=... swaps it anyway"
    if seen.pools:
        return f"{_list(seen.pools)}; in their place a layer, such as AdaptiveUOTPool2d, can be set by hand"
    makes = "is neither their mean nor the class token" if seen.watch.sees_pooling else "could not be seen"
    return (
        f"a network without one: it has no pooling layer, and what it makes of its tokens {makes}; name=... "
        "names a module that pools in a way of its own, and a UOTPooling in a head of your own pools tokens or "
        "positions of any network"
    )


def _list(seen: Mapping[str, Pool]) -> str:
    shown = {n: repr(s.layer) if isinstance(s, Seen) else s.what for n, s in seen.items()}
    return ", ".join(f"{name!r} ({shown[name]})" for name in sorted(shown)) or "no pooling layers"
