"""A table as text: terminal, Markdown, LaTeX, CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from uotpool.plaintext import visible
from uotpool_experiments.csv_cells import safe

FORMATS = ("terminal", "markdown", "latex", "csv")
LATEX = {letter: f"\\{letter}" for letter in "_%&#${}"} | {
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "±": "$\\pm$",
    "▲": "$\\blacktriangle$",
    "▼": "$\\blacktriangledown$",
}
MARKS = {"above": "▲", "below": "▼"}


@dataclass
class Table:
    """Cells as text; `best` has those to be set in bold, `marks` those that are beyond what chance does."""

    title: str
    head: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    best: set[tuple[int, int]] = field(default_factory=set)
    marks: dict[tuple[int, int], str] = field(default_factory=dict)  # "above" or "below"

    def render(self, form: str) -> str:
        if form not in FORMATS:
            raise ValueError(f"format: expected one of {FORMATS}, got {form!r}")
        write = {"terminal": _terminal, "markdown": _markdown, "latex": _latex, "csv": _csv}[form]
        return write(self._visible())

    def _visible(self) -> Table:
        """The same, without what a terminal would obey or LaTeX take for a new line: names are foreign text."""
        rows = [[visible(cell) for cell in row] for row in self.rows]
        head, notes = [visible(name) for name in self.head], [visible(note) for note in self.notes]
        return replace(self, title=visible(self.title), head=head, rows=rows, notes=notes)

    def marked(self, row: int, column: int) -> str:
        """The cell with its mark."""
        mark = self.marks.get((row, column))
        return self.rows[row][column] + (f" {MARKS[mark]}" if mark else "")


def _terminal(table: Table) -> str:
    rich = RichTable(title=Text(table.title), title_justify="left", box=box.SIMPLE_HEAD)
    for i, name in enumerate(table.head):
        rich.add_column(Text(name), justify="left" if i == 0 else "right", no_wrap=i == 0)
    for r, row in enumerate(table.rows):
        cells = [table.marked(r, c) + ("*" if (r, c) in table.best else "") for c in range(len(row))]
        rich.add_row(*map(Text, cells))
    text = io.StringIO()
    console = Console(file=text, width=max(100, 18 * len(table.head)), force_terminal=False)
    console.print(rich)
    for note in [*(["* best"] if table.best else []), *table.notes]:
        console.print(f"  {note}", highlight=False, markup=False)
    return text.getvalue()


def _without_markup(text: str) -> str:
    """No HTML and no links, which a page made of it would load or follow."""
    return text.replace("<", "&lt;").replace("](", "]\\(")


def _markdown(table: Table) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(_without_markup(cell).replace("|", "\\|") for cell in cells) + " |"

    body = [
        line([f"**{cell}**" if (r, c) in table.best else table.marked(r, c) for c, cell in enumerate(row)])
        for r, row in enumerate(table.rows)
    ]
    rule = "|---|" + "--:|" * (len(table.head) - 1)
    notes = [f"{note[0].upper()}{note[1:]}." for note in map(_without_markup, table.notes)]
    return "\n".join([f"**{_without_markup(table.title)}**", "", line(table.head), rule, *body, "", *notes, ""])


def _latex(table: Table) -> str:
    def escape(cell: str) -> str:
        return "".join(LATEX.get(letter, letter) for letter in cell)

    lines = [f"% {table.title}", f"\\begin{{tabular}}{{l{'r' * (len(table.head) - 1)}}}", "\\toprule"]
    lines += [" & ".join(map(escape, table.head)) + " \\\\", "\\midrule"]
    for r, row in enumerate(table.rows):
        texts = [escape(table.marked(r, c)) for c in range(len(row))]
        cells = [f"\\textbf{{{text}}}" if (r, c) in table.best else text for c, text in enumerate(texts)]
        lines.append(" & ".join(cells) + " \\\\")
    lines += ["\\bottomrule", "\\end{tabular}", *(f"% {note}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def _csv(table: Table) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([safe(cell) for cell in row] for row in (table.head, *table.rows))
    return text.getvalue()
