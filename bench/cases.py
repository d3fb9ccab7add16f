"""The layers that are timed, and the check that comes before."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from uotpool_experiments.solvers import solver_of

from bench.timing import Pool, samples
from uotpool import Learned, UOTPooling, explain_impl


class WrongAnswerError(SystemExit):
    """An implementation that is to be timed gives other numbers than the reference."""


def show(size: tuple[int, ...]) -> str:
    return " x ".join(f"{n:,}" for n in size)


def only_reference() -> bool:
    """Nothing but the reference can run here, which takes much memory for its backward pass."""
    return explain_impl(torch.empty(1, 1, 1)).startswith("reference")


def layer(D: int, solver: str, K: int = 4, formulation: str = "exact", **how: Any) -> UOTPooling:
    """Make a layer whose learned weights differ between modules; the same solver and K give the same ones."""
    torch.manual_seed(1)
    steps = solver_of(solver, formulation, K)
    names = ("alpha0", "alpha1", "alpha2", *(("rho",) if steps.uses_rho else ()))
    learned: dict[str, Any] = dict.fromkeys(names, Learned(transform="softplus", per_step=True))
    return UOTPooling(D, steps, **{"scale": 1.0} | learned | how)


class Answer(NamedTuple):
    y: Tensor
    dX: Tensor


def answer(pool: Pool, X: Tensor, **layout: Any) -> Answer:
    leaf = X.detach().requires_grad_()
    y = pool(leaf, **layout)
    (dX,) = torch.autograd.grad(y, leaf, samples(tuple(y.shape), seed=2))
    return Answer(y.detach(), dX)


def truth(pool: UOTPooling, X: Tensor, **layout: Any) -> Answer:
    """Return what the exact reference gives with the layer's weights."""
    twin = UOTPooling.from_config(pool.get_config(), impl="reference")
    twin.load_state_dict(pool.state_dict())
    return answer(twin, X, **layout)


def verify(pool: Pool, expected: Answer, X: Tensor, **layout: Any) -> None:
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
