"""Attention poolings of vision transformers: the MAP head, efficient probing and SimPool."""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from uotpool import checks
from uotpool.nn.base import Pooling
from uotpool.sets import DenseSets, Sets
from uotpool.sets.padding import pool_padded

EPSILON = 1e-6  # as in vision transformers


def attended(logits: Tensor, X: Tensor, sets: DenseSets) -> Tensor:
    """Return the mean of the samples by the softmax of each column of logits, (B, columns, D)."""
    return sets.softmax_n(logits).transpose(1, 2) @ X


def _divisor(name: str, parts: int | None, dim: int) -> int:
    """Return the number of equal parts of the features; by default the largest of 8, 4, 2 and 1."""
    if parts is None:
        return math.gcd(dim, 8)
    if dim % int(checks.count(name, parts, 1)):
        checks.fail(name, f"a divisor of dim={dim}", parts)
    return int(parts)


class MAP(Pooling):
    r"""MAP head: multihead attention of one learned query to the samples, then a residual network.

    .. math::
        a^h &= \text{softmax}_n\left(\frac{(W_K^h x_n)^\top q^h}{\sqrt{D / H}}\right) \\
        z &= W_O \left[\sum_n a^h_n (W_V^h x_n + b_V^h)\right]_h + b_O \\
        y &= z + \text{MLP}(\text{LN}(z))

    with q = W_Q l + b_Q of a learned latent l, and an MLP of one hidden layer with GELU. Since there
    is one query, keys and values of samples are never made: scores are x_n' W_K^h' q^h, and values
    are mapped after the sum. A bias of the keys would change no attention; the parameter is there,
    without a gradient, so that weights of timm load.

    Args:
        dim: number of features D.
        hidden: width of the MLP; default 4 `dim`, as published.
        heads: H, a divisor of `dim`; default: the largest of 8, 4, 2 and 1.

    Its parameters have the names of `timm.layers.AttentionPoolLatent`: `latent` (l), `q`, `kv`, `proj`,
    `norm` and `mlp`. State dicts of that layer load if it was made with `norm_layer=nn.LayerNorm`.

    X. Zhai, A. Kolesnikov, N. Houlsby, L. Beyer, "Scaling vision transformers", CVPR 2022; the query
    is that of J. Lee et al., "Set transformer", ICML 2019.
    """

    def __init__(self, dim: int, hidden: int | None = None, *, heads: int | None = None) -> None:
        super().__init__(dim)
        dim = self.dim
        hidden = 4 * dim if hidden is None else int(checks.count("hidden", hidden, 1))
        self.heads = _divisor("heads", heads, dim)
        self.latent = nn.Parameter(torch.empty(1, 1, dim))
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim, eps=EPSILON)
        layers = {"fc1": nn.Linear(dim, hidden), "act": nn.GELU(), "fc2": nn.Linear(hidden, dim)}
        self.mlp = nn.Sequential(OrderedDict(layers))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.trunc_normal_(self.latent, std=self.dim**-0.5)

    def _pool(self, X: Tensor, sets: Sets) -> Tensor:
        z = self.proj(pool_padded(self._attend, X, sets))
        return z + self.mlp(self.norm(z))

    def _attention(self, X: Tensor, sets: Sets) -> Tensor:
        return sets.softmax_n(self._logits(X)).mean(-1, keepdim=True)

    def _logits(self, X: Tensor) -> Tensor:
        """Return a logit of each sample for each head, (..., H)."""
        width = self.dim // self.heads
        keys, _ = self.kv.weight.view(2, self.heads, width, self.dim)
        q = self.q(self.latent).view(self.heads, width) / math.sqrt(width)
        return X @ torch.einsum("hw,hwd->dh", q, keys)

    def _attend(self, X: Tensor, sets: DenseSets) -> Tensor:
        """Return the attended values of all heads side by side, (B, D)."""
        _, values = self.kv.weight.view(2, self.heads, self.dim // self.heads, self.dim)
        mapped = torch.einsum("bhd,hwd->bhw", attended(self._logits(X), X, sets), values).flatten(1)
        return mapped + self.kv.bias[self.dim :]


class EfficientProbing(Pooling):
    r"""Efficient probing (EP): several learned queries attend to the samples themselves.

    .. math::
        a^j &= \text{softmax}_n(x_n^\top q^j / \sqrt D) \\
        y &= \left[\sum_n a^j_n W_V^j x_n\right]_{j = 1 \ldots M}

    Each query has a share of D / M features of the output. There is no map of keys or queries, and
    the values are mapped after the sum.

    Args:
        dim: number of features D.
        queries: M, a divisor of `dim`; default: the largest of 8, 4, 2 and 1.

    Its parameters are `queries` (q) and `value` (W_V).

    B. Psomas, D. Christopoulos, E. Baltzi, I. Kakogeorgiou, T. Aravanis, N. Komodakis, K.
    Karantzalos, Y. Avrithis, G. Tolias, "Attention, please! Revisiting attentive probing through the
    lens of efficiency", ICLR 2026.
    """

    def __init__(self, dim: int, *, queries: int | None = None) -> None:
        super().__init__(dim)
        self.queries = nn.Parameter(torch.empty(_divisor("queries", queries, self.dim), self.dim))
        self.value = nn.Linear(self.dim, self.dim, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.trunc_normal_(self.queries, std=0.02)

    def _pool(self, X: Tensor, sets: Sets) -> Tensor:
        return pool_padded(self._attend, X, sets)

    def _attention(self, X: Tensor, sets: Sets) -> Tensor:
        return sets.softmax_n(self._logits(X)).mean(-1, keepdim=True)

    def _logits(self, X: Tensor) -> Tensor:
        return X @ self.queries.T / math.sqrt(self.dim)

    def _attend(self, X: Tensor, sets: DenseSets) -> Tensor:
        count, logits = self.queries.shape[0], self._logits(X)
        values = self.value.weight.view(count, self.dim // count, self.dim)
        return torch.einsum("bjd,jwd->bjw", attended(logits, X, sets), values).flatten(1)


class SimPool(Pooling):
    r"""SimPool: the mean of a set attends to its samples, whose generalised mean is taken.

    .. math::
        \hat x_n &= \text{LN}(x_n) \\
        a &= \text{softmax}_n\left(\frac{(W_K \hat x_n)^\top W_Q \bar x}{\sqrt D}\right) \\
        v_n &= \hat x_n - \min_{md} \hat x_{md} \\
        y_d &= \left(\sum_n a_n v_{nd}^\gamma\right)^{1 / \gamma}

    with the mean :math:`\bar x` of the samples; v has 1e-6 more, so that a root of 0 is never taken.
    The minimum is that of the set, so that y does not depend on batch mates.

    Args:
        dim: number of features D.
        gamma: exponent, > 0; the paper has 1.25 for transformers and 2 for convolutional networks. 1
            is the mean by attention.

    Its parameters are `norm`, `wq` and `wk`.

    B. Psomas, I. Kakogeorgiou, K. Karantzalos, Y. Avrithis, "Keep it SimPool: who said supervised
    transformers suffer from attention deficit?", ICCV 2023.
    """

    def __init__(self, dim: int, *, gamma: float = 1.25) -> None:
        super().__init__(dim)
        self.gamma = checks.number("gamma", gamma, positive=True)
        self.norm = nn.LayerNorm(self.dim, eps=EPSILON)
        self.wq = nn.Linear(self.dim, self.dim, bias=False)
        self.wk = nn.Linear(self.dim, self.dim, bias=False)

    def _attention(self, X: Tensor, sets: Sets) -> Tensor:
        mean = sets.sum_n(X) / sets.count(X).clamp_min(1.0)
        # x' W_K' (W_Q mean), without keys of all samples.
        query = functional.linear(self.wq(mean), self.wk.weight.T) / math.sqrt(self.dim)
        return sets.softmax_n((self.norm(X) * sets.to_rows(query)).sum(-1, keepdim=True))

    def _pool(self, X: Tensor, sets: Sets) -> Tensor:
        normed, a = self.norm(X), self._attention(X, sets)
        lowest = -sets.max_n(-normed).amax(-1, keepdim=True)
        v = sets.fill_absent(normed - sets.to_rows(lowest) + EPSILON, EPSILON)
        y = sets.sum_n(a * v**self.gamma) ** (1 / self.gamma)
        return sets.squeeze(y)
