"""Inputs, the calls that are timed, and the check that comes before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bench.session import BOTH, FORWARD
from bench.timing import Call
from uotpool import UOTPooling, resolve_impl

Size = tuple[int, int, int]
Pool = Callable[..., Tensor]  # a module or a function: X and how it is laid out -> pooled


class WrongAnswerError(SystemExit):
    """An implementation that is to be timed gives other numbers than the reference."""


def show(size: tuple[int, ...]) -> str:
    return " x ".join(f"{n:,}" for n in size)


def only_reference() -> bool:
    """Nothing but the reference can run here, which takes much memory for its backward pass."""
    return resolve_impl(torch.empty(1, 1, 1), "sinkhorn") == "reference"


def samples(size: tuple[int, ...], seed: int = 0) -> Tensor:
    """Standard normal, what a normalised network puts out."""
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def random_edges(size: Size, seed: int = 4) -> Tensor:
    """(2, 4 B N): four edges to each node, from any node of its set; rows of X.flatten(0, 1)."""
    B, N, _ = size
    g = torch.Generator().manual_seed(seed)
    ends = torch.randint(N, (B, 4 * N), generator=g) + N * torch.arange(B)[:, None]
    starts = torch.arange(B * N).reshape(B, N).repeat_interleave(4, dim=1)
    return torch.stack([ends.flatten(), starts.flatten()])


def layer(D: int, solver: str, K: int = 4, **how: Any) -> UOTPooling:
    """Learned weights, different in every module; the same ones for the same solver and K."""
    torch.manual_seed(1)
    return UOTPooling(D, solver=solver, K=K, **how)


def timed(pool: Pool, mode: str, X: Tensor, **layout: Any) -> Call:
    """The call of a mode: forward without a graph, or forward and backward by X and all parameters."""
    if mode == FORWARD:

        def forward() -> object:
            with torch.no_grad():
                return pool(X, **layout)

        return forward
    assert mode == BOTH
    leaf = X.detach().requires_grad_()
    wanted = [leaf, *(pool.parameters() if isinstance(pool, nn.Module) else ())]
    with torch.no_grad():
        shape = pool(leaf, **layout).shape
    dout = samples(tuple(shape), seed=2)

    def both() -> object:
        # Not .backward(): that would add to the last round's gradients, a pass over memory of its own.
        y = pool(leaf, **layout)
        outputs, douts = [y], [dout]
        loss = getattr(pool, "aux_loss", 0.0)
        if isinstance(loss, Tensor):  # trained with it, so it is part of the cost
            outputs, douts = [y, loss], [dout, torch.ones_like(loss)]
        return torch.autograd.grad(outputs, wanted, douts, allow_unused=True)

    return both


class Answer(NamedTuple):
    y: Tensor
    dX: Tensor


def answer(pool: Pool, X: Tensor, **layout: Any) -> Answer:
    leaf = X.detach().requires_grad_()
    y = pool(leaf, **layout)
    (dX,) = torch.autograd.grad(y, leaf, samples(tuple(y.shape), seed=2))
    return Answer(y.detach(), dX)


def truth(pool: UOTPooling, X: Tensor, **layout: Any) -> Answer:
    """What the exact reference says, with the layer's weights."""
    twin = UOTPooling(pool.dim, solver=pool.rule.solver, K=pool.K, impl="reference")
    twin.load_state_dict(pool.state_dict())
    return answer(twin, X, **layout)


def verify(pool: UOTPooling, expected: Answer, X: Tensor, **layout: Any) -> None:
    """Refuse to go on with an answer that is off by more than float32 explains."""
    found = answer(pool, X, **layout)
    for name, ours, wanted in zip(Answer._fields, found, expected, strict=True):
        reference = wanted.reshape(ours.shape)  # dX of a ragged call, from a dense reference
        allowed = 1e-4 * reference.abs() + 1e-5 * reference.abs().max()
        error = (ours - reference).abs()
        if not bool((error <= allowed).all()):  # also for NaN
            worst = float((error / reference.abs().max()).max())
            where = f"X of shape {tuple(X.shape)}, {torch.get_num_threads()} threads"
            off = f"off the exact reference by up to {worst:.1e} of its largest entry"
            raise WrongAnswerError(f"bench: {name} of {pool} on {where} is {off}; not timed")
