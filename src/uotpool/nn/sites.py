"""Places where a network pools tokens or positions without a pooling layer of torch, and what it does there.

Values decide, not names of classes, so that networks work that nobody has thought of here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from uotpool.nn.tokens import HIDDEN, tokens_of, with_pooled, with_tokens

ATTN_POOL = "attn_pool"  # the place that timm's transformers have for a pooling module
LEARNED = (ATTN_POOL, "pooler", "head")  # names under which a pooling with weights is known to be one
MOST = 16  # class, distillation and register tokens in front of the patches

ALIKE = (
    "example: expected a picture on which tokens differ, such as torch.randn(...), got one on which all are "
    "alike"
)

MEAN = "the mean of tokens"
CLASS = "the class token alone"
BOTH = "the class token, joined to the mean of tokens"
OTHER = "a pooling of its own"


@dataclass
class Site:
    """A place where a network pools tokens or positions, and what it does there."""

    name: str  # of the module at which the new layer is put
    place: str  # "in" the place of that module, "before" it, "after" it, or at the "output" of a model
    what: str  # that the network takes: MEAN, CLASS, BOTH or OTHER
    tokens: Tensor  # which it gets from the example
    left_out: int = 0  # leading tokens that the mean leaves out
    prefix: int | None = None  # class and register tokens, None where nothing tells their number
    cut: int = 0  # leading tokens that the network has cut off in front of the place
    instead: Site | None = None  # the same pool at a place where no token has been cut off
    keeps_dims: bool = False  # whether a pool by a layer returns a map of one position
    channels_last: bool = True

    @property
    def dim(self) -> int:
        return self.tokens.shape[-1 if self.channels_last else 1]

    def options(self, tokens: str | None) -> dict[str, Any]:
        """Return the options of a `TokenPool` for "patches", "all" tokens, or by default the same ones."""
        skip = {None: self.left_out, "patches": self.prefix or 0, "all": 0}[tokens]
        lead: int | None = 0 if self.what == CLASS else self.left_out
        if self.place in ("in", "output"):
            lead = 0 if self.keeps_dims else None
        return {
            "dim": self.dim,
            "skip": skip - self.cut,
            "lead": lead,
            "channels_last": self.channels_last,
            "device": self.tokens.device,
            "dtype": self.tokens.dtype,
        }


def is_vector(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point() and x.dim() == 2


def has_positions(x: Any) -> bool:
    """Return whether x is tokens or a feature map, with more than one of them."""
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() not in (3, 4):
        return False
    if x.dim() == 3:
        return x.shape[1] > 1
    return x.shape[2] > 1 or (x.shape[1] > 1 and x.shape[3] > 1)  # whether channels are second or last


def is_one(y: Tensor) -> bool:
    """Return whether y has one vector per example."""
    return y.dim() == 2 or (y.dim() in (3, 4) and y.shape[1:].numel() == max(y.shape[1:]))


def _error(found: Tensor, expected: Tensor) -> float:
    """Return the largest error, relative to the largest entry."""
    if found.shape != expected.shape:
        return float("inf")
    largest = expected.abs().max().clamp_min(torch.finfo(expected.dtype).tiny)
    return float((found - expected).abs().max() / largest)


def _rounding(x: Tensor) -> float:
    """Return the largest error that rounding explains; in half precision 2 %, far less than tokens differ."""
    return min(256 * torch.finfo(x.dtype).eps, 0.02)


def near(found: Tensor, expected: Tensor) -> bool:
    return _error(found, expected) <= _rounding(expected)


def same(found: Any, expected: Any) -> bool:
    """Return whether two outputs of a network are the same up to rounding, of which it may make more."""
    pairs = zip(tensors(found), tensors(expected), strict=False)
    return len(tensors(found)) == len(tensors(expected)) > 0 and all(
        _error(x, y) <= 8 * _rounding(y) if y.is_floating_point() else torch.equal(x, y) for x, y in pairs
    )


def tensors(output: Any) -> list[Tensor]:
    """Return the tensors in an output, but for the hidden state, which a layer after a module may change."""
    if isinstance(output, Tensor):
        return [output]
    if is_dataclass(output) and not isinstance(output, Mapping):
        output = vars(output)
    if isinstance(output, Mapping):
        output = [part for key, part in output.items() if key != HIDDEN]
    return [x for part in output for x in tensors(part)] if isinstance(output, (list, tuple)) else []


def attempt(call: Callable[[], Any], errors: list[Exception]) -> Any:
    """Return what a call returns, or None where it fails, and keep the error.

    A network or a module of it is run on tokens that it did not make itself. It may assert their number,
    look something up by it or divide by it, so any exception says no more than that this cannot be done.
    """
    try:
        with torch.no_grad():
            return call()
    except Exception as error:
        errors.append(error)
        return None


def match(name: str, place: str, tokens: Tensor, vector: Tensor) -> Site | None:
    """Say what a network made of tokens, or nothing."""
    if tokens.shape[0] != vector.shape[0]:
        return None
    if tokens.dim() == 3:
        dim = tokens.shape[2]
        is_class = torch.equal(vector, tokens[:, 0])
        left_out = _match_mean(tokens, vector[:, -dim:])
        if is_class and left_out is not None:
            raise ValueError(ALIKE)
        if is_class:
            return Site(name, place, CLASS, tokens)
        if left_out is not None and vector.shape[1] == dim:
            return Site(name, place, MEAN, tokens, left_out)
        if left_out is not None and torch.equal(vector, torch.cat((tokens[:, 0], vector[:, -dim:]), 1)):
            return Site(name, place, BOTH, tokens, left_out)
    where = match_map(tokens, vector)
    return None if where is None else Site(name, place, MEAN, tokens, channels_last=where == "last")


def _match_mean(tokens: Tensor, vector: Tensor) -> int | None:
    """Return how many leading tokens a mean left out, if it is one."""
    if vector.shape != (tokens.shape[0], tokens.shape[2]):
        return None
    most = min(MOST, tokens.shape[1] - 1)
    errors = [_error(tokens[:, k:].mean(1).to(vector.dtype), vector) for k in range(most + 1)]
    best = min(range(most + 1), key=errors.__getitem__)
    return best if errors[best] <= _rounding(vector) else None


def match_map(x: Tensor, vector: Tensor) -> str | None:
    """Return whether the channels are "last" or "second" in a map whose mean over positions this is."""
    for where, over in (("last", range(1, x.dim() - 1)), ("second", range(2, x.dim()))):
        if near(x.mean(tuple(over)), vector):
            return where
    return None


def _reduced(x: Tensor, site: Site) -> Tensor:
    """Return tokens of which the network makes what it made of all of them, in the shape that it will get."""
    if site.what == CLASS:
        return x[:, :1]
    if not site.channels_last:
        return x.mean(tuple(range(2, x.dim())), keepdim=True)
    if x.dim() > 3:
        return x.mean(tuple(range(1, x.dim() - 1)), keepdim=True)
    return torch.cat((x[:, : site.left_out], x[:, site.left_out :].mean(1, keepdim=True)), 1)


def with_reduced(output: Any, site: Site) -> Any:
    """Return the output of the module at a site with one token, or the pooled output, in the place of all."""
    reduced = _reduced(tokens_of(output), site)
    if site.place == "after":
        return with_tokens(output, reduced)
    return with_pooled(
        output, reduced.flatten(1) if site.what == CLASS or reduced.dim() > 3 else reduced[:, -1]
    )


def noise_like(x: Tensor) -> Tensor:
    """Return noise in the place of tokens or a map, on which even half precision shows which were averaged.

    Trained tokens have much in common, and the mean of 196 of them hardly tells whether a 197th was among
    them. Here the first ones, which may be class and register tokens, are larger than the others.
    """
    generator = torch.Generator(x.device).manual_seed(0)
    noise = torch.randn(x.shape, generator=generator, device=x.device, dtype=torch.float32)
    noise[:, : MOST + 1] *= 4 if x.dim() == 3 else 1
    return (10 * noise).to(x.dtype)


def ask(module: nn.Module, name: str, x: Tensor, errors: list[Exception]) -> Site | None:
    """Call a module on noise to see what it makes of tokens.

    A module that answers to no tokens, as a classifier whose weights are 0 at first, tells nothing.
    """
    noise = noise_like(x)
    sites = [Site(name, "before", CLASS, x)] if x.dim() == 3 else []
    sites += [Site(name, "before", MEAN, x, k) for k in range(min(MOST, x.shape[1] - 1) if x.dim() == 3 else 1)]
    sites += [Site(name, "before", MEAN, x, channels_last=False)] if x.dim() == 4 else []

    def called(tokens: Tensor) -> Tensor | None:
        y = attempt(lambda: module(tokens), errors)
        return y if isinstance(y, Tensor) else None

    expected, other = called(noise), called(-noise)
    if expected is None or other is None or near(other, expected):
        return None
    for site in sites:
        found = called(_reduced(noise, site))
        if found is not None and near(found, expected):
            return site
    return Site(name, "in", OTHER, x)
