"""Poolings that act on each feature by itself, with at most a number or two to learn."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from uotpool.nn.base import Pooling
from uotpool.sets import Sets


def _mean(X: Tensor, sets: Sets) -> Tensor:
    return sets.squeeze(sets.sum_n(X) / sets.count(X).clamp_min(1.0))


def _log_mean_exp(Y: Tensor, sets: Sets) -> Tensor:
    # logsumexp and log N would nearly cancel where Y is small. The maximum may be a constant, since
    # its derivatives in the two terms cancel.
    top = sets.max_n(Y.detach())
    mean = sets.sum_n(torch.expm1(Y - sets.to_rows(top))) / sets.count(Y).clamp_min(1.0)
    return sets.squeeze(top + torch.log1p(mean))


def _inverse_softplus(value: float) -> float:
    return math.log(math.expm1(value))


class _OneParameter(Pooling):
    """A pooling with one learned number."""

    NAME: ClassVar[str]
    START: ClassVar[float]

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.register_parameter(self.NAME, nn.Parameter(torch.empty(())))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(getattr(self, self.NAME), self.START)


class Add(Pooling):
    r"""Add pooling, :math:`y = \sum_n x_n`."""

    def _pool(self, X: Tensor, sets: Sets) -> Tensor:
        return sets.squeeze(sets.sum_n(X))


class Mean(Pooling):
    r"""Mean pooling, :math:`y = \frac1N \sum_n x_n`."""

    def _pool(self, X: Tensor, sets: Sets) -> Tensor:
        return _mean(X, sets)


class Max(Pooling):
    r"""Max pooling, :math:`y_d = \max_n x_{nd}`. Samples that tie share the gradient."""

    def _pool(self, X: Tensor, sets: Sets) -> Tensor:
        return sets.squeeze(sets.max_n(X))


class MeanMax(Pooling):
    r"""The concatenation of mean and max pooling, :math:`y = [\text{mean}_n x_n \,\|\, \max_n x_n]`."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.out_dim = 2 * dim

    def _pool(self, X: Tensor, sets: Sets) -> Tensor:
        return torch.cat([_mean(X, sets), sets.squeeze(sets.max_n(X))], dim=-1)


class VariancePreserving(Pooling):
    r"""Variance-preserving aggregation, :math:`y = \frac{1}{\sqrt N} \sum_n x_n`.

    L. Schneckenreiter, R. Freinschlag, F. Sestak, J. Brandstetter, G. Klambauer, A. Mayr, "GNN-VPA:
    a variance-preserving aggregation strategy for graph neural networks", 2024.
    """

    def _pool(self, X: Tensor, sets: Sets) -> Tensor:
        return sets.squeeze(sets.sum_n(X) / sets.count(X).clamp_min(1.0).sqrt())


class Mixed(_OneParameter):
    r"""Mixed mean-max pooling, :math:`y = \omega\, \text{mean}_n x_n + (1 - \omega) \max_n x_n`.

    omega in (0, 1) is one learned number, sigmoid(raw_omega).

    C.-Y. Lee, P. Gallagher, Z. Tu, "Generalizing pooling functions in convolutional neural
    networks: mixed, gated, and tree", AISTATS 2016.
    """

    NAME, START = "raw_omega", 0.0
    raw_omega: Tensor

    def _pool(self, X: Tensor, sets: Sets) -> Tensor:
        return _mix(self.raw_omega.sigmoid(), _mean(X, sets), sets.squeeze(sets.max_n(X)))


class GatedMixed(Pooling):
    r"""Gated mean-max pooling: `Mixed` with :math:`\omega = \sigma(w^\top \text{mean}_n x_n + b)` for each set.

    Lee et al. gate a window of fixed size by one weight per place in it. A set has any size and no
    places, so the gate looks at its mean.

    C.-Y. Lee, P. Gallagher, Z. Tu, "Generalizing pooling functions in convolutional neural
    networks: mixed, gated, and tree", AISTATS 2016.
    """

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.gate = nn.Linear(dim, 1)

    def _pool(self, X: Tensor, sets: Sets) -> Tensor:
        mean = _mean(X, sets)
        return _mix(self.gate(mean).sigmoid(), mean, sets.squeeze(sets.max_n(X)))


def _mix(omega: Tensor, mean: Tensor, top: Tensor) -> Tensor:
    return omega * mean + (1 - omega) * top


class Softmax(_OneParameter):
    r"""Softmax pooling, :math:`y_d = \sum_n x_{nd}\, e^{t x_{nd}} / \sum_m e^{t x_{md}}`, t learned, from 1.

    t = 0 is mean and t = inf max pooling.

    G. Li, C. Xiong, A. Thabet, B. Ghanem, "DeeperGCN: all you need to train deeper GCNs", 2020.
    """

    NAME, START = "t", 1.0
    t: Tensor

    def _pool(self, X: Tensor, sets: Sets) -> Tensor:
        return sets.squeeze(sets.sum_n(X * sets.softmax_n(self.t * X)))


class LogSumExp(_OneParameter):
    r"""Log-sum-exp pooling, :math:`y_d = \frac1r \log \frac1N \sum_n e^{r x_{nd}}`, r > 0 learned, from 1.

    r = 0 is mean and r = inf max pooling. r = softplus(raw_r) + 0.01: the logarithm loses its
    digits to the division by a small r.

    P. Pinheiro, R. Collobert, "From image-level to pixel-level labeling with convolutional
    networks", CVPR 2015.
    """

    FLOOR = 1e-2
    NAME, START = "raw_r", _inverse_softplus(1.0 - FLOOR)
    raw_r: Tensor

    def _pool(self, X: Tensor, sets: Sets) -> Tensor:
        r = nn.functional.softplus(self.raw_r) + self.FLOOR
        return _log_mean_exp(r * X, sets) / r


class GeM(_OneParameter):
    r"""Generalised mean (power mean), :math:`y_d = (\frac1N \sum_n \max(x_{nd}, \epsilon)^p)^{1/p}`.

    p > 0 is learned, from 3, as softplus(raw_p) + 0.01; epsilon = 1e-6. The method is for features
    that are not negative: those below epsilon count as epsilon and get no gradient. It is computed
    by logarithms, so no power overflows.

    F. Radenovic, G. Tolias, O. Chum, "Fine-tuning CNN image retrieval with no human annotation",
    TPAMI 2018.
    """

    FLOOR, EPSILON = 1e-2, 1e-6
    NAME, START = "raw_p", _inverse_softplus(3.0 - FLOOR)
    raw_p: Tensor

    def _pool(self, X: Tensor, sets: Sets) -> Tensor:
        p = nn.functional.softplus(self.raw_p) + self.FLOOR
        return (_log_mean_exp(p * X.clamp_min(self.EPSILON).log(), sets) / p).exp()


class GNP(Pooling):
    r"""Generalised norm-based pooling, :math:`y = W g + b`, :math:`g_d = (N^{-q} \sum_n |x_{nd}|^p)^{1/p}`.

    The first half of the features has an exponent p > 0 and the other half p < 0, each with its own
    q. All four are learned, from p = 1 and -1 and q = 1, with `|p| = softplus(raw_p) + 0.1`. Signs
    are lost, so the method is for features that are not negative; add, mean, max and min pooling of
    those are settings of it. It is computed by logarithms of `|x| + 1e-6`. With one feature the
    p and q of the other half have no effect.

    J. Ko, T. Kwon, K. Shin, J. Lee, "Learning to pool in graph neural networks for extrapolation",
    2021.
    """

    FLOOR, EPSILON = 0.1, 1e-6
    LARGEST = 80.0  # its exp is still a float32

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.raw_p = nn.Parameter(torch.empty(2))
        self.q = nn.Parameter(torch.empty(2))
        self.linear = nn.Linear(dim, dim)
        half = (dim + 1) // 2
        self._halves = [half, dim - half]
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.raw_p, _inverse_softplus(1.0 - self.FLOOR))
        nn.init.ones_(self.q)
        self.linear.reset_parameters()

    def _pool(self, X: Tensor, sets: Sets) -> Tensor:
        size = nn.functional.softplus(self.raw_p) + self.FLOOR
        p = torch.cat([size[:1].expand(self._halves[0]), -size[1:].expand(self._halves[1])])
        q = torch.cat([self.q[i].expand(half) for i, half in enumerate(self._halves)])
        log_sum = sets.squeeze(sets.logsumexp_n(p * (X.abs() + self.EPSILON).log()))
        log_count = sets.squeeze(sets.count(X).clamp_min(1.0).log())
        return self.linear(((log_sum - q * log_count) / p).clamp_max(self.LARGEST).exp())
