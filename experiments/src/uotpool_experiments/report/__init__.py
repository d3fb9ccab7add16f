"""`uotpool report`: one HTML page with everything in it, from runs that are stored."""

from uotpool_experiments.report.content import Picture, collect, pictures_in
from uotpool_experiments.report.page import write

__all__ = ["Picture", "collect", "pictures_in", "write"]
