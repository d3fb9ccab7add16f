"""Data sets, which are found in the data folder or fetched, and verified on every use."""

from uotpool_experiments.datasets.bags import Bags
from uotpool_experiments.datasets.catalog import CATALOG, BagStatistics, Entry, GraphStatistics, entry
from uotpool_experiments.datasets.errors import DatasetMissingError, DatasetRefusedError
from uotpool_experiments.datasets.fetch import locate
from uotpool_experiments.datasets.mil import load as load_bags
from uotpool_experiments.datasets.overview import Row, Status, describe, describe_lines, status

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
