"""Watch a network run, to find where it pools its tokens or positions without a pooling layer of torch.

The last module that returns tokens and the vector that the next module gets show what `forward` does
between the two: it averages tokens, takes the class token, or joins both. A module that gets tokens and
returns a vector is asked what it does with other tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

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
    has_positions,
    is_one,
    is_vector,
    match,
    match_map,
    near,
    same,
    with_reduced,
)
from uotpool.nn.tokens import POOLED, tokens_of


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
    taker: str = ""  # name of the module that gets it


class Watch:
    """What is seen of tokens and vectors during one run of a network."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._picture: Any = None  # what the network gets
        self._cuts: list[_Cut] = []
        self._poolings: list[tuple[str, Tensor, Tensor]] = []  # modules from tokens to a vector
        self._positions: list[int] = []  # of the outputs of convolutions

    def hooks(self) -> list[Any]:
        """Watch all modules; return the handles that end it."""
        handles: list[Any] = []
        for name, module in self.model.named_modules():
            handles.append(module.register_forward_pre_hook(self._before(name)))
            handles.append(module.register_forward_hook(self._after(name)))
        return handles

    def _before(self, name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def record(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
            if self._picture is None and inputs:
                self._picture = inputs[0]
            if self._cuts and self._cuts[-1].vector is None and inputs and is_vector(inputs[0]):
                self._cuts[-1].vector, self._cuts[-1].taker = inputs[0], name

        return record

    def _after(self, name: str) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
        def record(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            tokens = tokens_of(output)
            if isinstance(module, (nn.Conv2d, nn.Conv3d)):
                self._positions.append(output.shape[2:].numel())
            if isinstance(module, nn.Sequential):
                return  # its last layer has returned the same, and is no container
            if has_positions(tokens):
                if self._cuts and self._cuts[-1].vector is None:
                    self._cuts.pop()
                pooled = output.get(POOLED) if isinstance(output, Mapping) else None
                self._cuts.append(_Cut(name, tokens, pooled))
            elif inputs and has_positions(inputs[0]) and isinstance(output, Tensor) and is_one(output):
                self._poolings.append((name, inputs[0], output))

        return record

    def layers(self, known: Collection[str]) -> dict[str, Site]:
        """Return modules, without those that are known, that do nothing but average over positions, by name."""
        found = {}
        for name, x, y in self._poolings:
            module = self.model.get_submodule(name)
            alone = not any(True for _ in module.children()) and not any(True for _ in module.parameters())
            if not alone or x.is_meta or name in known:
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
        expected, unfit = None, ""
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
                expected = run() if expected is None else expected
                found = self._at_attn_pool(site, run, expected) or self._working(site, cut, run, expected)
                if found is not None:
                    return found
                unfit = unfit or site.name
        if unfit:
            raise ValueError(
                f"model: expected a network that uses the tokens of {unfit!r} for its pool alone, got one that "
                "uses them elsewhere too (a second head, say); pool its tokens by a UOTPooling in a head of "
                "your own"
            )
        return None

    def _module(self, name: str | None) -> Site | None:
        """Return the last module, or that of a name, that makes a vector of tokens which the network uses."""
        inner = [found for found in self._poolings if found[2].dim() == 2 and found[1] is not self._picture]
        for where, x, y in reversed(inner):
            holds = any(other[0].startswith(f"{where}.") for other in inner)
            if (
                x.is_meta
                or (name is None and (holds or not self._is_used(where, y)))
                or name not in (None, where)
            ):
                continue
            site = ask(self.model.get_submodule(where), where, x)
            if site is None:
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

        There are as many patches as the convolution that makes them has positions. Where tokens are
        merged or come from elsewhere, timm says how many are none.
        """
        beyond = [length - n for n in self._positions if 0 <= length - n <= MOST]
        said = [getattr(module, "num_prefix_tokens", None) for module in self.model.modules()]
        said = [number for number in said if isinstance(number, int)]
        both = [number for number in beyond if number in said]
        return next(iter(both + beyond + said), None)

    def _at_attn_pool(self, site: Site, run: Callable[[], Any], expected: Any) -> Site | None:
        """Return the site at the place that timm's transformers have for a pooling module, if there is one."""
        parent, _, _ = site.name.rpartition(".")
        holder = self.model.get_submodule(parent)
        if site.place != "after" or site.what == BOTH or getattr(holder, ATTN_POOL, holder) is not None:
            return None
        probe = _Probe(site)
        setattr(holder, ATTN_POOL, probe)
        try:
            output = run()
        finally:
            delattr(holder, ATTN_POOL)
            setattr(holder, ATTN_POOL, None)
        if probe.cut is None or (site.what == MEAN and not same(output, expected)):
            return None
        where = f"{parent}.{ATTN_POOL}" if parent else ATTN_POOL
        return Site(where, "in", site.what, site.tokens, site.left_out, site.prefix, probe.cut, site)

    def _working(self, site: Site, cut: _Cut, run: Callable[[], Any], expected: Any) -> Site | None:
        """Return the site, if one token in the place of all makes no difference, and another one does."""
        got: list[Tensor] = []
        taker = self.model.get_submodule(cut.taker)

        def output(sign: int) -> Any:
            hooks = (
                self.model.get_submodule(site.name).register_forward_hook(
                    lambda _module, _inputs, output: with_reduced(output, site, sign)
                ),
                taker.register_forward_pre_hook(lambda _module, inputs: got.append(inputs[0])),
            )
            try:
                return run()
            finally:
                for hook in hooks:
                    hook.remove()

        try:
            kept = same(output(1), expected)
            output(-1)
        except (RuntimeError, ValueError, IndexError):  # it wants the tokens that are missing
            return None
        minds = not site.name or any(is_vector(x) and near(x, -cut.vector) for x in got)  # type: ignore[operator]
        return site if kept and minds else None


class _Probe(nn.Module):
    """Stands in the place of an attention pool, to see which tokens a network hands to it."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self._site = site
        self.cut: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.cut = cut = self._site.tokens.shape[1] - x.shape[1]
        return x[:, max(self._site.left_out - cut, 0) :].mean(1)
