"""Watch a network run, to find where it pools its tokens or positions without a pooling layer of torch.

The last module that returns tokens and the vector that the next module gets show what `forward` does
between the two: it averages tokens, takes the class token, or joins both. A module that gets tokens and
returns a vector is asked what it does with other tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from uotpool.nn.restore import ours
from uotpool.nn.sites import (
    ALIKE,
    ATTN_POOL,
    BOTH,
    LEARNED,
    MEAN,
    MOST,
    OTHER,
    Site,
    ask,
    attempt,
    has_positions,
    is_one,
    is_vector,
    match,
    match_map,
    near,
    noise_like,
    same,
    tensors,
    with_reduced,
)
from uotpool.nn.tokens import POOLED, first, tokens_of, with_pooled, with_tokens


@contextmanager
def quiet(model: nn.Module) -> Iterator[None]:
    """Put a network into eval mode, without gradients, and afterwards back into the modes it had."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


@dataclass
class _Cut:
    """Tokens, and the vector that a module gets next: what `forward` does is between them."""

    name: str  # of the module that returned the tokens
    tokens: Tensor
    pooled: Any  # what came beside the tokens, by the name that transformers gives it
    vector: Tensor | None = None
    taker: str = ""  # name of the module that gets it; the network itself returns it


@dataclass
class _Pooling:
    """A module that gets tokens and returns a vector."""

    name: str
    x: Tensor
    y: Tensor
    by_keyword: bool  # a layer in its place would be called by a keyword that it does not know


class Watch:
    """What is seen of tokens and vectors during one run of a network."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.errors: list[Exception] = []  # of runs on other tokens
        self._picture: Any = None  # what the network gets
        self._cuts: list[_Cut] = []
        self._poolings: list[_Pooling] = []
        self._positions: list[int] = []  # of the outputs of convolutions

    @property
    def sees_pooling(self) -> bool:
        """Whether it was seen what the network makes of its last tokens, whatever that is."""
        last = self._cuts[-1:]
        return any(isinstance(made, Tensor) for cut in last for made in (cut.vector, cut.pooled))

    def hooks(self) -> list[Any]:
        """Watch all modules but layers of ours; return the handles that end it."""
        handles: list[Any] = []
        left_out = {id(part) for layer in ours(self.model).values() for part in layer.modules()}
        for name, module in self.model.named_modules():
            if id(module) not in left_out:
                handles.append(module.register_forward_pre_hook(self._before(name), with_kwargs=True))
                handles.append(module.register_forward_hook(self._after(name), with_kwargs=True))
        return handles

    def _before(self, name: str) -> Callable[..., None]:
        def record(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x = first(args, kwargs)
            if self._picture is None:
                self._picture = x
            self._close(name, x)

        return record

    def _close(self, taker: str, vector: Any) -> None:
        """Note the vector that a module gets next after tokens, or that the network returns after them."""
        if self._cuts and self._cuts[-1].vector is None and is_vector(vector):
            self._cuts[-1].vector, self._cuts[-1].taker = vector, taker

    def _after(self, name: str) -> Callable[..., None]:
        def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            tokens, x = tokens_of(output), first(args, kwargs)
            if isinstance(module, (nn.Conv2d, nn.Conv3d)):
                self._positions.append(output.shape[2:].numel())
            if not name and not has_positions(tokens):
                self._close("", next(filter(is_vector, tensors(output)), None))
            if isinstance(module, nn.Sequential):
                return  # its last layer has returned the same, and is no container
            if has_positions(tokens):
                if self._cuts and self._cuts[-1].vector is None:
                    self._cuts.pop()
                pooled = output.get(POOLED) if isinstance(output, Mapping) else None
                self._cuts.append(_Cut(name, tokens, pooled))
            elif has_positions(x) and isinstance(output, Tensor) and is_one(output):
                self._poolings.append(_Pooling(name, x, output, not args))

        return record

    def layers(self, known: Collection[str]) -> dict[str, Site]:
        """Return modules, without those that are known, that do nothing but average over positions, by name."""
        found = {}
        for pooling in self._poolings:
            name, x, y = pooling.name, pooling.x, pooling.y
            module = self.model.get_submodule(name)
            alone = not any(True for _ in module.children()) and not any(True for _ in module.parameters())
            if not alone or x.is_meta or name in known or pooling.by_keyword:
                continue
            where = match_map(x, y.flatten(1))
            if where is None:
                continue
            positions = tuple(range(1, x.dim() - 1) if where == "last" else range(2, x.dim()))
            if near(x.amax(positions), x.amin(positions)):
                raise ValueError(ALIKE)
            found[name] = Site(name, "in", MEAN, x, keeps_dims=y.dim() > 2, channels_last=where == "last")
        return found

    def site(self, run: Callable[[], Any], name: str | None = None) -> Site | None:
        """Return where the tokens are pooled by code in `forward` or by a module, if at all.

        Args:
            run: runs the network on the example, to see whether it does the same with a layer there.
            name: of a module that pools, which is taken whatever it does.
        """
        by_module = self._module(name)
        if name is not None or (by_module is not None and by_module.what != OTHER):
            return by_module
        return self._in_forward(run) or by_module

    def _in_forward(self, run: Callable[[], Any]) -> Site | None:
        """Return the last place where `forward` makes a vector of tokens in a way that is known."""
        expected, refusal = None, None
        for cut in reversed(self._cuts):
            vector = cut.vector if cut.name else cut.pooled
            if not isinstance(vector, Tensor):
                continue
            if vector.is_meta:
                raise ValueError(
                    "model: expected values, which tell what a network does with its tokens, got one on the "
                    "meta device"
                )
            given = isinstance(cut.pooled, Tensor) and torch.equal(cut.pooled, vector)
            for place in ("output", "after") if given else ("after",):
                site = match(cut.name, place, cut.tokens, vector)
                if site is None:
                    break
                site.prefix = self._prefix(site.tokens.shape[1]) if site.channels_last else 0
                expected, tried = run() if expected is None else expected, len(self.errors)
                found = self._fitting(site, cut, run, expected)
                if found is not None:
                    return found
                refusal = refusal or _refusal(site, expected, self.errors[tried:])
        if refusal is not None:
            raise refusal
        return None

    def _module(self, name: str | None) -> Site | None:
        """Return the last module, or that of a name, that makes a vector of tokens which the network uses."""
        inner = [found for found in self._poolings if found.y.dim() == 2 and found.x is not self._picture]
        for pooling in reversed(inner):
            where, x, y = pooling.name, pooling.x, pooling.y
            holds = any(other.name.startswith(f"{where}.") for other in inner)
            if (
                x.is_meta
                or (name is None and (holds or not self._is_used(where, y)))
                or name not in (None, where)
            ):
                continue
            site = ask(self.model.get_submodule(where), where, x, self.errors)
            if site is None or (site.place == "in" and pooling.by_keyword):
                continue
            known = name is not None or where.rpartition(".")[2] in LEARNED
            if site.what == OTHER and not (known and y.shape[1] == site.dim):
                continue
            site.prefix = self._prefix(x.shape[1]) if x.dim() == 3 else 0
            return site
        return None

    def _is_used(self, name: str, y: Tensor) -> bool:
        """Return whether the vector of a module goes on, as what the next one gets or as the pooled output."""
        last = self._cuts[-1] if self._cuts else None
        if last is None or last.taker.startswith(f"{name}."):  # it has the rest of the network in it
            return True
        return any(
            isinstance(v, Tensor) and v.shape == y.shape and torch.equal(v, y)
            for v in (last.vector, last.pooled)
        )

    def _prefix(self, length: int) -> int | None:
        """Return how many of the tokens are no patches.

        There are as many patches as the convolution that makes them has positions, and no other one
        comes closer to the number of tokens. Where tokens are merged or come from elsewhere, timm says
        how many are none.
        """
        beyond = sorted(length - n for n in self._positions if 0 <= length - n <= MOST)
        said = [getattr(module, "num_prefix_tokens", None) for module in self.model.modules()]
        said = [number for number in said if isinstance(number, int)]
        both = [number for number in beyond if number in said]
        return next(iter(both + beyond + said), None)

    def _fitting(self, site: Site, cut: _Cut, run: Callable[[], Any], expected: Any) -> Site | None:
        """Return the site, or timm's place for its pool, if one token in the place of all changes nothing."""
        sure = self._sure(site, cut, run)
        if sure is None:
            return None
        at_attn_pool = self._at_attn_pool(sure, run, expected)
        if at_attn_pool is not None:
            return at_attn_pool
        output = self._changed(sure, run, lambda output: with_reduced(output, sure))
        return sure if same(output, expected) else None

    def _changed(self, site: Site, run: Callable[[], Any], change: Callable[[Any], Any]) -> Any:
        """Run the network with another output of the module at a site; return its output, None if it fails."""
        module = self.model.get_submodule(site.name)
        hook = module.register_forward_hook(lambda _module, _inputs, output: change(output))
        try:
            return attempt(run, self.errors)
        finally:
            hook.remove()

    def _sure(self, site: Site, cut: _Cut, run: Callable[[], Any]) -> Site | None:
        """Return the site as noise in the place of its tokens shows it, if what is made of it goes on."""
        if site.place == "output" and not site.name:
            return site  # the network returns it
        noise, got = noise_like(site.tokens), list[Any]()
        pooled = noise.flatten(1)[:, : site.dim]

        def change(output: Any) -> Any:
            if site.place == "output":
                return with_pooled(output, pooled)
            return with_tokens(output, noise_like(tokens_of(output)))

        hook = self.model.get_submodule(cut.taker).register_forward_pre_hook(
            lambda _module, args, kwargs: got.append(first(args, kwargs)), with_kwargs=True
        )
        try:
            output = self._changed(site, run, change)
        finally:
            hook.remove()
        for vector in filter(is_vector, got if cut.taker else tensors(output)):
            if site.place == "output":
                if torch.equal(vector, pooled):
                    return site
                continue
            found = match(site.name, site.place, noise, vector)
            if found is not None and (found.what, found.channels_last) == (site.what, site.channels_last):
                return replace(site, left_out=found.left_out)
        return None

    def _at_attn_pool(self, site: Site, run: Callable[[], Any], expected: Any) -> Site | None:
        """Return the site at the place that timm's transformers have for a pooling module, if there is one."""
        parent, _, _ = site.name.rpartition(".")
        holder = self.model.get_submodule(parent)
        if site.place != "after" or site.what == BOTH or getattr(holder, ATTN_POOL, holder) is not None:
            return None
        probe = _Probe(site)
        setattr(holder, ATTN_POOL, probe)
        try:
            output = attempt(run, self.errors)
        finally:
            delattr(holder, ATTN_POOL)
            setattr(holder, ATTN_POOL, None)
        if probe.cut is None or output is None or (site.what == MEAN and not same(output, expected)):
            return None
        where = f"{parent}.{ATTN_POOL}" if parent else ATTN_POOL
        return Site(where, "in", site.what, site.tokens, site.left_out, site.prefix, probe.cut, site)


def _refusal(site: Site, output: Any, errors: list[Exception]) -> ValueError:
    """Return the error that says why no layer fits a place that looked like a pool."""
    why = "whose output changes where one token stands for all (it may have a second use for them)"
    if errors:
        why = f"that fails where one token stands for all ({type(errors[-1]).__name__}: {errors[-1]})"
    elif not tensors(output):
        why = "whose output could not be seen, as it has no tensors in tuples, lists, dicts or dataclasses"
    refusal = ValueError(
        f"model: expected a network that uses the tokens of {site.name!r} for its pool alone, got one {why}; "
        "pool its tokens by a UOTPooling in a head of your own"
    )
    refusal.__cause__ = errors[-1] if errors else None
    return refusal


class _Probe(nn.Module):
    """Stands in the place of an attention pool, to see which tokens a network hands to it."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self._site = site
        self.cut: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.cut = cut = self._site.tokens.shape[1] - x.shape[1]
        return x[:, max(self._site.left_out - cut, 0) :].mean(1)
