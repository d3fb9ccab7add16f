"""Text in CSV files: a spreadsheet runs what begins like a formula, and a terminal obeys what it is shown."""

from __future__ import annotations

import re

from uotpool.plaintext import visible

# A formula begins with one of these signs, also in double width; a quote marks a text that begins so.
BEGINS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20", "'")
# A number with its sign, and what tables write beside it: "-0.5", "+1.05 (0.48)", "-0.12 \u25bc".
NUMBER = re.compile(r"[-+][\d.,]+(e[-+]?\d+)?( [\d.,()\[\]\u00b1\u25b2\u25bc ]+)?")


def safe(text: str) -> str:
    """The text for a cell, with control characters spelled out and a quote before what looks like a formula."""
    shown = visible(text)
    return f"'{shown}" if shown.startswith(BEGINS) and not NUMBER.fullmatch(shown) else shown


def stored(cell: str) -> str:
    """The text of a cell that `safe` made."""
    return cell[1:] if cell.startswith("'") else cell
