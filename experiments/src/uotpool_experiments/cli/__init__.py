"""The commands that this package adds to `uotpool`."""

from uotpool_experiments.cli.commands import add_parsers

__all__ = ["add_parsers"]
