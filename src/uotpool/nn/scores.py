"""What each sample contributes to an output of a network."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from uotpool import checks
from uotpool.backends.base import SolverOptions
from uotpool.backends.reference import REFERENCE
from uotpool.problem import Problem

KINDS = ("marginal", "gradient")


def contributions(
    problem: Problem,
    options: SolverOptions,
    output: Tensor | Callable[[Tensor], Tensor] | None,
    dtype: torch.dtype,
) -> Tensor:
    """Return sum_d w_nd X_nd g_d for each sample; `UOTPooling.scores` says what that is.

    Args:
        problem: what the layer solves.
        options: how it does.
        output: g, or the function whose derivative is g.
        dtype: of the pooled vectors that the layer hands on, which a function takes.
    """
    problem = problem.widened() if problem.as_is else problem
    X, sets = problem.X, problem.sets
    # The reference has the weights of samples from log P: a feature whose mass underflows in P has some.
    parts = sets.fill_absent(X * REFERENCE.shares(problem, options), 0.0)
    if options.readout == "sum":
        parts = parts * sets.to_rows(problem.sizes(parts))
    g = _direction(sets.squeeze(sets.sum_n(parts)).to(dtype), output).to(X.dtype)
    return (parts * sets.to_rows(sets.per_feature(g))).sum(-1)


def _direction(y: Tensor, output: Tensor | Callable[[Tensor], Tensor] | None) -> Tensor:
    """Return g, (D,) or (B, D): what was given, or the derivative of what was given by y."""
    num_sets, D = y.shape
    accepted = (
        f"a function from the pooled vectors to one number per set, or a tensor ({D},) or ({num_sets}, {D}), "
        'with kind="gradient"'
    )
    if isinstance(output, Tensor):
        checks.floating("output", output, accepted)
        checks.same_device("output", output, y)
        if output.shape not in ((D,), (num_sets, D)):
            checks.fail("output", accepted, output)
        return output.detach()
    if output is None or not callable(output):
        raise TypeError(f"output: expected {accepted}, got {checks.describe(output)}")
    with torch.inference_mode(False), torch.enable_grad():
        y = y.detach().clone().requires_grad_()  # a copy, as a tensor of inference mode has no gradients
        value = output(y)
        checks.floating("output", value, "a function that returns a floating tensor")
        if value.shape not in ((num_sets,), (num_sets, 1)):
            checks.fail("output", f"a function that returns one number per set, ({num_sets},)", value)
        if not value.requires_grad:
            raise ValueError(
                "output: expected a function that depends on the pooled vectors, got one whose result has no "
                "graph (is there a torch.no_grad or a .detach() inside?)"
            )
        return torch.autograd.grad(value.sum(), y)[0]
