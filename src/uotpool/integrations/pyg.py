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
from uotpool.nn.wrapper import PoolWrapper, Restore


class UOTAggregation(PoolWrapper, Aggregation):
    """`UOTPooling` as an `Aggregation`, for readouts and for `MessagePassing(aggr=UOTAggregation(dim))`.

    PyG resolves only the names of its own aggregations, and `BasicGNN` models (`GIN`, `GraphSAGE`) use one
    instance for layers of different widths: pass `UOTAggregation(width)` to each convolution.

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
                convolution with several heads. Each head is pooled separately, by the same layer.
            index: set of each entry along `dim`, in any order.
            ptr: offsets of the sets, for entries that lie set by set.
            dim_size: number of sets.
            dim: the dimension of the nodes or edges; any but the last one.
        """
        y = self.pool(**self._sets(x, index, ptr, dim_size, dim)[0])
        if x.dim() == 2:
            return y
        heads = x.movedim(dim, -2).shape[:-2]
        # Convolutions with heads call `view` on it.
        return y.reshape(*heads, -1, x.shape[-1]).movedim(-2, dim).contiguous()

    def _sets(
        self,
        x: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        dim: int = -2,
    ) -> tuple[dict[str, Any], Restore]:
        """Each head of a set is a set here, all in one call."""
        checks.tensor("x", x, "a tensor (nodes, features)")
        if x.dim() < 2:
            checks.fail("x", "a tensor (nodes, features)", x)
        if not -x.dim() <= dim < x.dim() or dim % x.dim() == x.dim() - 1:
            checks.fail("dim", f"a dimension of x, {tuple(x.shape)}, before that of the features", dim)
        for name, value in (("index", index), ("ptr", ptr)):
            if value is not None:
                checks.integers(name, value)
        if x.shape[-1] != self.pool.dim:
            hint = "each convolution of another width needs its UOTAggregation(width)"
            checks.fail("x", f"{self.pool.dim} features (dim={self.pool.dim}; {hint})", x)
        if ptr is not None:  # PyG may pass both, for the same sets
            index = None
        if x.dim() == 2:
            return {"X": x, "index": index, "ptr": ptr, "dim_size": dim_size}, lambda values: values
        moved = x.movedim(dim, -2)
        *heads, nodes, D = moved.shape
        count = math.prod(heads)

        def restore(values: Tensor) -> Tensor:
            rest = values.shape[1:]
            return values.reshape(*heads, nodes, *rest).movedim(len(heads), dim % x.dim())

        rows = moved.reshape(count * nodes, D)
        return {"X": rows, **_of_heads(rows, count, nodes, index, ptr, dim_size)}, restore

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.pool.extra_repr()})"


def _of_heads(
    rows: Tensor, count: int, nodes: int, index: Tensor | None, ptr: Tensor | None, dim_size: int | None
) -> dict[str, Any]:
    """Return the sets of `count` heads, whose rows lie one head after the other."""
    head = torch.arange(count, device=rows.device).unsqueeze(-1)
    if ptr is not None:
        checks.ptr_values(ptr, nodes)
        if dim_size not in (None, ptr.shape[0] - 1):
            checks.fail("dim_size", f"{ptr.shape[0] - 1}, the number of sets of ptr, or None", dim_size)
        ends = (nodes * head + ptr[1:]).flatten()
        return {"ptr": torch.cat([ends.new_zeros(1), ends])}
    if index is None:
        if dim_size not in (None, 1):
            checks.fail("dim_size", "None without index and ptr, as all nodes are then one set", dim_size)
        index, dim_size = torch.zeros(nodes, dtype=torch.long, device=rows.device), 1
    if index.shape != (nodes,):
        checks.fail("index", f"the set of each of the {nodes} nodes, ({nodes},)", index)
    if dim_size is None:
        dim_size = int(index.max()) + 1 if index.numel() else 0
    # Checked here, since an index that is too large would be a set of the next head.
    checks.index_values(index, dim_size)
    return {"index": (dim_size * head + index).flatten(), "dim_size": count * dim_size}
