from __future__ import annotations


class DatasetMissingError(FileNotFoundError):
    """A data set is not in the data folders and cannot be fetched; the message says what to put where."""


class DatasetRefusedError(ValueError):
    """A file is not the one that it must be; the message says what was expected and found."""
