"""One view of a batch of sets for every input layout; `base` has the table of shapes."""

from uotpool.sets.base import Sets, Sorted, logsumexp_d
from uotpool.sets.dense import DenseSets
from uotpool.sets.ragged import RaggedSets, index_from_ptr

__all__ = ["DenseSets", "RaggedSets", "Sets", "Sorted", "index_from_ptr", "logsumexp_d"]
