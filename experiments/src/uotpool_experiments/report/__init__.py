"""`uotpool report`: one self-contained HTML page about stored runs."""

from uotpool_experiments.report.content import Picture, collect, pictures_in
from uotpool_experiments.report.page import write

__all__ = ["Picture", "collect", "pictures_in", "write"]
