"""Aggregation of local descriptors by clusters, as in place recognition: NetVLAD and SALAD."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from uotpool import checks
from uotpool.nn.assignment import UOTAssignment
from uotpool.nn.base import Pooling
from uotpool.nn.clusters import k_means, nearest_scores
from uotpool.sets import DenseSets, Sets
from uotpool.sets.padding import pool_padded
from uotpool.solvers import Sinkhorn


class NetVLAD(Pooling):
    r"""Sums of residuals to learned centres, softly assigned.

    .. math::
        V_m = \sum_n a_m(x_n) (x_n - c_m), \quad a(x) = \text{softmax}(W x + b)

    Each V_m is scaled to length 1, then all of them together; y has M `dim` features. `fit` takes the
    centres from data by k-means and W = 2 alpha c, `b = -alpha |c|^2` from them, with alpha so large
    that the nearest centre has a hundred times the weight of the second on average, as in the
    paper; before that, they are random.

    Args:
        dim: number of features.
        clusters: M.

    Its parameters are `assign` (W and b) and `centres` (c).

    R. Arandjelovic, P. Gronat, A. Torii, T. Pajdla, J. Sivic, "NetVLAD: CNN architecture for weakly
    supervised place recognition", CVPR 2016.
    """

    needs_fit = True

    def __init__(self, dim: int, *, clusters: int = 64) -> None:
        super().__init__(dim)
        self.clusters = int(checks.count("clusters", clusters, 1))
        self.out_dim = self.clusters * dim
        self.assign = nn.Linear(dim, self.clusters)
        self.centres = nn.Parameter(torch.empty(self.clusters, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw random centres and assignments, in place of those of `fit`."""
        self.assign.reset_parameters()
        nn.init.normal_(self.centres, std=1 / math.sqrt(self.dim))

    def _fit(self, rows: Tensor) -> None:
        centres = k_means(rows, self.clusters, "clusters")
        self.centres.copy_(centres)
        weight, bias = nearest_scores(rows, centres)
        self.assign.weight.copy_(weight)
        self.assign.bias.copy_(bias)

    def _pool(self, X: Tensor, sets: Sets) -> Tensor:
        V = pool_padded(self._residuals, X, sets)
        return functional.normalize(functional.normalize(V, dim=-1).flatten(1), dim=-1)

    def _residuals(self, X: Tensor, sets: DenseSets) -> Tensor:
        a = sets.fill_absent(self.assign(X).softmax(-1), 0.0)
        # sum_n a_nm (x_n - c_m) without the residuals of every sample and centre.
        return a.transpose(1, 2) @ X - a.sum(1).unsqueeze(-1) * self.centres


class SALAD(UOTAssignment):
    r"""Sinkhorn algorithm for locally aggregated descriptors: balanced transport with a dustbin.

    .. math::
        V_m = \sum_n P_{nm}\, v(x_n), \quad P 1 = 1_N, \quad P^\top 1 = [1_M, N - M]

    P by a few steps of Sinkhorn from learned scores; the last column is the dustbin's. This is
    `UOTAssignment` with networks for scores and values, without centres, and with fixed marginals.
    Beyond the paper it takes padded and ragged sets, and sets of at most M samples, in which each
    cluster and the dustbin have a share of 1 / (M + 1).

    Args:
        dim: number of features.
        hidden: width of the hidden layers; default `dim` (the paper: 512).
        clusters: M.
        value_dim: number of features of a value.
        token: width of the descriptor of a global token (the paper: 256); 0: none.
        K: number of steps of Sinkhorn.

    S. Izquierdo, J. Civera, "Optimal transport aggregation for visual place recognition", CVPR 2024.
    """

    needs_fit = False
    FIXED = 1e6  # coefficient of the marginals, as good as infinite for scores of ordinary size

    def __init__(
        self,
        dim: int,
        hidden: int | None = None,
        *,
        clusters: int = 64,
        value_dim: int = 128,
        token: int = 0,
        K: int = 3,
    ) -> None:
        options: dict[str, Any] = {"centred": False, "token": token, "solver": Sinkhorn(K)}
        options |= {"hidden": dim if hidden is None else hidden, "alpha1": self.FIXED, "alpha2": self.FIXED}
        super().__init__(dim, clusters, value_dim, **options)

    def _log_p0(self, S: Tensor, sets: Sets) -> Tensor:
        N, M = sets.squeeze(sets.count(S)), self.clusters
        share = torch.where(N > M, 1 / N.clamp_min(1.0), 1.0 / (M + 1))
        return torch.cat([share.expand(-1, M), 1 - M * share], dim=-1).log()
