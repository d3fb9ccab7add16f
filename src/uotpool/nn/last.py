"""Tell the last pool of a network from those inside it, such as the pools of gates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from uotpool.nn.sites import attempt, tensors


def last_pools(run: Callable[[Any], Any], example: Any, modules: Mapping[str, nn.Module]) -> list[str]:
    """Return the names of those modules that decide an output of a network alone, as its last pool does.

    While such a module returns what it did for the example, another picture gives the same output. The
    pool in a gate (squeeze-and-excitation) is none: what it weighs goes on beside it. Where values tell
    nothing, because no output depends on the picture, all names are returned.
    """
    kept: dict[str, list[Any]] = {}  # what the modules return, in the order in which they are called
    hooks = [module.register_forward_hook(_keeper(kept, name)) for name, module in modules.items()]
    try:
        expected = tensors(run(example))
    finally:
        for hook in hooks:
            hook.remove()
    other = _other(example)
    if other is None or any(x.is_meta for x in expected):
        return list(modules)
    free = _distances(attempt(lambda: run(other), []), expected)
    undecided = {i for i, distance in enumerate(free) if 0 < distance < float("inf")}
    if not undecided:
        return list(modules)
    found = []
    for name in reversed(kept):
        with _holding(modules[name], kept[name]):
            held = _distances(attempt(lambda: run(other), []), expected)
        # What comes after a pool computes the same again, but for the order of sums on a GPU.
        decided = {i for i in undecided if held[i] <= 1e-3 * free[i]}
        found += [name] if decided else []
        undecided -= decided
        if not undecided:
            break
    return found


def _keeper(kept: dict[str, list[Any]], name: str) -> Callable[..., None]:
    return lambda _module, _inputs, output: kept.setdefault(name, []).append(output)


@contextmanager
def _holding(module: nn.Module, outputs: list[Any]) -> Iterator[None]:
    """Let a module return these outputs, one per call."""
    left = iter(outputs)
    hook = module.register_forward_hook(lambda *_: next(left))
    try:
        yield
    finally:
        hook.remove()


def _other(example: Any) -> Tensor | None:
    """Return an input like the example with other values."""
    if not isinstance(example, Tensor) or example.is_meta:
        return None
    if not example.is_floating_point():
        return example.flip(-1)
    generator = torch.Generator(example.device).manual_seed(1)
    noise = torch.randn(example.shape, generator=generator, device=example.device, dtype=torch.float32)
    return example + (noise * example.abs().amax().clamp_min(1)).to(example.dtype)


def _distances(output: Any, expected: list[Tensor]) -> list[float]:
    """Return how far the tensors of an output are from those that are expected, infinity for other shapes."""
    found = tensors(output)
    if [x.shape for x in found] != [x.shape for x in expected]:
        return [float("inf")] * len(expected)
    return [float((x.double() - y.double()).abs().max()) for x, y in zip(found, expected, strict=True)]
