"""PyTorch Geometric: UOT pooling as an aggregation (extra `pyg`)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

try:
    from torch_geometric.nn.aggr import Aggregation
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "uotpool.integrations.pyg needs PyTorch Geometric: install the extra `pyg`", name=error.name
    ) from error

from uotpool import checks
from uotpool.nn import UOTPooling


class UOTAggregation(Aggregation):
    """`UOTPooling` as an `Aggregation`, for readouts and for `MessagePassing(aggr=UOTAggregation(dim))`.

    PyG resolves names among the classes of its own module and has no registry for others. After
    `torch_geometric.nn.aggr.UOTAggregation = UOTAggregation` it resolves `aggr="uot"` too, with
    `aggr_kwargs={"dim": dim}`.

    Args:
        dim: number of features (channels).
        **kwargs: options of `UOTPooling`.
    """

    def __init__(self, dim: int, **kwargs: Any) -> None:
        super().__init__()
        self.pool = UOTPooling(dim, **kwargs)

    def reset_parameters(self) -> None:
        self.pool.reset_parameters()

    def forward(
        self,
        x: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        dim: int = -2,
    ) -> Tensor:
        """Pool x along the dimension `dim` to `dim_size` entries, features last.

        Args:
            x: (nodes or edges, D), or more dimensions, such as the messages (edges, heads, D) of a
                convolution with several heads. Each head is pooled by itself, by the same weights.
            index: set of each entry along `dim`, in any order.
            ptr: offsets of the sets, for entries that lie set by set.
            dim_size: number of sets.
            dim: the dimension of the nodes or edges; any but the last one.
        """
        if x.dim() < 2:
            checks.fail("x", "a tensor (nodes, features)", x)
        if not -x.dim() <= dim < x.dim() or dim % x.dim() == x.dim() - 1:
            checks.fail("dim", f"a dimension of x, {tuple(x.shape)}, before that of the features", dim)
        if index is not None and index.dtype == torch.bool:
            accepted = (
                "the set of each node, integers (nodes,); there is no mask here, so select the nodes, x[mask]"
            )
            checks.fail("index", accepted, index)
        if ptr is not None:  # PyG may pass both, which then agree
            index = None
        if x.dim() == 2:
            return self.pool(x, index, ptr, dim_size)
        y = self._pool_each(x.movedim(dim, -2), index, ptr, dim_size).movedim(-2, dim)
        return y.contiguous()  # convolutions with heads take a view of it

    def _pool_each(self, x: Tensor, index: Tensor | None, ptr: Tensor | None, dim_size: int | None) -> Tensor:
        """Pool (*heads, nodes, D) to (*heads, dim_size, D): one problem per head and set, all in one call."""
        *heads, nodes, D = x.shape
        count = math.prod(heads)
        head = torch.arange(count, device=x.device).unsqueeze(-1)
        rows = x.reshape(count * nodes, D)
        if ptr is not None:
            checks.integers("ptr", ptr)
            checks.ptr_values(ptr, nodes)
            if dim_size not in (None, ptr.shape[0] - 1):
                checks.fail("dim_size", f"{ptr.shape[0] - 1}, the number of sets of ptr, or None", dim_size)
            ends = (nodes * head + ptr[1:]).flatten()
            y = self.pool(rows, ptr=torch.cat([ends.new_zeros(1), ends]))
            return y.reshape(*heads, ptr.shape[0] - 1, D)
        if index is None:
            if dim_size not in (None, 1):
                checks.fail("dim_size", "None without index and ptr, as all nodes are then one set", dim_size)
            index, dim_size = torch.zeros(nodes, dtype=torch.long, device=x.device), 1
        checks.integers("index", index)
        if index.shape != (nodes,):
            checks.fail("index", f"the set of each of the {nodes} nodes, ({nodes},)", index)
        if dim_size is None:
            dim_size = int(index.max()) + 1 if index.numel() else 0
        # Checked here, as an entry beyond the sets of its head would be taken for one of the next head.
        checks.index_values(index, dim_size)
        y = self.pool(rows, (dim_size * head + index).flatten(), dim_size=count * dim_size)
        return y.reshape(*heads, dim_size, D)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.pool.extra_repr()})"
