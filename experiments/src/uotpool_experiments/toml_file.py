"""Read TOML files that people write or get, within bounds, with one kind of message for all that is wrong."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from uotpool_experiments.files import check_readable

MOST_BYTES = 2**18
MOST_DOTS = 30  # in a line, as the parser's memory grows with the square of the parts of a dotted key


def read(path: Path) -> dict[str, Any]:
    """Read the file; raise a ValueError that names it if it is not there, no TOML file or too large."""
    check_readable(path, "a TOML file")
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"{path}: expected a TOML file of at most {MOST_BYTES} bytes, got a larger one")
    if any(line.count(b".") > MOST_DOTS for line in content.splitlines()):
        raise ValueError(f"{path}: expected a TOML file with at most {MOST_DOTS} dots in a line, got more")
    try:
        return tomllib.loads(content.decode())
    except ValueError as error:  # wrong TOML or UTF-8, or a number of thousands of digits
        raise ValueError(f"{path}: not a TOML file: {error}") from error
    except RecursionError:
        raise ValueError(f"{path}: expected a TOML file, got one with lists too deep within lists") from None
