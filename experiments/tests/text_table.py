"""A table of plain texts, for tests of formats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from uotpool_experiments.tables.table import Column, Line, Table, Text


def text_table(
    title: str,
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    notes: Sequence[str] = (),
    best: Iterable[tuple[int, int]] = (),
) -> Table:
    lines = [Line(tuple(map(Text, row))) for row in rows]
    return Table(title, [*map(Column, head)], lines, list(notes), set(best))
