"""PyTorch Geometric: UOT pooling as an aggregation (extra `pyg`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

try:
    from torch_geometric.nn.aggr import Aggregation
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "uotpool.pyg needs PyTorch Geometric: install the extra `pyg`", name=error.name
    ) from error

from uotpool import checks
from uotpool.nn import UOTPooling
from uotpool.nn.scripting import NotScriptable


class UOTAggregation(NotScriptable, Aggregation):
    """`UOTPooling` as an `Aggregation`, for readouts and for `MessagePassing(aggr=UOTAggregation(dim))`.

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
        """Pool (nodes or edges, D) to (dim_size, D)."""
        if x.dim() != 2:
            checks.fail("x", "a tensor (nodes, features)", x)
        if dim not in (0, -2):
            checks.fail("dim", "0 or -2, the dimension of the nodes", dim)
        if index is not None and index.dtype == torch.bool:
            accepted = (
                "the set of each node, integers (nodes,); there is no mask here, so select the nodes, x[mask]"
            )
            checks.fail("index", accepted, index)
        if ptr is not None:  # PyG may pass both, which then agree
            index = None
        return self.pool(x, index, ptr, dim_size)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.pool.extra_repr()})"
