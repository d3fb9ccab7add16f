"""From tensors to launches: the K modules of a batch of sets, forward and backward, on whatever device X is.

On a GPU the kernels run. Under TRITON_INTERPRET=1, set before the first import of triton, they are
interpreted on CPU tensors: slow, and for tests. No value is read on the host, and shapes decide all that is
launched.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from uotpool.backends.triton import badmm_e_calls, badmm_q_calls, sinkhorn_calls
from uotpool.backends.triton.arguments import Arguments, Saved
from uotpool.backends.triton.choice import Choice, choose, narrow
from uotpool.backends.triton.launching import on, target

SOLVERS: dict[str, Any] = {"sinkhorn": sinkhorn_calls, "badmm-e": badmm_e_calls, "badmm-q": badmm_q_calls}


def chosen(p: Arguments) -> Choice:
    """Return the choice of a call."""
    M, D = p.X.shape
    if p.solver == "badmm-q":
        return narrow(D, p.X.element_size())
    modules = p.K if p.solver == "sinkhorn" else p.K + 1  # with the closing update
    light = p.solver == "sinkhorn" and p.scale is None
    processors = target(p.X.device).processors
    heavy = p.solver == "badmm-e"
    return choose(M, p.num_sets, D, modules, p.X.element_size(), processors, light=light, heavy=heavy)


def forward(p: Arguments, *, save: bool = True, choice: Choice | None = None) -> tuple[Tensor, Saved | None]:
    """Return the pooled output (B, D), or the plan (M, D), and with `save` what its derivatives need.

    Args:
        p: what to solve.
        save: whether derivatives may be asked for.
        choice: the regime and the tiles, in place of those that the shapes choose.
    """
    out = torch.empty(p.output_shape(), dtype=p.X.dtype, device=p.X.device)
    saved = Saved.empty(p) if save else None
    if p.X.shape[0] == 0 or p.num_sets == 0:
        return out.zero_(), saved
    choice = chosen(p) if choice is None else choice
    with on(p.X.device):
        SOLVERS[p.solver].forward(p, out, saved, choice)
    return out, saved


def backward(
    dout: Tensor, p: Arguments, saved: Saved, wanted: list[bool], *, choice: Choice | None = None
) -> list[Tensor | None]:
    """Return the derivatives by each of `p.differentiable()`; None for one that is not wanted.

    Args:
        dout: derivative by the output, contiguous.
        p: what was solved.
        saved: what `forward` saved.
        wanted: which derivatives to return.
        choice: that of `forward`.
    """
    wanted = [w and t is not None for t, w in zip(p.differentiable(), wanted, strict=True)]
    if p.X.shape[0] == 0 or p.num_sets == 0:
        return [torch.zeros_like(t) if w else None for t, w in zip(p.differentiable(), wanted, strict=True)]  # type: ignore[arg-type]
    choice = chosen(p) if choice is None else choice
    with on(p.X.device):
        found: list[Tensor | None] = SOLVERS[p.solver].Backward(dout, p, saved, wanted, choice).run()
    return found
