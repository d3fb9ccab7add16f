"""Write a table as text: for a terminal, in Markdown, in LaTeX, as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from uotpool_experiments.csv_cells import safe
from uotpool_experiments.plaintext import visible
from uotpool_experiments.tables import FORMATS
from uotpool_experiments.tables.table import Cell, Mark, Table

LATEX = {letter: f"\\{letter}" for letter in "_%&#${}"} | {
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "±": "$\\pm$",
    "▲": "$\\blacktriangle$",
    "▼": "$\\blacktriangledown$",
}
SIGNS = {Mark.ABOVE: "▲", Mark.BELOW: "▼"}


@dataclass(frozen=True)
class _Texts:
    """The texts of a table without control characters.

    Names are foreign text, and a terminal would obey them.
    """

    title: str
    head: list[str]
    rows: list[list[str]]
    marked: list[list[str]]  # the same with the marks of the cells
    notes: list[str]
    best: set[tuple[int, int]]


def render(table: Table, form: str) -> str:
    """Write the table as text in one of `FORMATS`."""
    if form not in FORMATS:
        raise ValueError(f"format: expected one of {FORMATS}, got {form!r}")
    texts = _Texts(
        title=visible(table.title),
        head=[visible(heading) for heading in table.headings],
        rows=[[visible(str(cell)) for cell in line.cells] for line in table.lines],
        marked=[[visible(with_mark(cell)) for cell in line.cells] for line in table.lines],
        notes=[visible(note) for note in table.notes],
        best=table.best,
    )
    return {"terminal": _terminal, "markdown": _markdown, "latex": _latex, "csv": _csv}[form](texts)


def with_mark(cell: Cell) -> str:
    """Return the text of the cell with the sign of its mark."""
    return f"{cell} {SIGNS[cell.mark]}" if cell.mark else str(cell)


def _terminal(table: _Texts) -> str:
    from rich import box  # noqa: PLC0415 the other formats do not need it
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table as RichTable  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    rich = RichTable(title=Text(table.title), title_justify="left", box=box.SIMPLE_HEAD)
    for i, name in enumerate(table.head):
        rich.add_column(Text(name), justify="left" if i == 0 else "right", no_wrap=i == 0)
    for r, row in enumerate(table.marked):
        cells = [text + ("*" if (r, c) in table.best else "") for c, text in enumerate(row)]
        rich.add_row(*map(Text, cells))
    text = io.StringIO()
    console = Console(file=text, width=max(100, 18 * len(table.head)), force_terminal=False)
    console.print(rich)
    for note in [*(["* best"] if table.best else []), *table.notes]:
        console.print(f"  {note}", highlight=False, markup=False)
    return text.getvalue()


def _without_markup(text: str) -> str:
    """Escape HTML and links, which a page made of the text would load or follow."""
    return text.replace("<", "&lt;").replace("](", "]\\(")


def _markdown(table: _Texts) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(_without_markup(cell).replace("|", "\\|") for cell in cells) + " |"

    body = [
        line([f"**{cell}**" if (r, c) in table.best else cell for c, cell in enumerate(row)])
        for r, row in enumerate(table.marked)
    ]
    rule = "|---|" + "--:|" * (len(table.head) - 1)
    notes = [f"{note[0].upper()}{note[1:]}." for note in map(_without_markup, table.notes)]
    return "\n".join([f"**{_without_markup(table.title)}**", "", line(table.head), rule, *body, "", *notes, ""])


def _latex(table: _Texts) -> str:
    def escape(cell: str) -> str:
        return "".join(LATEX.get(letter, letter) for letter in cell)

    lines = [f"% {table.title}", f"\\begin{{tabular}}{{l{'r' * (len(table.head) - 1)}}}", "\\toprule"]
    lines += [" & ".join(map(escape, table.head)) + " \\\\", "\\midrule"]
    for r, row in enumerate(table.marked):
        texts = [escape(text) for text in row]
        cells = [f"\\textbf{{{text}}}" if (r, c) in table.best else text for c, text in enumerate(texts)]
        lines.append(" & ".join(cells) + " \\\\")
    lines += ["\\bottomrule", "\\end{tabular}", *(f"% {note}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def _csv(table: _Texts) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([safe(cell) for cell in row] for row in (table.head, *table.rows))
    return text.getvalue()
