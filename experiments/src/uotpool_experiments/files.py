"""Check files that a user names before they are read, so that the message says what they are for."""

from __future__ import annotations

from pathlib import Path


def check_readable(path: Path, expected: str) -> None:
    """Raise a ValueError that says what was expected if the path is a folder or does not exist.

    A pipe is fine: a shell makes one for `<(command)`.
    """
    if not path.exists():
        raise ValueError(f"{path}: expected {expected}, got no such file")
    if path.is_dir():
        raise ValueError(f"{path}: expected {expected}, got a folder")
