"""Data sets, models, protocols and runs behind the tables of the paper."""

__version__ = "0.3.0"
