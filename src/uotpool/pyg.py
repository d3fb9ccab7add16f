"""PyTorch Geometric: the same names as `uotpool.integrations.pyg`."""

from uotpool.integrations.pyg import UOTAggregation

__all__ = ["UOTAggregation"]
