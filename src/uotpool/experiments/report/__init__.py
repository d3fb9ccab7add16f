"""`uotpool report`: one HTML page with everything in it, from runs that are stored."""

from uotpool.experiments.report.content import Picture, collect, pictures_in
from uotpool.experiments.report.page import write

__all__ = ["Picture", "collect", "pictures_in", "write"]
