"""From tensors to a call of the library and back: the K modules of a batch of sets, forward and backward."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from uotpool.backends.cpu import library
from uotpool.backends.tensors import plain
from uotpool.problem import LearnedWeights

DTYPES = (torch.float32, torch.float64)
_DTYPE_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
_NO_RAW: tuple[int, ...] = (0, 0, 0, 0)
MOST_THREADS, MOST_MODULES = 4096, 2**20  # that the library takes


class Arguments(NamedTuple):
    """What the library is to solve. csrc/uotpool.h says which rows are in which set."""

    X: Tensor  # (M, D), or (B, N, D)
    ptr: Tensor | None
    order: Tensor | None
    N: int
    log_p0: Tensor | None
    log_q0: Tensor | None
    weights: Tensor | None  # (3 or 4, K); None with `learned`
    scale: Tensor | None  # (1,) or (D,)
    num_sets: int
    solver: str
    plan: bool
    # Of an eager call only. Operators take `weights`, and scales themselves.
    learned: LearnedWeights | None = None
    raw_scale: bool = False  # the scales are RATE times `scale`

    @property
    def K(self) -> int:
        if self.learned is not None:
            return self.learned.K
        assert self.weights is not None
        return self.weights.shape[1]

    def differentiable(self) -> tuple[Tensor | None, ...]:
        """Return the tensors that a derivative can be asked for."""
        raw = () if self.learned is None else self.learned.raw
        return self.X, self.log_p0, self.log_q0, self.weights, self.scale, *raw

    def tensors(self) -> tuple[Tensor | None, ...]:
        """Return all tensors."""
        return *self.differentiable(), self.ptr, self.order

    def output_shape(self) -> Any:
        """Return the shape of the pooled output, or of the plan."""
        return self.X.shape if self.plan else (self.num_sets, self.X.shape[-1])


def native() -> Any:
    """Return the library. Calls come here only where `library.missing()` has nothing to say."""
    return library.load()


def address(x: Tensor | None) -> int:
    """Return where x is in memory; 0 for None."""
    return 0 if x is None else x.data_ptr()


def forward(p: Arguments) -> Tensor:
    """Return the pooled output (B, D), or the plan in the shape of X."""
    out = p.X.new_empty(p.output_shape())
    if out.numel() == 0:  # the library would look at every set, and there can be 2^40 of them without a row
        return out
    _solve(p, "uotpool_forward", 0, out.data_ptr(), 0, 0, 0, 0, 0, 0, 0, 0, 0)
    return out


def derivatives(dout: Tensor, p: Arguments, wanted: list[bool]) -> list[Tensor | None]:
    """Return the derivatives by each of `p.differentiable()`; None for one that is not wanted."""
    pairs = zip(p.differentiable(), wanted, strict=True)
    if p.X.numel() == 0:
        return [None if t is None or not w else torch.zeros_like(t) for t, w in pairs]
    made = [None if t is None or not w else torch.empty_like(t) for t, w in pairs]
    dout = plain(dout)  # named, as it has to live until the call is over
    addresses = [address(t) for t in made]
    _solve(p, "uotpool_backward", dout.data_ptr(), 0, *addresses, *[0] * (9 - len(addresses)))
    return made


def _solve(p: Arguments, name: str, *outputs: int) -> None:
    """Solve all sets by the function of the library with this name.

    Args:
        p: what to solve.
        name: of the function.
        outputs: addresses of dout, out, and the derivatives.
    """
    X, ptr, order, N, log_p0, log_q0, weights, scale, num_sets, solver, plan, learned, raw_scale = p
    D = X.shape[-1]
    M = X.numel() // D
    if learned is None:
        K, lengths, forms, raw = p.K, _NO_RAW, _NO_RAW, _NO_RAW
    else:
        K, no_rho = learned.K, _NO_RAW[len(learned.raw) :]
        lengths = (*[t.shape[0] for t in learned.raw], *no_rho)
        forms = (*[library.FORMS[form] for form in learned.forms], *no_rho)
        raw = (*[t.data_ptr() for t in learned.raw], *no_rho)
    call = library.pack(
        _DTYPE_CODES[X.dtype],
        library.SOLVERS[solver],
        plan,
        K,
        num_sets,
        M,
        N,
        D,
        min(torch.get_num_threads(), MOST_THREADS),
        log_p0 is not None and log_p0.dim() == 1,
        *lengths,
        *forms,
        0 if scale is None else scale.shape[0],
        library.TIMES_RATE if raw_scale else 0,
        X.data_ptr(),
        0 if ptr is None else ptr.data_ptr(),
        0 if order is None else order.data_ptr(),
        0 if log_p0 is None else log_p0.data_ptr(),
        0 if log_q0 is None else log_q0.data_ptr(),
        0 if weights is None else weights.data_ptr(),
        0 if scale is None else scale.data_ptr(),
        *outputs[:7],
        *raw,
        *outputs[7:],
    )
    library.check(getattr(native(), name)(call))


def group(
    rows: Tensor, index: Tensor | None, present: Tensor | None, num_sets: int, N: int
) -> tuple[Tensor, Tensor]:
    """Return ptr, and the order of the rows that are there, by set."""
    M = rows.shape[0]
    ptr = torch.empty(num_sets + 1, dtype=torch.int64, device=rows.device)
    order = torch.empty(M, dtype=torch.int64, device=rows.device)
    library.check(
        native().uotpool_group(
            address(index), address(present), M, num_sets, N, ptr.data_ptr(), order.data_ptr()
        )
    )
    return ptr, order
