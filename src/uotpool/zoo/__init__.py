"""Every pooling of the paper and those that people use today, by name and with the same call."""

from uotpool.nn.base import Pooling
from uotpool.zoo.registry import ENTRIES, Entry, build, entry, names, options_of

__all__ = ["ENTRIES", "Entry", "Pooling", "build", "entry", "names", "options_of"]
