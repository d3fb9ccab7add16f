"""Text in CSV files: a spreadsheet runs what begins like a formula, and a terminal obeys what it is shown."""

from __future__ import annotations

import re

from uotpool.plaintext import visible

# With what a formula begins, in letters of double width too; a quote is how such a text is marked.
BEGINS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20", "'")
# A number with its sign, and what tables write beside it: "-0.5", "+1.05 (0.48)", "-0.12 \u25bc".
NUMBER = re.compile(r"[-+][\d.,]+(e[-+]?\d+)?( [\d.,()\[\]\u00b1\u25b2\u25bc ]+)?")


def safe(text: str) -> str:
    """For a cell: control characters spelled out, and a quote before what a spreadsheet would compute."""
    shown = visible(text)
    return f"'{shown}" if shown.startswith(BEGINS) and not NUMBER.fullmatch(shown) else shown


def stored(cell: str) -> str:
    """The text of a cell that `safe` made."""
    return cell[1:] if cell.startswith("'") else cell
