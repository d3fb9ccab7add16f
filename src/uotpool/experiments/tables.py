"""Tables from the run store: terminal, Markdown, LaTeX, CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from uotpool.experiments import paper
from uotpool.experiments.fingerprint import fingerprint
from uotpool.experiments.protocols import PROTOCOLS
from uotpool.experiments.statistics import Sample, common, compare, ranks, samples, sign
from uotpool.experiments.store import Row, Store

FORMATS = ("terminal", "markdown", "latex", "csv")
OPTIMISTIC = "paper protocol: the epoch is chosen by the test loss, so its numbers are optimistic"
# The last two are of the hold-out and of the plan of a UOT pooling.
METRICS = ("accuracy", "balanced_accuracy", "auc", "loss", "validation_loss", "divergence")
PLAIN = ("loss", "validation_loss", "divergence")  # not in per cent


LATEX = {letter: f"\\{letter}" for letter in "_%&#${}"} | {
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "±": "$\\pm$",
}


class MixedCodeError(ValueError):
    """Runs of several versions of the code would stand in one table."""


@dataclass
class Table:
    """Cells as text; `best` marks cells to be set in bold."""

    title: str
    head: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    best: set[tuple[int, int]] = field(default_factory=set)

    def render(self, form: str) -> str:
        if form not in FORMATS:
            raise ValueError(f"format: expected one of {FORMATS}, got {form!r}")
        return {"terminal": _terminal, "markdown": _markdown, "latex": _latex, "csv": _csv}[form](self)


def select(
    store: Store, task: str, *, stored: bool = False, settings: str | None = "{}"
) -> tuple[list[Row], list[str]]:
    """The runs to show, and what must be said of them. Only those of the present code, but for `stored`.

    Those with these settings, or with any, for None.
    """
    rows = store.rows(task=task) if settings is None else store.rows(task=task, settings=settings)
    if stored:
        by_pooling: dict[str, set[str]] = {}
        for row in rows:
            by_pooling.setdefault(row.spec.pooling, set()).add(row.fingerprint)
        for name, codes in by_pooling.items():
            if len(codes) > 1:
                what = f"the store has runs of {name!r} by {len(codes)} versions of the code"
                raise MixedCodeError(f"{what}; run the sweep again, or show only those of the present code")
        return rows, []
    now = [row for row in rows if row.fingerprint == fingerprint(task, row.spec.pooling)]
    left = len(rows) - len(now)
    return now, [f"{left} runs of other versions of the code are left out"] if left else []


def accuracy_table(rows: Sequence[Row], protocol: str, metric: str = "accuracy") -> Table:
    """Poolings by data sets, mean +- standard deviation in per cent, with the paper's numbers and ranks."""
    found = samples([row for row in rows if row.spec.protocol == protocol], metric)
    if not found:
        raise ValueError(f"protocol: expected one with runs, got {protocol!r}, with no run")
    poolings = _ordered(found)
    datasets = list(dict.fromkeys(d for _, d in found))
    mean_rank = ranks(found, sign(metric))
    beside = metric == "accuracy" and protocol == "paper"
    head = ["pooling" if protocol == "fair" else f"pooling ({protocol} protocol, optimistic)"]
    for name in datasets:
        head.append(name)
        if beside and any((p, name) in paper.TABLE_1 for p in poolings):
            head.append(f"{name}, published")
    table = Table(f"{metric}, protocol {protocol}", [*head, "mean rank"], [])
    for p in poolings:
        cells = [p]
        for name in head[1:]:
            dataset, _, published = name.partition(", ")
            if published:
                number = paper.TABLE_1.get((p, dataset))
                cells.append(f"{number.mean:.2f} ± {number.std:.2f}" if number else "")
            else:
                cells.append(_cell(found.get((p, dataset)), metric))
        table.rows.append([*cells, f"{mean_rank[p]:.1f}" if p in mean_rank else ""])
    _mark_best(table, found, poolings, head, sign(metric))
    if metric == "accuracy":
        table.rows.append(_majority_row(rows, protocol, head))
    unit = "" if metric in PLAIN else ", per cent"
    runs = sorted({(len(s), s.seeds) for s in found.values()})
    table.notes.append(f"mean ± standard deviation over folds and seeds{unit}; runs a cell: " + _counts(runs))
    if protocol == "paper":
        table.notes.append(OPTIMISTIC)
    return table


def _cell(sample: Sample | None, metric: str) -> str:
    if sample is None:
        return ""
    unit, digits = (1, 3) if metric in PLAIN else (100, 2)
    return f"{unit * sample.mean:.{digits}f} ± {unit * sample.std:.{digits}f}"


def _counts(runs: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{n} ({seeds} seed{'s' if seeds > 1 else ''})" for n, seeds in runs) or "none"


def _ordered(found: dict[tuple[str, str], Sample]) -> list[str]:
    present = {p for p, _ in found}
    first = [p for p in paper.POOLINGS if p in present]
    return first + sorted(present - set(first))


def _majority_row(rows: Sequence[Row], protocol: str, head: Sequence[str]) -> list[str]:
    share = samples([row for row in rows if row.spec.protocol == protocol], "majority")
    cells = ["(majority class)"]
    for name in head[1:]:
        known = [s for (_, d), s in share.items() if d == name]
        cells.append(_cell(known[0], "majority") if known else "")
    return [*cells, ""]


def _mark_best(
    table: Table,
    found: dict[tuple[str, str], Sample],
    poolings: Sequence[str],
    head: Sequence[str],
    better: int,
) -> None:
    for column, name in enumerate(head[1:], 1):
        means = {i: found[p, name].mean for i, p in enumerate(poolings) if (p, name) in found}
        if means:
            best = max(better * mean for mean in means.values())
            table.best |= {(i, column) for i, mean in means.items() if better * mean == best}


def optimism_table(rows: Sequence[Row], metric: str = "accuracy") -> Table:
    """The paper's protocol less the fair one, in points, on the folds and seeds that both have."""
    by_protocol = {p: samples([row for row in rows if row.spec.protocol == p], metric) for p in PROTOCOLS}
    gaps = {key: _gap(ours, by_protocol["fair"].get(key)) for key, ours in by_protocol["paper"].items()}
    both = [key for key, gap in gaps.items() if gap is not None]
    if not both:
        raise ValueError("protocol: expected the same runs under both protocols, got no such run")
    datasets = list(dict.fromkeys(d for _, d in both))
    table = Table(f"protocol paper less protocol fair ({metric}, points)", ["pooling", *datasets], [])
    for p in _ordered({key: by_protocol["fair"][key] for key in both}):
        found = [gaps.get((p, d)) for d in datasets]
        table.rows.append([p, *("" if gap is None else f"{100 * gap:+.2f}" for gap in found)])
    table.notes.append(OPTIMISTIC)
    return table


def _gap(paper_runs: Sample, fair_runs: Sample | None) -> float | None:
    """On the folds and seeds that both have."""
    common = paper_runs.values.keys() & (fair_runs.values.keys() if fair_runs else set())
    if not common or fair_runs is None:
        return None
    return sum(paper_runs.values[case] - fair_runs.values[case] for case in sorted(common)) / len(common)


def comparison_table(
    rows: Sequence[Row], pooling: str, protocol: str = "fair", metric: str = "accuracy"
) -> Table:
    """One pooling against all others: difference in points and the verdict of the corrected test."""
    found = samples([row for row in rows if row.spec.protocol == protocol], metric)
    datasets = [d for (p, d) in found if p == pooling]
    if not datasets:
        raise ValueError(f"pooling: expected one with runs under {protocol!r}, got {pooling!r}, with no run")
    scale, unit = (1, "") if metric in PLAIN else (100, ", points")
    table = Table(
        f"{pooling} less each other pooling ({metric}{unit}; protocol {protocol})",
        ["against", *datasets, "wins", "ties", "losses"],
        [],
    )
    for other in _ordered(found):
        if other == pooling:
            continue
        cells, verdicts = [], []
        for d in datasets:
            theirs = found.get((other, d))
            outcome = compare(found[pooling, d], theirs, better=sign(metric)) if theirs else None
            cells.append(f"{scale * outcome.difference:+.2f} ({outcome.p_value:.2f})" if outcome else "")
            verdicts.append(outcome.verdict if outcome else "")
        table.rows.append([other, *cells, *(str(verdicts.count(v)) for v in ("win", "tie", "loss"))])
    table.notes.append(
        "in brackets: p of the paired t-test with the correction of Nadeau and Bengio; verdicts at 5 %, "
        "each test by itself"
    )
    if protocol == "paper":
        table.notes.append(OPTIMISTIC)
    return table


def settings_table(rows: Sequence[Row], protocol: str = "fair", metric: str = "accuracy") -> Table:
    """The settings of each pooling, on the folds and seeds that all of them have, against its default."""
    chosen = [row for row in rows if row.spec.protocol == protocol]
    if not chosen:
        raise ValueError(f"protocol: expected one with runs, got {protocol!r}, with no run")
    datasets = list(dict.fromkeys(row.spec.dataset for row in chosen))
    first = "pooling" if protocol == "fair" else f"pooling ({protocol} protocol, optimistic)"
    table = Table(
        f"{metric} by settings, protocol {protocol}", [first, "settings", *datasets, "better, same, worse"], []
    )
    for pooling in sorted({row.spec.pooling for row in chosen}, key=_by_pooling):
        _add_settings(table, [row for row in chosen if row.spec.pooling == pooling], datasets, metric)
    unit = "" if metric in PLAIN else ", per cent"
    table.notes.append(
        f"mean ± standard deviation over the folds and seeds that all settings of a pooling have{unit}; last "
        "column: data sets on which it differs from the pooling's default (corrected paired t-test, 5 %)"
    )
    if protocol == "paper":
        table.notes.append(OPTIMISTIC)
    return table


def _add_settings(table: Table, rows: Sequence[Row], datasets: Sequence[str], metric: str) -> None:
    pooling = rows[0].spec.pooling
    settings = sorted({row.spec.settings for row in rows}, key=lambda text: (len(text), text))
    cells: dict[str, dict[str, Sample]] = {text: {} for text in settings}
    for dataset in datasets:
        parts = {
            text: samples([r for r in rows if (r.spec.settings, r.spec.dataset) == (text, dataset)], metric)
            for text in settings
        }
        there = {text: part[pooling, dataset] for text, part in parts.items() if (pooling, dataset) in part}
        for text, sample in zip(there, common(list(there.values())), strict=True):
            if len(sample):
                cells[text][dataset] = sample
    for text in settings:
        verdicts = [
            outcome.verdict
            for dataset, sample in cells[text].items()
            if text != "{}"
            and dataset in cells.get("{}", {})
            and (outcome := compare(sample, cells["{}"][dataset], better=sign(metric)))
        ]
        against = ", ".join(str(verdicts.count(v)) for v in ("win", "tie", "loss")) if verdicts else ""
        shown = [_cell(cells[text].get(dataset), metric) for dataset in datasets]
        table.rows.append([pooling, _short(text), *shown, against])
    for column, dataset in enumerate(datasets, 2):
        means = {
            i: sign(metric) * cells[t][dataset].mean for i, t in enumerate(settings) if dataset in cells[t]
        }
        start = len(table.rows) - len(settings)
        table.best |= {(start + i, column) for i, mean in means.items() if mean == max(means.values())}


def _by_pooling(pooling: str) -> tuple[int, str]:
    known = pooling in paper.POOLINGS
    return (paper.POOLINGS.index(pooling) if known else len(paper.POOLINGS), pooling)


def _short(settings: str) -> str:
    """`{"pool":{"K":8}}` as `pool.K=8`."""
    flat = []
    for name, value in json.loads(settings).items():
        inner = (
            {f"{name}.{key}": item for key, item in value.items()} if isinstance(value, dict) else {name: value}
        )
        flat += [f"{key}={item}" for key, item in inner.items()]
    return ", ".join(flat) or "default"


def _terminal(table: Table) -> str:
    rich = RichTable(title=Text(table.title), title_justify="left", box=box.SIMPLE_HEAD)
    for i, name in enumerate(table.head):
        rich.add_column(Text(name), justify="left" if i == 0 else "right", no_wrap=i == 0)
    for r, row in enumerate(table.rows):
        rich.add_row(*(Text(cell + ("*" if (r, c) in table.best else "")) for c, cell in enumerate(row)))
    text = io.StringIO()
    console = Console(file=text, width=max(100, 18 * len(table.head)), force_terminal=False)
    console.print(rich)
    for note in [*(["* best"] if table.best else []), *table.notes]:
        console.print(f"  {note}", highlight=False, markup=False)
    return text.getvalue()


def _markdown(table: Table) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    body = [
        line([f"**{cell}**" if (r, c) in table.best else cell for c, cell in enumerate(row)])
        for r, row in enumerate(table.rows)
    ]
    rule = "|---|" + "--:|" * (len(table.head) - 1)
    notes = [f"{note[0].upper()}{note[1:]}." for note in table.notes]
    return "\n".join([f"**{table.title}**", "", line(table.head), rule, *body, "", *notes, ""])


def _latex(table: Table) -> str:
    def escape(cell: str) -> str:
        return "".join(LATEX.get(letter, letter) for letter in cell)

    lines = [f"% {table.title}", f"\\begin{{tabular}}{{l{'r' * (len(table.head) - 1)}}}", "\\toprule"]
    lines += [" & ".join(map(escape, table.head)) + " \\\\", "\\midrule"]
    for r, row in enumerate(table.rows):
        cells = [f"\\textbf{{{escape(x)}}}" if (r, c) in table.best else escape(x) for c, x in enumerate(row)]
        lines.append(" & ".join(cells) + " \\\\")
    lines += ["\\bottomrule", "\\end{tabular}", *(f"% {note}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def _csv(table: Table) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.head)
    writer.writerows(table.rows)
    return text.getvalue()
