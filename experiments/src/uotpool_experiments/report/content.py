"""The content of a report: tables, ranks, figures and the origin of the runs. No HTML is made here."""

from __future__ import annotations

import base64
import io
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from uotpool_experiments import figures
from uotpool_experiments.analysis.ranking import Ranking
from uotpool_experiments.analysis.selection import Source
from uotpool_experiments.runs.export import COMMIT
from uotpool_experiments.runs.rows import FACTS, Row
from uotpool_experiments.runs.store import in_words
from uotpool_experiments.runs.worker import facts
from uotpool_experiments.tables import manifest
from uotpool_experiments.tables.comparison import compared, verdicts
from uotpool_experiments.tables.fitting import manifests_of
from uotpool_experiments.tables.manifest import Entry, Manifest
from uotpool_experiments.tables.spec import TableSpec
from uotpool_experiments.tables.table import Column, Count, Difference, Line, Number, Table, Text
from uotpool_experiments.tasks import TASKS

KINDS = {".png": "image/png", ".svg": "image/svg+xml"}


@dataclass(frozen=True)
class Picture:
    """A figure with its data, or without data, but with the command that draws it."""

    name: str
    caption: str
    command: str  # empty where the report itself draws the figure
    data: str | None = None  # a data: URI


@dataclass(frozen=True)
class Shown:
    """A table, or the reason why there is none."""

    entry: Entry
    command: str
    table: Table | None
    missing: str = ""


@dataclass(frozen=True)
class Ranks:
    """Mean ranks in words, as a picture and as a table."""

    title: str
    words: list[str]
    picture: Picture
    table: Table


@dataclass(frozen=True)
class Section:
    """The tables of one task."""

    manifest: Manifest
    numbers: str
    tables: list[Shown]


@dataclass
class Report:
    """Everything that a page shows."""

    title: str
    sections: list[Section]
    ranks: list[Ranks]
    pictures: list[Picture]
    origins: Table
    made_with: str
    first: list[str] = field(default_factory=list)  # sentences at the top
    next: list[str] = field(default_factory=list)  # suggestions for after reading


def collect(
    sources: Sequence[Path],
    pictures: Sequence[Picture] = (),
    *,
    stored: bool = False,
    title: str = "uotpool: results",
) -> Report:
    """Read all runs and make all tables.

    Args:
        sources: run stores, CSV files of runs, or folders with TASK/tables.toml and TASK/runs.csv.
        pictures: figures to show.
        stored: whether runs of earlier code count too.
        title: the title of the page.
    """
    manifests = [found for source in sources for found in _manifests(source, stored)]
    if not any(found.source.rows for found in manifests):
        old = "" if stored else ", by the present code (--stored takes others too)"
        raise ValueError(f"source: expected finished runs{old}, got none in {', '.join(map(str, sources))}")
    tasks = [found.task for found in manifests]
    if len(set(tasks)) < len(tasks):
        raise ValueError(f"source: expected each task in one source, got {', '.join(tasks)}")
    sections = [Section(found, _numbers(found.source.rows), _tables(found)) for found in manifests]
    ranks = _all_ranks(manifests)
    first = [*(ranks[0].words if ranks else []), *in_short(sections)]
    return Report(title, sections, ranks, list(pictures), _origins(manifests), _made_with(), first)


def _manifests(source: Path, stored: bool) -> list[Manifest]:
    if not source.is_dir():
        return manifests_of(Source.read(source, stored=stored))
    if (source / manifest.FILE).is_file():
        return [manifest.read(source)]
    folders = [source / task for task in TASKS]
    found = [manifest.read(folder) for folder in folders if (folder / manifest.FILE).is_file()]
    if not found:
        raise ValueError(f"source: expected a folder with TASK/{manifest.FILE}, got {source}, which has none")
    return found


def _all_ranks(manifests: Sequence[Manifest]) -> list[Ranks]:
    """Rank the poolings in each task, and first over all tasks together if there are several."""
    own = [_ranks(f"{found.title}, {_protocol(found)}", found.ranking()) for found in manifests]
    ranks = [found for found in own if found is not None]
    if len(ranks) < 2:
        return ranks
    how = "; ".join(f"{found.task}: {_protocol(found)}" for found in manifests if found.ranked_samples())
    together = _ranks(f"All tasks together ({how})", *manifest.overall(manifests))
    return ranks if together is None else [together, *ranks]


def _protocol(found: Manifest) -> str:
    """Return the protocol of the runs that are ranked."""
    optimistic = found.ranked is not None and found.ranked.protocol == "paper"
    return "paper's protocol, optimistic" if optimistic else "fair protocol"


def _numbers(rows: Sequence[Row]) -> str:
    specs = [row.spec for row in rows]
    counts = {
        "runs": len(specs),
        "poolings": len({spec.pooling for spec in specs}),
        "data sets": len({spec.dataset for spec in specs}),
        "seeds": len({spec.seed for spec in specs}),
    }
    return ", ".join(f"{count:,} {name[:-1] if count == 1 else name}" for name, count in counts.items())


def missing(report: Report) -> list[str]:
    """Return what could not be made, and why."""
    found = [shown for section in report.sections for shown in section.tables if shown.table is None]
    return [f"{shown.command}: {shown.missing}" for shown in found]


def _tables(found: Manifest) -> list[Shown]:
    tables = []
    for entry in found.entries:
        command = found.command(entry)
        try:
            tables.append(Shown(entry, command, found.table(entry)))
        except ValueError as error:  # there are no such runs, and the page says so in the table's place
            tables.append(Shown(entry, command, None, str(error)))
    return tables


def in_short(sections: Sequence[Section]) -> list[str]:
    """Sum up what the tests and the two protocols say, task by task."""
    words = []
    for section in sections:
        title, counts = section.manifest.title, Counter[str]()
        tables = [(shown.entry, shown.table) for shown in section.tables if shown.table is not None]
        for entry, table in tables:
            counts += verdicts_of_uotp(entry.spec, table)
        if counts:
            words.append(
                f"{title}: {counts.total()} tests of a UOTP layer against another pooling on one data "
                f"set; {counts['win']} are won and {counts['loss']} lost, after Holm's correction in each table"
            )
        for entry, table in tables:
            if entry.spec.kind == "optimism":
                cells = [cell for line in table.lines for cell in line.cells]
                gaps = [cell.points for cell in cells if isinstance(cell, Difference)]
                words.append(
                    f"{entry.about} ({title}): {statistics.median(gaps):+.1f} points in the "
                    f"median, {min(gaps):+.1f} to {max(gaps):+.1f} "
                    "(low values come from poolings that do not train at its settings)"
                )
    return words


def verdicts_of_uotp(spec: TableSpec, table: Table) -> Counter[str]:
    """Return the verdicts of a table that compares a UOT pooling with others; none for another table."""
    about_uotp = spec.kind == "comparison" and compared(spec).startswith("uotp-")
    return verdicts(table) if about_uotp else Counter()


def _ranks(title: str, ranking: Ranking | None, left_out: Sequence[str] = ()) -> Ranks | None:
    """Show a ranking; None for one pooling, or for one data set, whose ranks are in the table of results."""
    if ranking is None or len(ranking.datasets) < 2 or len(ranking.poolings) < 2:
        return None
    import matplotlib as mpl  # noqa: PLC0415

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    from uotpool_experiments.figures import ranks  # noqa: PLC0415 matplotlib, which tables do not need

    picture = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": title, "svg.fonttype": "none"}):
        figure = ranks.diagram(ranking)
        figure.savefig(picture, format="svg", metadata={"Date": None})
        plt.close(figure)
    caption = f"Mean ranks. {title}. Thick bars join poolings that do not differ by Nemenyi's test"
    drawn = Picture("ranks", caption, "", data_uri(picture.getvalue(), ".svg"))
    return Ranks(title, ranks.in_words(ranking, left_out), drawn, rank_table(ranking))


def rank_table(ranking: Ranking) -> Table:
    """Make the table of mean ranks, their intervals, points behind the best, and ranks on each data set."""
    summaries = ("mean rank", "95 % from", "to", "points behind the best")
    columns = [Column.label("pooling"), *map(Column, summaries), *map(Column.of, ranking.datasets)]
    table = Table("ranks by accuracy", columns)
    intervals = ranking.interval() or [(float("nan"),) * 2] * len(ranking.poolings)
    for i, pooling in enumerate(ranking.poolings):
        own = [Number(float(number), ".1f") for number in (ranking.mean[i], *intervals[i])]
        behind = Number(100 * float(ranking.behind[:, i].mean()))
        places = [Number(float(rank), "g") for rank in ranking.ranks[:, i]]
        table.lines.append(Line.of(pooling, *own, behind, *places))
    table.notes.append(
        "interval of the mean rank by Student's t over the data sets; points behind the best accuracy of each "
        "data set, on average"
    )
    return table


def data_uri(content: bytes, suffix: str) -> str:
    return f"data:{KINDS[suffix]};base64,{base64.b64encode(content).decode('ascii')}"


def pictures_in(folder: Path) -> list[Picture]:
    """Return all figures that `uotpool figure` knows, with data if the folder has them."""
    found = []
    for name, entry in figures.FIGURES.items():
        path = folder / f"{name}.png"
        data = data_uri(path.read_bytes(), path.suffix) if path.is_file() else None
        found.append(Picture(name, entry.about, f"uotpool figure {name}", data))
    return found


def _origins(manifests: Sequence[Manifest]) -> Table:
    """Make the table of the versions and machines that made the runs."""
    label = Column.label
    columns = [label("task"), Column("runs"), label("commit"), label("machine"), label("versions")]
    table = Table("origin of the runs", columns)
    for found in manifests:
        counts = Counter(tuple(row.facts.get(name, "") for name in FACTS) for row in found.source.rows)
        for (versions, machine, commit), count in counts.items():
            texts = [Text(text or "unknown") for text in (commit[:COMMIT], machine, versions)]
            table.lines.append(Line.of(found.task, Count(count), *texts))
    return table


def _made_with() -> str:
    """Say with which versions, on which machine and from which commit the page is made."""
    here = facts()
    commit = here["commit_id"][:COMMIT]
    return ", ".join([in_words(here["versions"]), here["machine"], *([f"commit {commit}"] if commit else [])])
