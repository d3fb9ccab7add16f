"""Make foreign text safe for a terminal or a file: control and invisible characters are spelled out."""

from __future__ import annotations

import unicodedata

# Control characters; characters that change the direction of writing or are invisible; ends of
# lines and paragraphs; and lone surrogates, which cannot be written.
HIDDEN = ("Cc", "Cf", "Zl", "Zp", "Cs")


def visible(text: str, kept: str = "") -> str:
    """Return the text on one line, with `\\x1b` in place of an escape character; characters in `kept` stay.

    Texts that Python and this package write themselves do not change.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c in kept or unicodedata.category(c) not in HIDDEN else c.encode("unicode_escape").decode()
        for c in text
    )
