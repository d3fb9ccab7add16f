"""What a report shows: tables, ranks, figures, where the runs come from. No HTML here."""

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
from uotpool_experiments.cli.table import read_rows
from uotpool_experiments.runs.export import COMMIT
from uotpool_experiments.runs.rows import FACTS, Row
from uotpool_experiments.runs.store import in_words
from uotpool_experiments.runs.worker import facts
from uotpool_experiments.tables import manifest as listed
from uotpool_experiments.tables.manifest import Entry, Listing
from uotpool_experiments.tables.table import Table
from uotpool_experiments.tasks import TASKS

KINDS = {".png": "image/png", ".svg": "image/svg+xml"}


@dataclass(frozen=True)
class Picture:
    """A figure with its data in the page, or, without, the command that draws it."""

    name: str
    caption: str
    command: str  # that draws it; empty where that is the report itself
    data: str | None = None  # a data: URI


@dataclass(frozen=True)
class Shown:
    """A table, or why there is none."""

    entry: Entry
    command: str
    table: Table | None
    missing: str = ""


@dataclass(frozen=True)
class Ranks:
    title: str
    words: list[str]
    picture: Picture
    table: Table


@dataclass(frozen=True)
class Section:
    listing: Listing
    numbers: str
    tables: list[Shown]


@dataclass
class Report:
    title: str
    sections: list[Section]
    ranks: list[Ranks]
    pictures: list[Picture]
    origins: Table
    made_with: str
    first: list[str] = field(default_factory=list)  # sentences at the top
    next: list[str] = field(default_factory=list)  # what to do after reading


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
        stored: runs of earlier code too.
        title: of the page.
    """
    listings = [listing for source in sources for listing in _listings(source, stored)]
    if not any(listing.rows for listing in listings):
        old = "" if stored else ", by the present code (--stored takes others too)"
        raise ValueError(f"source: expected finished runs{old}, got none in {', '.join(map(str, sources))}")
    tasks = [listing.task for listing in listings]
    if len(set(tasks)) < len(tasks):
        raise ValueError(f"source: expected each task in one source, got {', '.join(tasks)}")
    sections = [Section(listing, _numbers(listing.rows), _tables(listing)) for listing in listings]
    own = [_ranks(f"{x.title}, {_protocol(x)}", x.ranking()) for x in listings]
    ranks = [found for found in own if found is not None]
    if len(ranks) > 1:
        how = "; ".join(f"{x.task}: {_protocol(x)}" for x in listings if x.found())
        ranking, left_out = listed.overall(listings)
        ranks = [*filter(None, [_ranks(f"All tasks together ({how})", ranking, left_out)]), *ranks]
    first = [*(ranks[0].words if ranks else []), *in_short(sections)]
    return Report(title, sections, ranks, list(pictures), _origins(listings), _made_with(), first)


def _listings(source: Path, stored: bool) -> list[Listing]:
    if not source.is_dir():
        return listed.by_default(source, read_rows(source), stored)
    if (source / listed.FILE).is_file():
        return [listed.read(source)]
    folders = [source / task for task in TASKS]
    found = [listed.read(folder) for folder in folders if (folder / listed.FILE).is_file()]
    if not found:
        raise ValueError(f"source: expected a folder with TASK/{listed.FILE}, got {source}, which has none")
    return found


def _protocol(listing: Listing) -> str:
    return "paper's protocol, optimistic" if listing.protocol() == "paper" else "fair protocol"


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
    """What could not be made, and why."""
    found = [shown for section in report.sections for shown in section.tables if shown.table is None]
    return [f"{shown.command}: {shown.missing}" for shown in found]


def _tables(listing: Listing) -> list[Shown]:
    found = []
    for entry in listing.entries:
        command = listing.command(entry)
        try:
            found.append(Shown(entry, command, listing.table(entry)))
        except ValueError as error:  # no such runs: the page says so in the table's place
            found.append(Shown(entry, command, None, str(error)))
    return found


def in_short(sections: Sequence[Section]) -> list[str]:
    """What the tests and the two protocols say, task by task."""
    words = []
    for section in sections:
        listing, counts = section.listing, Counter[str]()
        for shown in section.tables:
            counts += listing.verdicts(shown.entry) if shown.table else Counter()
        if counts:
            words.append(
                f"{listing.title}: {counts.total()} tests of a UOTP layer against another pooling on one data "
                f"set; {counts['win']} are won and {counts['loss']} lost, after Holm's correction in each table"
            )
        for shown in section.tables:
            if shown.table and "optimism" in shown.entry.arguments:
                gaps = [float(cell) for row in shown.table.rows for cell in row[1:] if cell]
                words.append(
                    f"{shown.entry.about} ({listing.title}): {statistics.median(gaps):+.1f} points in the "
                    f"median, {min(gaps):+.1f} to {max(gaps):+.1f} (low: what does not train as it sets it)"
                )
    return words


def _ranks(title: str, ranking: Ranking | None, left_out: Sequence[str] = ()) -> Ranks | None:
    """None for one data set, whose ranks are in the table of results, or one pooling."""
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
    caption = f"Mean ranks. {title}. Thick bars join poolings that Nemenyi's test does not tell apart"
    drawn = Picture("ranks", caption, "", data_uri(picture.getvalue(), ".svg"))
    return Ranks(title, ranks.in_words(ranking, left_out), drawn, rank_table(ranking))


def rank_table(ranking: Ranking) -> Table:
    """Mean rank, its interval, points behind the best, and the rank on each data set."""
    head = ["pooling", "mean rank", "95 % from", "to", "points behind the best", *ranking.datasets]
    table = Table("ranks by accuracy", head, [])
    intervals = ranking.interval() or [(float("nan"),) * 2] * len(ranking.poolings)
    for i, pooling in enumerate(ranking.poolings):
        low, high = intervals[i]
        own = [
            f"{ranking.mean[i]:.1f}",
            f"{low:.1f}",
            f"{high:.1f}",
            f"{100 * ranking.behind[:, i].mean():.2f}",
        ]
        table.rows.append([pooling, *own, *(f"{rank:g}" for rank in ranking.ranks[:, i])])
    table.notes.append(
        "interval of the mean rank by Student's t over the data sets; points behind the best accuracy of each "
        "data set, on average"
    )
    return table


def data_uri(content: bytes, suffix: str) -> str:
    return f"data:{KINDS[suffix]};base64,{base64.b64encode(content).decode('ascii')}"


def pictures_in(folder: Path) -> list[Picture]:
    """All figures that `uotpool figure` knows, those that are drawn in the folder with their data."""
    found = []
    for name, (_, _, caption) in figures.FIGURES.items():
        path = folder / f"{name}.png"
        data = data_uri(path.read_bytes(), path.suffix) if path.is_file() else None
        found.append(Picture(name, caption, f"uotpool figure {name}", data))
    return found


def _origins(listings: Sequence[Listing]) -> Table:
    """With what the runs were made."""
    table = Table("origin of the runs", ["task", "runs", "commit", "machine", "versions"], [])
    for listing in listings:
        counts: dict[tuple[str, ...], int] = {}
        for row in listing.rows:
            key = tuple(row.facts.get(name, "") for name in FACTS)
            counts[key] = counts.get(key, 0) + 1
        for (versions, machine, commit), count in counts.items():
            cells = [commit[:COMMIT], machine, versions]
            table.rows.append([listing.task, str(count), *(cell or "unknown" for cell in cells)])
    return table


def _made_with() -> str:
    """This page: versions, machine and commit."""
    here = facts()
    commit = here["commit_id"][:COMMIT]
    return ", ".join([in_words(here["versions"]), here["machine"], *([f"commit {commit}"] if commit else [])])
