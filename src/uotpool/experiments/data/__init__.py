"""Data sets: found in the data folder or fetched, verified on every use."""

from uotpool.experiments.data.bags import Bags
from uotpool.experiments.data.catalog import CATALOG, BagStatistics, Entry, GraphStatistics, entry
from uotpool.experiments.data.errors import DatasetMissingError, DatasetRefusedError
from uotpool.experiments.data.fetch import locate
from uotpool.experiments.data.mil import load as load_bags
from uotpool.experiments.data.overview import Row, Status, describe, describe_lines, status

__all__ = [
    "CATALOG",
    "BagStatistics",
    "Bags",
    "DatasetMissingError",
    "DatasetRefusedError",
    "Entry",
    "GraphStatistics",
    "Row",
    "Status",
    "describe",
    "describe_lines",
    "entry",
    "load_bags",
    "locate",
    "status",
]
