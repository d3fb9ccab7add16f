"""Every pooling of the paper and the ones people use today, by name and with one call."""

from uotpool.nn.base import Pooling
from uotpool.zoo.registry import ENTRIES, Entry, build, entry, names

__all__ = ["ENTRIES", "Entry", "Pooling", "build", "entry", "names"]
