"""Poolings that weigh the samples: attention and dynamic pooling."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from uotpool import checks
from uotpool.nn import SamplePrior
from uotpool.nn.base import Pooling
from uotpool.sets import Sets

MAX_STEPS = 10_000  # of iterations that a pooling runs in every call


class Attention(Pooling):
    r"""Attention pooling, :math:`y = \sum_n a_n x_n`, :math:`a = \text{softmax}_n(w^\top \tanh(V x_n))`.

    Args:
        dim: number of features.
        hidden: rows of V; default `dim`.

    M. Ilse, J. Tomczak, M. Welling, "Attention-based deep multiple instance learning", ICML 2018.
    """

    def __init__(self, dim: int, hidden: int | None = None) -> None:
        super().__init__(dim)
        self.score = SamplePrior(dim, hidden)

    def _attention(self, X: Tensor, sets: Sets) -> Tensor:
        return sets.softmax_n(self.score(X))

    def _pool(self, X: Tensor, sets: Sets) -> Tensor:
        return sets.squeeze(sets.sum_n(X * self._attention(X, sets)))


class GatedAttention(Pooling):
    r"""Gated attention, :math:`a = \text{softmax}_n(w^\top (\tanh(V x_n) \odot \sigma(U x_n)))`.

    :math:`y = \sum_n a_n x_n`, as `Attention`.

    Args:
        dim: number of features.
        hidden: rows of V and U; default `dim`.

    M. Ilse, J. Tomczak, M. Welling, "Attention-based deep multiple instance learning", ICML 2018.
    """

    def __init__(self, dim: int, hidden: int | None = None) -> None:
        super().__init__(dim)
        hidden = self.dim if hidden is None else checks.count("hidden", hidden, 1)
        self.V = nn.Linear(dim, hidden, bias=False)
        self.U = nn.Linear(dim, hidden, bias=False)
        self.w = nn.Linear(hidden, 1, bias=False)

    def _attention(self, X: Tensor, sets: Sets) -> Tensor:
        return sets.softmax_n(self.w(self.V(X).tanh() * self.U(X).sigmoid()))

    def _pool(self, X: Tensor, sets: Sets) -> Tensor:
        return sets.squeeze(sets.sum_n(X * self._attention(X, sets)))


class Dynamic(Pooling):
    r"""Dynamic pooling: samples are routed to the set, as between capsules.

    .. math::
        c &= \text{softmax}_n(b) \\
        v &= \text{squash}(\sum_n c_n x_n) \\
        b_n &\leftarrow b_n + x_n^\top v

    from b = 0, with :math:`\text{squash}(s) = \frac{|s|^2}{1 + |s|^2} \frac{s}{|s|}`; y is the last
    v. There are no parameters.

    Args:
        dim: number of features.
        steps: number of times that v is computed.

    Y. Yan, X. Wang, X. Guo, J. Fang, W. Liu, J. Huang, "Deep multi-instance learning with dynamic
    pooling", ACML 2018.
    """

    def __init__(self, dim: int, *, steps: int = 3) -> None:
        super().__init__(dim)
        self.steps = checks.count("steps", steps, 1, high=MAX_STEPS)

    def _attention(self, X: Tensor, sets: Sets) -> Tensor:
        """Return the couplings c of the last step."""
        b = torch.zeros_like(X[..., :1])
        for _ in range(self.steps - 1):
            v = _squash(sets.sum_n(X * sets.softmax_n(b)))
            b = b + (X * sets.to_rows(v)).sum(-1, keepdim=True)
        return sets.softmax_n(b)

    def _pool(self, X: Tensor, sets: Sets) -> Tensor:
        return sets.squeeze(_squash(sets.sum_n(X * self._attention(X, sets))))


def _squash(s: Tensor) -> Tensor:
    # The length is in units of the largest entry, since squares would overflow or vanish. A root
    # has no derivative at 0.
    info = torch.finfo(s.dtype)
    largest = s.detach().abs().amax(-1, keepdim=True).clamp_min(info.tiny)
    length = largest * ((s / largest).square().sum(-1, keepdim=True) + info.tiny).sqrt()
    length = length.clamp_min(info.tiny**0.5)
    return s / (length + 1 / length)
