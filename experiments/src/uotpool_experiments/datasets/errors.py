from __future__ import annotations


class DatasetMissingError(FileNotFoundError):
    """A data set is neither in the data folders nor to be had; the message says what to put where."""


class DatasetRefusedError(ValueError):
    """A file is there but is not what it must be; the message says what was expected and found."""
