"""Print how two trees of tables differ: `python tools/compare_tables.py OLD NEW`.

CSV files must be the same to the byte. For Markdown and HTML pages we compare the words that a
reader sees, since a new version may word them better. The status is 1 if a CSV file differs or one
of the trees lacks a file that the other one has, else 0.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

PAGES = (".md", ".html")
SUFFIXES = (".csv", *PAGES)
CONTEXT = 3  # words beside a difference


class _Words(HTMLParser):
    """Collects the text of a page without its style and its script."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._hidden += tag in ("style", "script")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("style", "script")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.words += data.split()


def words(path: Path) -> list[str]:
    """Return the words of a page as a reader sees them."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".html":
        return text.split()
    page = _Words()
    # An SVG picture inside of the page has its text in an encoded attribute, so we leave it out.
    page.feed(re.sub(r"data:[\w/+;-]+,[\w/+=]*", "", text))
    page.close()
    return page.words


def word_differences(old: list[str], new: list[str]) -> Iterator[str]:
    """Yield the words that were removed and added, with some words before them."""
    for kind, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            before = " ".join(old[max(0, a - CONTEXT) : a])
            yield f"... {before} [-{' '.join(old[a:b])}-] [+{' '.join(new[c:d])}+]"


def tables(folder: Path) -> dict[str, Path]:
    """Return the files of a tree that are tables or pages, by their path in it."""
    found = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    return {path.relative_to(folder).as_posix(): path for path in found}


def compare(old: Path, new: Path) -> tuple[list[str], bool]:
    """Return lines that say what differs, and whether only words do."""
    before, after = tables(old), tables(new)
    lines = [f"{name}: only in {old}" for name in before if name not in after]
    lines += [f"{name}: only in {new}" for name in after if name not in before]
    words_only, pages = not lines, 0
    for name in sorted(before.keys() & after.keys()):
        if before[name].read_bytes() == after[name].read_bytes():
            continue
        if before[name].suffix not in PAGES:
            words_only = False
            lines.append(f"{name}: bytes differ")
            continue
        found = list(word_differences(words(before[name]), words(after[name])))
        pages += bool(found)
        lines += [f"{name}: {difference}" for difference in found]
    same = len(before.keys() & after.keys())
    csv = "CSV files are the same" if words_only else "CSV files differ or are missing"
    return [*lines, f"{same} files in both; {csv}; words differ in {pages} pages"], words_only


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    args = parser.parse_args()
    for folder in (args.old, args.new):
        if not folder.is_dir():
            parser.error(f"expected a folder, got {folder}")
    lines, words_only = compare(args.old, args.new)
    print("\n".join(lines))
    return 0 if words_only else 1


if __name__ == "__main__":
    sys.exit(main())
