"""Poolings that transform samples by a network, then sum or average."""

from __future__ import annotations

from torch import Tensor

from uotpool import checks
from uotpool.nn.base import Pooling, mlp
from uotpool.sets import Sets


class DeepSet(Pooling):
    r"""Deep Sets, :math:`y = \rho(\sum_n \phi(x_n))` with two networks of two layers, ReLU between them.

    Args:
        dim: number of features.
        hidden: width of both hidden layers and of the sum; default `dim`.

    M. Zaheer, S. Kottur, S. Ravanbakhsh, B. Poczos, R. Salakhutdinov, A. Smola, "Deep sets",
    NeurIPS 2017.
    """

    def __init__(self, dim: int, hidden: int | None = None) -> None:
        super().__init__(dim)
        hidden = self.dim if hidden is None else checks.count("hidden", hidden, 1)
        self.phi = mlp(dim, hidden, hidden)
        self.rho = mlp(hidden, hidden, dim)

    def _pool(self, X: Tensor, sets: Sets) -> Tensor:
        return self.rho(sets.squeeze(sets.sum_n(self.phi(X))))


class NetworkInNetwork(Pooling):
    r"""Network in network, :math:`y = \frac1N \sum_n \text{relu}(W_2\, \text{relu}(W_1 x_n + b_1) + b_2)`.

    On an image this is two 1 x 1 convolutions and global average pooling.

    Args:
        dim: number of features.
        hidden: rows of W1; default `dim`.

    M. Lin, Q. Chen, S. Yan, "Network in network", 2013.
    """

    def __init__(self, dim: int, hidden: int | None = None) -> None:
        super().__init__(dim)
        hidden = self.dim if hidden is None else checks.count("hidden", hidden, 1)
        self.network = mlp(dim, hidden, dim)

    def _pool(self, X: Tensor, sets: Sets) -> Tensor:
        total = sets.sum_n(self.network(X).relu())
        return sets.squeeze(total / sets.count(X).clamp_min(1.0))
