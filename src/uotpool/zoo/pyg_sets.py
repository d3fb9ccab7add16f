"""Set2Set and the transformers, by the code of PyTorch Geometric (extra `pyg`)."""

from __future__ import annotations

from torch import Tensor
from torch_geometric.nn import aggr

from uotpool import checks
from uotpool.nn.base import Pooling
from uotpool.sets import DenseSets, Sets
from uotpool.sets.padding import flat, mask_of, pool_padded


class Set2Set(Pooling):
    r"""Set2Set: an LSTM that attends to the samples; :math:`y = q^*_T`, of 2 `dim` features.

    .. math::
        q_t &= \text{LSTM}(q^*_{t-1}) \\
        a &= \text{softmax}_n(x_n^\top q_t) \\
        q^*_t &= [q_t \,\|\, \sum_n a_n x_n]

    Args:
        dim: number of features.
        steps: T.

    O. Vinyals, S. Bengio, M. Kudlur, "Order matters: sequence to sequence for sets", ICLR 2016. The
    code is PyG's `Set2Set`.
    """

    def __init__(self, dim: int, *, steps: int = 3) -> None:
        super().__init__(dim)
        self.out_dim = 2 * dim
        self.aggr = aggr.Set2Set(dim, processing_steps=checks.count("steps", steps, 1))

    def _pool(self, X: Tensor, sets: Sets) -> Tensor:
        rows, index, _ = flat(X, sets)
        return self.aggr(rows, index, dim_size=sets.num_sets)


class SetTransformer(Pooling):
    r"""Set Transformer, :math:`y = \text{SAB}(\text{PMA}_1(\text{SAB}(X)))`.

    SAB is self-attention among the samples with a residual layer, and PMA is attention of one
    learned seed to them. Time and memory grow with the square of the size of each set.

    Args:
        dim: number of features.
        heads: of attention; default 4 if that divides `dim`, else 1.

    J. Lee, Y. Lee, J. Kim, A. Kosiorek, S. Choi, Y. W. Teh, "Set transformer", ICML 2019. The code
    is PyG's `SetTransformerAggregation`.
    """

    def __init__(self, dim: int, *, heads: int | None = None) -> None:
        super().__init__(dim)
        self.aggr = aggr.SetTransformerAggregation(dim, heads=_heads(self.dim, heads))

    def _pool(self, X: Tensor, sets: Sets) -> Tensor:
        return pool_padded(self._attend, X, sets)

    def _attend(self, X: Tensor, sets: DenseSets) -> Tensor:
        mask = mask_of(X, sets)
        # We run the parts ourselves, in the same order: PyG's forward pads sorted rows only, and
        # turns NaN into 0.
        for encoder in self.aggr.encoders:
            X = encoder(X, mask)
        Y = self.aggr.pma(X, mask)
        for decoder in self.aggr.decoders:
            Y = decoder(Y)
        return Y.flatten(1)


class GraphMultisetTransformer(Pooling):
    r"""Graph Multiset Transformer without edges, :math:`y = \text{PMA}_1(\text{SAB}(\text{PMA}_k(X)))`.

    First k learned seeds attend to the samples, then the k results attend to each other, and last
    one seed attends to them. As in PyG, the keys and values of the first step are linear in X,
    where the paper has a graph convolution.

    Args:
        dim: number of features.
        seeds: k.
        heads: of attention; default 4 if that divides `dim`, else 1.

    J. Baek, M. Kang, S. J. Hwang, "Accurate learning of graph representations with graph multiset
    pooling", ICLR 2021. The code is PyG's `GraphMultisetTransformer`.
    """

    def __init__(self, dim: int, *, seeds: int = 8, heads: int | None = None) -> None:
        super().__init__(dim)
        k = checks.count("seeds", seeds, 1)
        self.aggr = aggr.GraphMultisetTransformer(dim, k=k, heads=_heads(self.dim, heads))

    def _pool(self, X: Tensor, sets: Sets) -> Tensor:
        return pool_padded(self._attend, X, sets)

    def _attend(self, X: Tensor, sets: DenseSets) -> Tensor:
        Y = self.aggr.pma1(X, mask_of(X, sets))
        for encoder in self.aggr.encoders:
            Y = encoder(Y)
        return self.aggr.pma2(Y).flatten(1)


def _heads(dim: int, heads: int | None) -> int:
    if heads is None:
        return 4 if dim % 4 == 0 else 1
    if dim % checks.count("heads", heads, 1):
        checks.fail("heads", f"a divisor of dim={dim}", heads)
    return heads
