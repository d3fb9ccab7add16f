"""Foreign text for a terminal or a file: what a terminal would obey, or nobody would see, is spelled out."""

from __future__ import annotations

import unicodedata

# Control characters; those that turn the direction of writing or are not seen; ends of lines and paragraphs;
# halves of a pair, which cannot be written.
HIDDEN = ("Cc", "Cf", "Zl", "Zp", "Cs")


def visible(text: str, kept: str = "") -> str:
    """The text on one line, with `\\x1b` in place of an escape character; characters in `kept` stay.

    Of what Python and this package write themselves nothing changes.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c in kept or unicodedata.category(c) not in HIDDEN else c.encode("unicode_escape").decode()
        for c in text
    )
