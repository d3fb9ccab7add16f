"""Contributions of samples to outputs of a network."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from uotpool import checks
from uotpool.backends.call import Call
from uotpool.backends.reference import shares

Output = Tensor | Callable[[Tensor], Tensor]


def contributions(call: Call, reduce: str, output: Output, dtype: torch.dtype) -> Tensor:
    """Return sum_d w_nd X_nd g_d for each sample, see `UOTPooling.scores`.

    Args:
        call: of the layer.
        reduce: of the layer, "mean" or "sum".
        output: g, or the function whose derivative is g.
        dtype: of the pooled vectors, the argument of that function.
    """
    call = call.prepared()
    sets = call.sets
    # The reference computes the weights from log P, so a feature whose mass underflows in P has some.
    parts = sets.fill_absent(call.X * shares(call), 0.0)
    if reduce == "sum":
        parts = parts * sets.to_rows(call.sizes(parts))
    g = direction(sets.squeeze(sets.sum_n(parts)).to(dtype), output).to(call.X.dtype)
    if g.dim() < 3:
        return (parts * sets.to_rows(sets.per_feature(g))).sum(-1)
    maps = [(parts * sets.to_rows(sets.per_feature(each))).sum(-1) for each in g.unbind(1)]
    return torch.stack(maps, dim=-1)


def direction(y: Tensor, output: Output) -> Tensor:
    """Return g, (D,), (B, D), or (B, C, D) for C outputs: a tensor, or the derivative of a function."""
    num_sets, D = y.shape
    accepted = (
        "a function from the pooled vectors to one number per set, or several, or a tensor "
        f"({D},), ({num_sets}, {D}) or ({num_sets}, classes, {D})"
    )
    if isinstance(output, Tensor):
        checks.floating("output", output, accepted)
        checks.same_device("output", output, y)
        several = output.dim() == 3 and (output.shape[0], output.shape[2]) == (num_sets, D)
        if output.shape not in ((D,), (num_sets, D)) and not several:
            checks.fail("output", accepted, output)
        return output.detach()
    if output is None or not callable(output):
        raise TypeError(f"output: expected {accepted}, got {checks.describe(output)}")
    with torch.inference_mode(False), torch.enable_grad():
        y = y.detach().clone().requires_grad_()  # a copy, as a tensor of inference mode has no gradients
        value = output(y)
        checks.floating("output", value, "a function that returns a floating tensor")
        if value.dim() not in (1, 2) or value.shape[0] != num_sets:
            checks.fail("output", f"a function that returns ({num_sets},) or ({num_sets}, classes)", value)
        if not value.requires_grad:
            raise ValueError(
                "output: expected a function that depends on the pooled vectors, got one whose result has no "
                "graph (is there a torch.no_grad or a .detach() inside?)"
            )
        columns = value.reshape(num_sets, -1).sum(0)
        gradients = [torch.autograd.grad(column, y, retain_graph=True)[0] for column in columns.unbind()]
        return gradients[0] if len(gradients) == 1 else torch.stack(gradients, dim=1)
