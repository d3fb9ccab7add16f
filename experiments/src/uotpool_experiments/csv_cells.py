"""Make text safe in CSV files: spreadsheets run formulas, and terminals obey control characters."""

from __future__ import annotations

import re

from uotpool_experiments.plaintext import visible

# A formula begins with one of these signs, also in double width. `safe` puts a quote before such a text.
BEGINS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20", "'")
# Matches a number with its sign and what tables write beside it: "-0.5", "+1.05 (0.48)", "-0.12 \u25bc".
NUMBER = re.compile(r"[-+][\d.,]+(e[-+]?\d+)?( [\d.,()\[\]\u00b1\u25b2\u25bc ]+)?")


def safe(text: str) -> str:
    """Return the text for a cell, with control characters spelled out and a quote before what looks
    like a formula.
    """
    shown = visible(text)
    return f"'{shown}" if shown.startswith(BEGINS) and not NUMBER.fullmatch(shown) else shown


def stored(cell: str) -> str:
    """Return the text from which `safe` made the cell."""
    return cell[1:] if cell.startswith("'") else cell
