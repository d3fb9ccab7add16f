"""Aggregation by an unbalanced transport plan between samples and learned clusters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from uotpool import backends, checks
from uotpool.backends.call import Call
from uotpool.coefficients import Coefficient
from uotpool.inputs import as_sets, in_layout_of
from uotpool.nn.base import mlp, no_autocast
from uotpool.nn.clusters import k_means, nearest_scores
from uotpool.nn.learned import CoefficientPooling
from uotpool.sets import DenseSets, Sets
from uotpool.sets.padding import pool_padded
from uotpool.solvers import Sinkhorn, Solver


class UOTAssignment(CoefficientPooling):
    r"""Assign samples to clusters by unbalanced optimal transport, and sum their values in each cluster.

    .. math::
        V_m &= \sum_n P_{nm} (v(x_n) - c_m) \\
        P &= \arg\min_{P \ge 0,\ \sum P = 1} -\langle [s(X), z], P\rangle + \alpha_0 R(P) \\
        &\quad + \alpha_1 KL(\sum_n P \,|\, p_0) + \alpha_2 KL(\sum_m P \,|\, q_0)

    The scores s(x), the values v(x) and the centres c are learned, and so is z, the score of a
    dustbin: a column of the plan that takes the mass of samples of no cluster, and is left out of the
    sum. Each V_m is scaled to length 1, then their concatenation, for retrieval by inner products.

    `fit` runs k-means on training samples and sets centres, and scores that prefer the nearest
    cluster; before that, scores are random and centres are 0. `docs/use/retrieval.md` has results.

    With alpha1 = 0 and a large alpha2 the plan is a softmax over clusters for each sample (as in
    NetVLAD); with large alpha1 and alpha2 it is balanced transport (as in SALAD); between these,
    clusters and samples may have less or more mass than their priors.

    Args:
        dim: number of features D of a sample.
        clusters: number of clusters M.
        value_dim: number of features L of a value.
        hidden: width of a hidden layer of s, v and the token's map; default: none, all are linear.
        centred: whether there are centres c; else they are 0.
        dustbin: whether there is a dustbin.
        dustbin_share: share of the dustbin in p0, default 0.5; clusters share the rest evenly.
        token: width T of the descriptor of a global token, such as the class token of a
            transformer; 0: there is none. See `forward`.
        score: module in place of the default s, (..., D) -> (..., M).
        value: module in place of the default v, (..., D) -> (..., L).
        solver, alpha0, alpha1, alpha2, rho, impl: as in `UOTPooling`.

    Shape:
        X (B, N, D), or (M, D) with `index` or `ptr` -> (B, T + M L). Ragged sets are padded by their
        sizes, which `torch.compile(fullgraph=True)` cannot know; padded sets with a mask it can.

    Example:
        >>> pool = UOTAssignment(dim=64, clusters=16, value_dim=32)
        >>> X = torch.rand(2, 100, 64)
        >>> pool(X).shape
        torch.Size([2, 512])
        >>> pool.plan(X).shape  # the last column is the dustbin's
        torch.Size([2, 100, 17])

    In parameters, `score` and `value` are the maps s and v (`score.0` and `score.2` their linear
    layers if `hidden` is given), `centres` is c, `dustbin` is z, and `token` the map of the token.
    """

    needs_fit = True

    def __init__(
        self,
        dim: int,
        clusters: int = 64,
        value_dim: int = 128,
        *,
        hidden: int | None = None,
        centred: bool = True,
        dustbin: bool = True,
        dustbin_share: float | None = None,
        token: int = 0,
        score: nn.Module | None = None,
        value: nn.Module | None = None,
        solver: Solver | str = Sinkhorn(K=3),  # noqa: B008 # it is a value
        alpha0: Coefficient = 1.0,
        alpha1: Coefficient = 1.0,
        alpha2: Coefficient = 1.0,
        rho: Coefficient | None = None,
        impl: str = "auto",
    ) -> None:
        checks.flag("centred", centred)
        checks.flag("dustbin", dustbin)
        super().__init__(dim, solver, {"alpha0": alpha0, "alpha1": alpha1, "alpha2": alpha2, "rho": rho})
        backends.check_impl(impl)
        self.impl = impl
        self.clusters = int(checks.count("clusters", clusters, 1))
        self.value_dim = int(checks.count("value_dim", value_dim, 1))
        self.token_dim = int(checks.count("token", token, 0))
        self.out_dim = self.token_dim + self.clusters * self.value_dim
        widths = (dim,) if hidden is None else (dim, int(checks.count("hidden", hidden, 1)))
        for name, module in (("score", score), ("value", value)):
            if module is not None and not isinstance(module, nn.Module):
                checks.fail(name, "a module, or None", module, TypeError)
        self.score = _map(*widths, self.clusters) if score is None else score
        self.value = _map(*widths, self.value_dim) if value is None else value
        self.token = _map(*widths, self.token_dim) if token else None
        self.centres: nn.Parameter | None
        zeros = torch.zeros(self.clusters, self.value_dim)
        self.register_parameter("centres", nn.Parameter(zeros) if centred else None)
        self.dustbin: nn.Parameter | None
        self.register_parameter("dustbin", nn.Parameter(torch.ones(())) if dustbin else None)
        if dustbin_share is not None and not dustbin:
            checks.fail("dustbin_share", "None with dustbin=False", dustbin_share)
        share = 0.5 if dustbin_share is None else dustbin_share
        self.dustbin_share = checks.number("dustbin_share", share, positive=True)
        if self.dustbin_share >= 1:
            checks.fail("dustbin_share", "a number between 0 and 1", dustbin_share)

    def reset_parameters(self) -> None:
        """Draw all parameters anew, from torch's generator."""
        super().reset_parameters()
        self._draw()
        if self.dustbin is not None:
            nn.init.ones_(self.dustbin)
        if self.centres is not None:
            nn.init.zeros_(self.centres)

    def _fit(self, rows: Tensor) -> None:
        if not isinstance(self.score, nn.Linear) or self.score.bias is None:
            raise ValueError(
                "score: expected a linear layer with a bias to fit, the default without hidden= and score=, "
                f"got {self.score}"
            )
        centres = k_means(rows, self.clusters, "clusters")
        weight, bias = nearest_scores(rows, centres)
        # The plan divides scores by alpha0. The dustbin is compared with the best score, which is 0 on average.
        alpha0 = float(self.coefficients()["alpha0"][-1])
        self.score.weight.copy_(alpha0 * weight)
        self.score.bias.copy_(alpha0 * (bias - (rows @ weight.T + bias).amax(-1).mean()))
        if self.centres is not None:
            self.centres.copy_(self.value(centres))

    def forward(
        self,
        X: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        mask: Tensor | None = None,
        *,
        token: Tensor | None = None,
    ) -> Tensor:
        """Return the descriptor of each set, (B, T + M L), of length 1, in the dtype of X.

        Args:
            X, index, ptr, dim_size, mask: as in `UOTPooling`.
            token: the global token of each set, (B, D), for a layer with the option `token`. Its descriptor,
                scaled to length 1, comes first, and is the only non-zero part for an empty set.
        """
        V = super().forward(X, index, ptr, dim_size, mask)[:, self.token_dim :]
        if (token is None) != (self.token is None):
            accepted = f"a tensor ({V.shape[0]}, {self.dim})" if self.token is not None else "None"
            checks.fail("token", f"{accepted} for a layer with token={self.token_dim}", token)
        if token is None or self.token is None:
            return V
        checks.floating_of_shape("token", token, V, (V.shape[0], self.dim))
        with no_autocast(X.device.type):
            wide = token.to(torch.promote_types(token.dtype, torch.float32))
            layer = self._in_precision_of(wide)
            assert layer.token is not None
            parts = torch.cat([functional.normalize(layer.token(wide), dim=-1), V.to(wide.dtype)], dim=-1)
            return functional.normalize(parts, dim=-1).to(X.dtype)

    def plan(
        self,
        X: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Return the plan in the layout of X and at least float32: a column per cluster, then the dustbin."""
        rows, sets = as_sets(X, index, ptr, dim_size, mask, dim=self.dim)
        with no_autocast(rows.device.type):
            P = self._in_precision_of(rows)._plan(rows, sets)
        return in_layout_of(X, P)

    def _pool(self, X: Tensor, sets: Sets) -> Tensor:
        V = functional.normalize(pool_padded(self._sums, X, sets), dim=-1).flatten(1)
        # A token joins the clusters while these are of length 1 each.
        return functional.normalize(V, dim=-1) if self.token is None else functional.pad(V, (self.token_dim, 0))

    def _sums(self, X: Tensor, sets: DenseSets) -> Tensor:
        """Return the sums of values, (B, M, L). No tensor of samples x clusters x values is made."""
        P = self._plan(X, sets)[..., : self.clusters]
        values = self.value(X)
        if values.shape != (*X.shape[:-1], self.value_dim):
            accepted = f"a module that returns {self.value_dim} values per sample (value_dim)"
            checks.fail("value", accepted, values)
        V = P.transpose(1, 2) @ sets.fill_absent(values, 0.0)
        return V if self.centres is None else V - P.sum(1).unsqueeze(-1) * self.centres

    def _plan(self, X: Tensor, sets: Sets) -> Tensor:
        S = self.score(X)
        if S.shape != (*X.shape[:-1], self.clusters):
            checks.fail("score", f"a module that returns {self.clusters} scores per sample (clusters)", S)
        if self.dustbin is not None:
            S = torch.cat([S, self.dustbin.expand(*S.shape[:-1], 1)], dim=-1)
        S = sets.fill_absent(S, 0.0).contiguous()
        call = Call(S, sets, self._log_p0(S, sets), None, self._coefficients(S), self.solver)
        return backends.choose(S, self.solver, self.impl).solve(call, plan=True)

    def _log_p0(self, S: Tensor, sets: Sets) -> Tensor | None:
        """Return the log of the prior over clusters and dustbin, (M + 1,) or (B, M + 1); None: uniform."""
        if self.dustbin is None:
            return None
        share = torch.full((self.clusters + 1,), (1 - self.dustbin_share) / self.clusters, dtype=S.dtype)
        share[-1] = self.dustbin_share
        return share.log().to(S.device)

    def extra_repr(self) -> str:
        options: dict[str, Any] = {
            "clusters": self.clusters,
            "value_dim": self.value_dim,
            "token": self.token_dim,
        }
        options |= {"centred": self.centres is not None, "dustbin": self.dustbin is not None}
        options |= {"solver": self.solver}
        options |= {name: slot.learned or slot.value for name, slot in self._slots.items()}
        return ", ".join([str(self.dim), *(f"{name}={value}" for name, value in options.items())])


def _map(*widths: int) -> nn.Module:
    """Make one linear layer, or several with ReLU between them."""
    return nn.Linear(*widths) if len(widths) == 2 else mlp(*widths)
