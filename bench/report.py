"""Rows as CSV files and as text: the same for every measurement."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.rows import HEADINGS, MICROSECONDS, NOTE_END, PART, SLOPE, Comparison, Finding

END = "<!-- end -->"  # after a table that a measurement writes into a page

Rows = Sequence[Comparison] | Sequence[Finding]


def written(rows: Rows, facts: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the cells of a CSV file by the names of their columns, as they are read from it again."""
    found = []
    for row in rows:
        # A time has no more than six digits; what a study found is kept to the last bit.
        digits, cells = (".6g", asdict(row)) if isinstance(row, Comparison) else ("", row)
        text = {name: _written(cell, digits) for name, cell in cells.items()}
        found.append({**text, **facts})
    return found


def _written(cell: str | int | float | None, digits: str) -> str:
    if cell is None:
        return ""
    return f"{cell:{digits}}" if isinstance(cell, float) else str(cell)


def write_csv(path: Path, rows: Rows, facts: Mapping[str, str]) -> None:
    """Write columns in the order in which they come up, the facts last; a missing cell is empty."""
    lines = written(rows, facts)
    names = dict.fromkeys(name for line in lines for name in line if name not in facts)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*names, *facts], lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def rewrite(page: Path, begin: str, text: str) -> None:
    """Put a table of a measurement between the marks of the page: `begin`, and `END`."""
    before, _, rest = page.read_text().partition(begin)
    _, mark, after = rest.partition(END)
    if not mark:
        raise SystemExit(f"bench: {page} has no place for the table ({begin} ... {END})")
    page.write_text(f"{before}{begin}\n\n{text}\n\n{mark}{after}")


def print_rows(console: Console, rows: Rows) -> None:
    """Print comparisons as tables, findings as tables in Markdown."""
    comparisons = [row for row in rows if isinstance(row, Comparison)]
    _print_comparisons(console, comparisons)
    _print_findings(console, [row for row in rows if not isinstance(row, Comparison)])


def _print_findings(console: Console, findings: Iterable[Finding]) -> None:
    """Print one table per part, whose findings have the same columns."""
    parts: dict[str, list[Finding]] = {}
    for one in findings:
        parts.setdefault(str(one[PART]), []).append(one)
    for title, own in parts.items():
        console.print(f"{title}\n\n{markdown(own)}\n", markup=False, highlight=False, soft_wrap=True)


def markdown(findings: Sequence[Finding]) -> str:
    """Make a table of the findings of one part."""
    names = list(dict.fromkeys(name for one in findings for name in one if name != PART))
    cells = [[_short(one.get(name, "")) for name in names] for one in findings]
    lines = [f"| {' | '.join(line)} |" for line in (names, *cells)]
    return "\n".join([lines[0], "|" + "---|" * len(names), *lines[1:]])


def _short(cell: str | int | float) -> str:
    return f"{cell:.2g}" if isinstance(cell, float) else str(cell)


def _print_comparisons(console: Console, rows: Sequence[Comparison]) -> None:
    """Make one line per candidate with its ratios, and one table for lines with the same baselines."""
    lines: dict[tuple[object, ...], list[Comparison]] = {}
    for row in rows:
        lines.setdefault((row.size, row.solver, row.mode, row.threads, row.candidate), []).append(row)
    tables: dict[tuple[tuple[str, str], ...], list[list[Comparison]]] = {}
    for line in lines.values():
        tables.setdefault(tuple((row.baseline, row.ratio_of) for row in line), []).append(line)
    for head, group in tables.items():
        console.print(_table(head, group))
        notes = [note for line in group for row in line for note in row.note.split(NOTE_END)]
        for note in filter(None, dict.fromkeys(notes)):
            console.print(f"  {note}", style="dim", highlight=False)


def _table(head: Sequence[tuple[str, str]], group: Sequence[Sequence[Comparison]]) -> Table:
    table = Table(title=group[0][0].benchmark, title_justify="left")
    for name in ("size", "solver", "mode", "threads", "candidate"):
        table.add_column(name, overflow="fold")
    table.add_column("itself", justify="right", no_wrap=True)
    for baseline, ratio_of in head:
        table.add_column(f"[dim]{HEADINGS[ratio_of]}[/]\n{baseline}", justify="right", overflow="fold")
    previous = group[0][0]
    for line in group:
        row = line[0]
        if (row.size, row.threads) != (previous.size, previous.threads):
            table.add_section()
        previous = row
        about = (row.size, row.solver, row.mode, str(row.threads), row.candidate)
        itself = _absolute(row.candidate_us, row.candidate_mib)
        if row.target.endswith(MICROSECONDS):  # then the target is on the time itself
            itself += _verdict(row)
        table.add_row(*about, itself, *map(_cell, line))
    return table


def _cell(row: Comparison) -> str:
    text = f"{row.ratio:.3g}" if row.ratio < 1e4 else f"{row.ratio:.0f}"
    text += "" if row.ratio_of == SLOPE else "x"
    return text if row.target.endswith(MICROSECONDS) else text + _verdict(row)


def _absolute(us: float | None, mib: float | None) -> str:
    if mib is not None:
        return f"{mib:.1f} MiB"
    if us is None:
        return ""
    return f"{us:.1f} us" if us < 1e3 else f"{us / 1e3:.2f} ms" if us < 1e6 else f"{us / 1e6:.2f} s"


def _verdict(row: Comparison) -> str:
    return f" ({row.target}) [{'green' if row.met == 'ok' else 'bold red'}]{row.met}[/]" if row.target else ""


def print_targets(console: Console, rows: Sequence[Comparison]) -> None:
    """Print for each benchmark how many targets are met, and the misses."""
    table = Table(title="targets", title_justify="left")
    for name in ("benchmark", "ok", "miss"):
        table.add_column(name, justify="left" if name == "benchmark" else "right")
    for name in dict.fromkeys(row.benchmark for row in rows):
        met = [row.met for row in rows if row.benchmark == name]
        table.add_row(name, str(met.count("ok")), str(met.count("miss")))
    console.print(table)
    for row in rows:
        if row.met == "miss":
            about = f"{row.benchmark} {row.size} {row.solver} {row.mode} {row.threads} threads: {row.candidate}"
            found = f"{row.candidate_us:.1f} us" if row.target.endswith(MICROSECONDS) else f"{row.ratio:.3g}"
            console.print(f"miss: {about} against {row.baseline} {found}, target {row.target}", highlight=False)
