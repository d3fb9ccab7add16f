"""PyTorch Geometric: re-exports the names of `uotpool.integrations.pyg`."""

from uotpool.integrations.pyg import UOTAggregation

__all__ = ["UOTAggregation"]
