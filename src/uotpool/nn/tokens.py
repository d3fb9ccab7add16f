"""The layer that pools the tokens of a vision transformer, at the places where finished networks pool them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from uotpool import checks
from uotpool.nn.pooling import UOTPooling
from uotpool.nn.scripting import NotScriptable

HIDDEN, POOLED = "last_hidden_state", "pooler_output"  # names that transformers gives to parts of an output
OWN = "uotpool"  # name of a layer in the module beside which it works


class TokenPool(NotScriptable, nn.Module):
    """Pooling of tokens by UOT, in the shapes that vision transformers have around their pool.

    Many networks pool inside `forward`, by code that no layer can take the place of. There this layer
    hands on one token in the place of those that it pooled. What the network does next, to average
    tokens or to take the first one, then gives this token.

    Args:
        dim: number of features.
        skip: number of leading tokens (class and register tokens) that are not pooled.
        lead: None to return one vector, (B, D). A number to return a sequence of tokens: that many
            leading tokens as they came, then the pooled one, (B, lead + 1, D).
        channels_last: whether the features are the last dimension; else they are the second one.
        **uot: options of `UOTPooling`.

    Shape:
        Tokens (B, N, D), or a feature map (B, H, W, D), or (B, D, H, W) with `channels_last=False`. A
        map returns (B, D), or with `lead=0` a map of one position.
    """

    def __init__(
        self, dim: int, skip: int = 0, lead: int | None = None, channels_last: bool = True, **uot: Any
    ) -> None:
        super().__init__()
        self.skip = checks.count("skip", skip, 0)
        self.lead = None if lead is None else checks.count("lead", lead, 0)
        checks.flag("channels_last", channels_last)
        self.channels_last = channels_last
        self.pool = UOTPooling(dim, **uot)

    def forward(self, x: Tensor) -> Tensor:
        """Return the pooled vector, or a sequence of tokens or a map that has it; see `lead`."""
        y = self.pool(self.pooled(x))
        if self.lead is None:
            return y
        if x.dim() == 3 and self.channels_last:
            token = y.unsqueeze(1)
            return torch.cat((x[:, : self.lead], token), 1) if self.lead else token
        ones = (1,) * (x.dim() - 2)
        shape = (y.shape[0], *ones, y.shape[1]) if self.channels_last else (*y.shape, *ones)
        return y.reshape(shape)

    def plan(self, x: Tensor) -> Tensor:
        """Return the plan over the tokens that are pooled, (B, N - skip, D), with flattened positions."""
        return self.pool.plan(self.pooled(x))

    def pooled(self, x: Tensor) -> Tensor:
        """Return the tokens that are pooled, (B, N - skip, D)."""
        accepted = f"floating tokens (B, N, D) or a feature map, with {self.pool.dim} features"
        checks.floating("x", x, accepted)
        if x.dim() < 3 or x.shape[-1 if self.channels_last else 1] != self.pool.dim:
            checks.fail("x", accepted, x)
        tokens = x.flatten(1, -2) if self.channels_last else x.flatten(2).transpose(1, 2)
        if tokens.shape[1] <= self.skip:
            checks.fail("x", f"more than the {self.skip} tokens that are left out", x)
        return tokens[:, self.skip :] if self.skip else tokens

    def extra_repr(self) -> str:
        """Return the options that differ from their defaults."""
        shown = [f"skip={self.skip}"] if self.skip else []
        shown += [] if self.lead is None else [f"lead={self.lead}"]
        shown += [] if self.channels_last else ["channels_last=False"]
        return ", ".join(shown)


# Hooks of the module beside which a layer works. They look the layer up on the module that calls them, so that
# copies of a network, such as the replicas of nn.DataParallel, use the layer of their own.


def pool_before(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Pool what a module gets first, by position or by keyword."""
    layer = getattr(module, OWN)
    if args:
        return (layer(args[0]), *args[1:]), kwargs
    keyword = next(iter(kwargs))
    return args, kwargs | {keyword: layer(kwargs[keyword])}


def pool_after(module: nn.Module, _inputs: tuple[Any, ...], output: Any) -> Any:
    """Pool what a module returns: a tensor, the first of a tuple, or the hidden state of transformers."""
    return with_tokens(output, getattr(module, OWN)(tokens_of(output)))


def pool_output(module: nn.Module, _inputs: tuple[Any, ...], output: Any) -> Any:
    """Set the pooled output of a model of transformers, and leave its hidden state as it is."""
    return with_pooled(output, getattr(module, OWN)(tokens_of(output)))


def put_beside(module: nn.Module, layer: TokenPool, place: str) -> None:
    """Put a layer beside a module, to work "before" it, "after" it or at its "output"."""
    module.add_module(OWN, layer)
    if place == "before":
        module.register_forward_pre_hook(pool_before, with_kwargs=True)
    else:
        module.register_forward_hook({"after": pool_after, "output": pool_output}[place])


def first(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return what a module gets first, by position or by keyword."""
    return next(iter((*args, *kwargs.values())), None)


def tokens_of(output: Any) -> Any:
    """Return the tokens in what a module returns, or what else there is in their place."""
    if isinstance(output, Mapping):
        return output.get(HIDDEN)
    return output[0] if isinstance(output, tuple) and output else output


def with_tokens(output: Any, tokens: Tensor) -> Any:
    """Return the output of a module with other tokens."""
    if isinstance(output, Mapping):
        output[HIDDEN] = tokens  # type: ignore[index] # an output of transformers, made for this call
        return output
    return (tokens, *output[1:]) if isinstance(output, tuple) else tokens


def with_pooled(output: Any, vector: Tensor) -> Any:
    """Return the output of a model of transformers with another pooled output, the second one in a tuple."""
    if isinstance(output, tuple):
        return (output[0], vector, *output[2:])
    if not isinstance(output, Mapping):
        checks.fail("output", f"what a model of transformers returns, with {POOLED}", output, TypeError)
    output[POOLED] = vector
    return output
