"""Poolings by optimal transport between the samples and a reference set."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from uotpool import checks
from uotpool.nn.base import Pooling
from uotpool.nn.clusters import check_enough, k_means, squared_distances
from uotpool.sets import DenseSets, Sets, logsumexp_d
from uotpool.sets.padding import pool_padded
from uotpool.zoo.attention import MAX_STEPS


def transport_plan(score: Tensor, sets: DenseSets, epsilon: float, steps: int) -> Tensor:
    """Return P (B, N, M) that maximises <score, P> + epsilon entropy, with rows of 1/N and columns of 1/M.

    Each step of Sinkhorn fits the rows and then the columns, so the columns are exact in the
    result. A small epsilon needs many steps, so epsilon falls from 1 during the first half of them,
    for scores of that size.
    """
    log_rows = -sets.count(score).clamp_min(1.0).log()
    log_columns = -math.log(score.shape[-1])
    g = torch.zeros_like(score[:, :1])
    for i in range(steps):
        e = max(epsilon, epsilon ** (2 * i / steps))
        f = e * (log_rows - logsumexp_d((score + g) / e))
        g = e * (log_columns - sets.logsumexp_n((score + f) / e))
    # Absent rows are filled before the exponential: theirs may be infinite, and 0 times it is NaN
    # in the backward pass.
    return sets.fill_absent((score + f + g) / e, -torch.inf).exp()


class WEGL(Pooling):
    r"""Wasserstein embedding: the displacement of each point of a reference set by optimal transport.

    .. math::
        y_j = \frac{1}{\sqrt M} (M \sum_n P_{nj} x_n - z_j), \quad j = 1 \ldots M

    with P the optimal transport from X to the references z by squared distance; y has M `dim`
    features. Kolouri et al. solve a linear program for each graph. That cannot be batched, so here
    P has an entropic term of `epsilon` times the mean cost of a set and comes from `steps` steps of
    Sinkhorn: for sets of 20 to 500 standard normal samples y is within 15 to 19 % of theirs
    (epsilon = 0.005, 100 steps: 11 to 13 %). `fit` takes the references from data, by k-means as in
    the paper; before that, they are standard normal. They are not learned.

    Args:
        dim: number of features.
        references: M.
        epsilon: coefficient of the entropy, in units of the mean cost.
        steps: number of steps of Sinkhorn.

    S. Kolouri, N. Naderializadeh, G. Rohde, H. Hoffmann, "Wasserstein embedding for graph
    learning", ICLR 2021.
    """

    needs_fit = True
    Z: Tensor

    def __init__(self, dim: int, *, references: int = 8, epsilon: float = 0.01, steps: int = 50) -> None:
        super().__init__(dim)
        self.out_dim = checks.count("references", references, 1) * dim
        self.epsilon = checks.number("epsilon", epsilon, positive=True)
        self.steps = checks.count("steps", steps, 1, high=MAX_STEPS)
        self.register_buffer("Z", torch.empty(references, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw references from a standard normal, in place of those of `fit`."""
        self.Z.normal_()

    def _fit(self, rows: Tensor) -> None:
        self.Z.copy_(k_means(rows, self.Z.shape[0], "references"))

    def _pool(self, X: Tensor, sets: Sets) -> Tensor:
        return pool_padded(self._embed, X, sets)

    def _embed(self, X: Tensor, sets: DenseSets) -> Tensor:
        M = self.Z.shape[0]
        cost = squared_distances(X, self.Z)
        mean_cost = sets.sum_all(cost) / (M * sets.count(cost).clamp_min(1.0))
        tiny = torch.finfo(X.dtype).tiny ** 0.5
        P = transport_plan(-cost / (mean_cost + tiny), sets, self.epsilon, self.steps)
        carried = M * P.transpose(1, 2) @ X
        return ((carried - self.Z) / math.sqrt(M)).flatten(1)


class OTK(Pooling):
    r"""Optimal transport kernel embedding: samples in the space of a kernel are carried to learned references.

    .. math::
        y_j &= \sqrt p \sum_n P_{nj} \psi(x_n), \quad j = 1 \ldots p \\
        \psi(x) &= L^{-1} [\kappa(w_i, x)]_i, \quad L L^\top = [\kappa(w_i, w_j)]_{ij}

    P is the entropic transport plan from X to the references z by the kernel :math:`\langle
    \psi(x_n), z_j \rangle`; psi is the Nystrom map of the Gaussian kernel :math:`\kappa(x, w) =
    e^{-|x - w|^2 / (2 s)}` by `hidden` anchors w; y has p `hidden` features. (The paper has the
    symmetric root of the kernel matrix for L: a rotation of y.) References and anchors are learned.
    `fit` starts them from k-means, and s from the mean squared distance; before that, they are
    random, and s = `dim`, for features of unit variance.

    Args:
        dim: number of features.
        hidden: number of anchors; default `dim`.
        references: p.
        epsilon: coefficient of the entropy.
        steps: number of steps of Sinkhorn.

    G. Mialon, D. Chen, A. d'Aspremont, J. Mairal, "A trainable optimal transport embedding for
    feature aggregation and its relationship to attention", ICLR 2021.
    """

    needs_fit = True
    RIDGE = 1e-3  # on the kernel matrix of the anchors, which may be singular
    log_s: Tensor  # a logarithm, as s of ordinary features can be beyond float16

    def __init__(
        self,
        dim: int,
        hidden: int | None = None,
        *,
        references: int = 4,
        epsilon: float = 0.1,
        steps: int = 20,
    ) -> None:
        super().__init__(dim)
        hidden = dim if hidden is None else checks.count("hidden", hidden, 1)
        self.out_dim = checks.count("references", references, 1) * hidden
        self.epsilon = checks.number("epsilon", epsilon, positive=True)
        self.steps = checks.count("steps", steps, 1, high=MAX_STEPS)
        self.anchors = nn.Parameter(torch.empty(hidden, dim))
        self.Z = nn.Parameter(torch.empty(references, hidden))
        self.register_buffer("log_s", torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw random anchors and references, in place of those of `fit`."""
        nn.init.normal_(self.anchors)
        nn.init.normal_(self.Z, std=1 / math.sqrt(self.Z.shape[1]))
        self.log_s.fill_(math.log(self.dim))

    def _fit(self, rows: Tensor) -> None:
        p, k = self.Z.shape
        check_enough(rows, p, "references")
        anchors = k_means(rows, k, "hidden")
        variance = rows.var(0, unbiased=False).sum()  # half the mean squared distance of two rows
        s = 2 * variance if variance > 0 else torch.ones_like(variance)
        Z = k_means(self._psi(rows, anchors, s), p, "references")
        for parameter, value in ((self.anchors, anchors), (self.log_s, s.log()), (self.Z, Z)):
            parameter.copy_(value)

    def _psi(self, X: Tensor, anchors: Tensor, s: Tensor) -> Tensor:
        def kernel(X: Tensor) -> Tensor:
            return (-squared_distances(X, anchors) / (2 * s)).exp()

        k = anchors.shape[0]
        L = torch.linalg.cholesky(kernel(anchors) + self.RIDGE * torch.eye(k, dtype=X.dtype, device=X.device))
        flat = kernel(X).flatten(0, -2)
        return torch.linalg.solve_triangular(L, flat.T, upper=False).T.reshape(*X.shape[:-1], k)

    def _pool(self, X: Tensor, sets: Sets) -> Tensor:
        return pool_padded(self._embed, X, sets)

    def _embed(self, X: Tensor, sets: DenseSets) -> Tensor:
        psi = self._psi(X, self.anchors, self.log_s.exp())
        P = transport_plan(psi @ self.Z.T, sets, self.epsilon, self.steps)
        return (math.sqrt(self.Z.shape[0]) * P.transpose(1, 2) @ psi).flatten(1)


class SlicedWasserstein(Pooling):
    r"""Pooling by sliced-Wasserstein embedding: quantiles along learned directions, less learned quantiles.

    .. math::
        y_l = \sum_m w_m (Q_l(\tfrac{m - 1/2}{M}) - r_{ml}), \quad l = 1 \ldots L

    where Q_l is the quantile function of the samples' projections :math:`\theta_l^\top x_n /
    |\theta_l|` (linear between sorted values, constant beyond the outer ones) and r the projected
    reference, sorted along each direction.

    Args:
        dim: number of features.
        hidden: L, the number of directions; default `dim`.
        references: M.

    N. Naderializadeh, J. Comer, R. Andrews, H. Hoffmann, S. Kolouri, "Pooling by sliced-Wasserstein
    embedding", NeurIPS 2021.
    """

    def __init__(self, dim: int, hidden: int | None = None, *, references: int = 16) -> None:
        super().__init__(dim)
        self.out_dim = hidden = dim if hidden is None else checks.count("hidden", hidden, 1)
        M = checks.count("references", references, 1)
        self.theta = nn.Parameter(torch.empty(hidden, dim))
        self.reference = nn.Parameter(torch.empty(M, hidden))
        self.w = nn.Parameter(torch.empty(M))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.theta)
        # The reference starts at the quantiles of a standard normal, so unit features start with a
        # difference near 0.
        M = self.reference.shape[0]
        t = (torch.arange(M, dtype=torch.float64, device=self.reference.device) + 0.5) / M
        with torch.no_grad():
            self.reference.copy_(torch.special.ndtri(t)[:, None].expand_as(self.reference))
        nn.init.uniform_(self.w, -1 / math.sqrt(M), 1 / math.sqrt(M))

    def _pool(self, X: Tensor, sets: Sets) -> Tensor:
        return pool_padded(self._embed, X, sets)

    def _embed(self, X: Tensor, sets: DenseSets) -> Tensor:
        directions = self.theta / torch.linalg.vector_norm(self.theta, dim=1, keepdim=True)
        # Absent rows come behind all others.
        values = sets.fill_absent(X @ directions.T, torch.inf).sort(dim=1).values
        M = self.reference.shape[0]
        count = sets.count(X).clamp_min(1.0)  # (B, 1, 1)
        t = (torch.arange(M, dtype=X.dtype, device=X.device) + 0.5) / M
        place = (count * t[None, :, None] - 0.5).clamp_min(0.0)
        place = torch.minimum(place, count - 1)  # (B, M, 1)
        low = place.floor()
        high = torch.minimum(low + 1, count - 1)
        below, above = (values.gather(1, i.long().expand(-1, -1, values.shape[2])) for i in (low, high))
        quantiles = below + (place - low) * (above - below)
        return torch.einsum("m,bml->bl", self.w, quantiles - self.reference.sort(dim=0).values)
