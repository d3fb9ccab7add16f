"""The report page: what it shows, that everything from data is escaped, and that it needs nothing else."""

from __future__ import annotations

import csv
import dataclasses
import html
import re
import shlex
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from uotpool_experiments.analysis.published_results import Published
from uotpool_experiments.analysis.samples import Sample
from uotpool_experiments.analysis.selection import Source, select
from uotpool_experiments.analysis.tests import Comparison
from uotpool_experiments.report import collect, pictures_in, write
from uotpool_experiments.report.content import Picture, Report, missing, verdicts_of_uotp
from uotpool_experiments.report.page import render, sort_key
from uotpool_experiments.runs import export
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.runs.store import Store
from uotpool_experiments.tables import manifest
from uotpool_experiments.tables.formats import render as render_table
from uotpool_experiments.tables.make import make
from uotpool_experiments.tables.results import results_table
from uotpool_experiments.tables.spec import TableSpec
from uotpool_experiments.tables.table import (
    EMPTY,
    Cell,
    Count,
    Difference,
    Mean,
    Outcome,
    PublishedMean,
    Table,
    Text,
)
from uotpool_experiments.tasks.fingerprint import fingerprint
from uotpool_experiments.tasks.spec import Result

from experiments.tests.helpers import FACTS, row, table_of_runs
from uotpool.cli import main

RESULTS = Path(__file__).parents[2] / "results"
EVIL = '<script>alert("x")</script>&\'"'


def runs() -> list[Row]:
    values = {
        ("mean", "musk1", "fair"): [0.8, 0.7, 0.75, 0.8, 0.7],
        ("max", "musk1", "fair"): [0.7, 0.7, 0.7, 0.75, 0.7],
        ("uotp-sinkhorn", "musk1", "fair"): [0.9, 0.7, 0.8, 0.8, 0.9],
        ("mean", "component", "fair"): [0.8, 0.7, 0.75, 0.8, 0.7],
        ("max", "component", "fair"): [0.9, 0.9, 0.8, 0.9, 0.9],
        ("uotp-sinkhorn", "component", "fair"): [0.7, 0.7, 0.6, 0.7, 0.7],
        ("mean", "component", "paper"): [0.85, 0.75, 0.8, 0.85, 0.75],
    }
    return [dataclasses.replace(found, facts=FACTS) for found in table_of_runs(values)]


@pytest.fixture
def store(tmp_path) -> Path:
    path = tmp_path / "runs.csv"
    with path.open("w") as file:
        export.write(runs(), file)
    return path


def test_page_of_a_store(store, tmp_path):
    page = write(collect([store]), tmp_path / "new" / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    for text in (
        "uotp-sinkhorn",
        "component, published",
        "component, difference",
        "critical difference",
        "abc",
    ):
        assert text in page
    assert f"uotpool table mil --store={store}</code>" in page
    assert f"uotpool table mil --store={store} --protocol paper</code>" in page
    assert "protocol paper less protocol fair" in page
    assert 'class="below"' in page  # 80.00 where the paper has 93.32
    assert not list(tmp_path.glob("**/*.part"))
    assert render(collect([store])) == render(collect([store]))


def test_every_command_in_the_page_prints_its_table(store, capsys):
    page = render(collect([store]))
    commands = re.findall(r"<pre><code>(uotpool .*?)</code></pre>", page)
    assert len(commands) >= 4
    for command in commands:
        with pytest.raises(SystemExit) as stop:
            main(shlex.split(html.unescape(command))[1:])
        assert stop.value.code == 0
        title = capsys.readouterr().out.splitlines()[0].strip()
        assert html.escape(title, quote=False) in html.unescape(page)


def test_everything_from_data_is_escaped(tmp_path):
    odd = [
        dataclasses.replace(r, facts=dict.fromkeys(FACTS, '"' + EVIL.replace('"', "'") + '"')) for r in runs()
    ]
    odd += [dataclasses.replace(row("mean", EVIL, {"accuracy": 0.5}, fold=i), facts={}) for i in range(2)]
    odd = [dataclasses.replace(r, facts={**r.facts, "versions": "a<b> <i>"}) for r in odd]
    path = tmp_path / "<b>.csv"
    with path.open("w") as file:
        export.write(odd, file)
    page = render(collect([path], [Picture(EVIL, EVIL, EVIL)], title=EVIL))
    rest = page.replace(re.findall(r"<script>.*?</script>", page, re.DOTALL)[-1], "", 1)
    for raw in ("<script", "<b>.csv", "<i>", 'alert("x")'):
        assert raw not in rest
    assert "&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt;" in rest


def test_the_page_needs_nothing_else(store):
    page = render(collect([store], pictures_in(RESULTS.parent / "docs" / "figures")))
    for link in re.findall(r"(?:src|href)\s*=\s*[\"']?([^\"'> ]+)", page):
        assert link.startswith(("data:", "#")), link
    assert "default-src 'none'" in page
    assert "@import" not in page
    assert "url(" not in page


def test_pictures_are_in_the_page_or_their_command_is(tmp_path):
    shutil.copy(RESULTS.parent / "docs" / "figures" / "dynamics.png", tmp_path)
    found = {picture.name: picture for picture in pictures_in(tmp_path)}
    assert found["dynamics"].data is not None
    assert found["dynamics"].data.startswith("data:image/png;base64,")
    assert found["plans"].data is None
    assert found["plans"].command == "uotpool figure plans"


@pytest.mark.parametrize(
    ("cell", "key"),
    [
        (Mean(Sample({(0, 0): 0.5, (0, 1): 0.25}), "accuracy"), "0.375"),
        (Outcome(Comparison(0.5, 0.03, 5), "accuracy"), "0.5"),
        (PublishedMean(Published(93.32, 0.99)), "93.32"),
        (Difference(-3.0), "-3"),
        (Count(1024), "1024"),
        (EMPTY, ""),
        (Text("mean"), "mean"),
        (Text("5 more"), "5 more"),
    ],
)
def test_sort_keys(cell: Cell, key):
    assert sort_key(cell) == key


@pytest.fixture(scope="module")
def committed() -> Report:
    return collect([RESULTS])


def test_the_committed_results(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(RESULTS.parent)
    with pytest.raises(SystemExit) as stop:
        main(["report", "--output", str(tmp_path / "report.html")])
    assert stop.value.code == 0
    assert "report.html" in capsys.readouterr().out
    page = (tmp_path / "report.html").read_text()
    assert "No table" not in page
    for task in ("mil", "graph", "image", "regimes"):
        assert f'<section id="{task}">' in page
    assert "All tasks together" in page
    assert "unknown" not in page.split('id="origin"')[1]


@pytest.mark.parametrize("task", ["mil", "graph", "image", "regimes", "bags"])
def test_committed_tables_are_those_of_the_runs(task, committed):
    (section,) = (section for section in committed.sections if section.manifest.task == task)
    check_committed(section.manifest, {shown.entry.name: shown.table for shown in section.tables}, task)


@pytest.mark.parametrize("folder", ["real_check/graph", "real_check/mil"])
def test_committed_tables_of_the_checks_are_those_of_the_runs(folder):
    found = manifest.read(RESULTS / folder)
    check_committed(found, {entry.name: found.table(entry) for entry in found.entries}, folder)


def check_committed(found: manifest.Manifest, tables: dict[str, Table], folder: str) -> None:
    """Compare a folder's files with its tables. The command under each is right from the project's root."""
    for entry in found.entries:
        table = tables[entry.name]
        text = (RESULTS / folder / f"{entry.name}.md").read_text()
        assert found.page(entry, table) == text, f"run: uotpool tables results/{folder}"
        csv_text = (RESULTS / folder / f"{entry.name}.csv").read_text()
        assert render_table(table, "csv") == csv_text, f"run: uotpool tables results/{folder}"
        command = text.splitlines()[-1].strip()
        assert command.startswith(f"uotpool table {found.task} --store=results/{folder}/runs.csv")
        assert str(RESULTS.parent) not in command
    names = {path.stem for path in (RESULTS / folder).glob("*.md")} - {"README", "design_log"}
    assert names == {entry.name for entry in found.entries}


def test_tables_are_written(tmp_path, store, capsys):
    folder = tmp_path / "mil"
    folder.mkdir()
    shutil.copy(store, folder / "runs.csv")
    (folder / "tables.toml").write_text('[[table]]\nname = "one"\nabout = "It"\ndataset = "musk1"\n')
    with pytest.raises(SystemExit) as stop:
        main(["tables", str(folder)])
    assert stop.value.code == 0
    assert (folder / "one.csv").read_text().startswith("pooling,musk1,mean rank\n")
    assert "musk1" in (folder / "one.md").read_text()
    assert collect([folder]).sections[0].tables[0].entry.about == "It"
    assert collect([tmp_path]).sections[0].manifest.task == "mil"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[table", "not a TOML file"),
        ("colour = 1", r"expected keys among .* got \['colour'\]"),
        ("[[table]]\nabout = 'x'", "expected a text for name, got none"),
        ("[[table]]\nname = '../x'\nabout = 'y'", r"expected names of letters, digits, _ and -, got '\.\./x'"),
        ("ranking = 5", "ranking: expected a table of keys, .* got 5"),
        ("ranking = {protocol = 'mine'}", "ranking: protocol: expected one of .* got 'mine'"),
        ("ranking = {metric = 'loss'}", "ranking: .* the metric accuracy, got results and loss"),
        ("compared = {metric = 'loss'}", "compared: .* the metric accuracy, got results and loss"),
        ("table = 5", r"expected every table as \[\[table\]\], got 5"),
        ("table = 'x'", r"expected every table as \[\[table\]\], got 'x'"),
        ("[[table]]\nname = 'x'\nabout = 'y'\ncolour = 1", r"table x: expected keys .* got \['colour'\]"),
        ("[[table]]\nname = 'x'\nabout = 'y'\nshown = 1", "table x: shown: expected true or false, got 1"),
        ("[[table]]\nname = 'x'\nabout = 'y'\nkind = 'bar'", "table x: kind: expected one of .* got 'bar'"),
        ("[[table]]\nname = 'x'\nabout = 'y'\npooling = 3", "table x: pooling: expected a name or a list"),
    ],
)
def test_wrong_list_of_tables(text, message, tmp_path, store):
    folder = tmp_path / "mil"
    folder.mkdir()
    shutil.copy(store, folder / "runs.csv")
    (folder / "tables.toml").write_text(text)
    with pytest.raises(ValueError, match=message):
        manifest.read(folder)


def test_runs_to_compare_are_those_that_are_ranked_or_others(tmp_path, store):
    folder = tmp_path / "mil"
    folder.mkdir()
    shutil.copy(store, folder / "runs.csv")
    ranking = "ranking = {dataset = 'musk1'}\n"
    (folder / "tables.toml").write_text(ranking)
    ranked = manifest.read(folder)
    assert ranked.compared_samples() == ranked.ranked_samples()
    (folder / "tables.toml").write_text(f"{ranking}compared = {{dataset = 'musk1', pooling = 'mean'}}\n")
    compared = manifest.read(folder)
    assert compared.ranked_samples() == ranked.ranked_samples()
    assert list(compared.compared_samples()) == [("mean", "musk1")]


def test_a_table_that_cannot_be_made_says_why(tmp_path, store):
    folder = tmp_path / "mil"
    folder.mkdir()
    shutil.copy(store, folder / "runs.csv")
    (folder / "tables.toml").write_text(
        "ranking = {dataset = 'tiger'}\n[[table]]\nname = 'a'\nabout = 'A'\ndataset = 'tiger'\n"
        "[[table]]\nname = 'b'\nabout = 'B'\npooling = 'middle'\n"
    )
    report = collect([folder])
    assert len(missing(report)) == 2
    page = render(report)
    assert "No table: store: no such run" in page
    assert "got &#39;middle&#39;" in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["report", "nowhere.sqlite"], "got nowhere.sqlite, which does not exist"),
        (["report", "EMPTY"], "expected a folder with TASK/tables.toml"),
        (["report", "STORE", "--figures", "nowhere"], "--figures: expected a folder, got nowhere"),
        (["report", "STORE", "--output", "EMPTY"], "--output: expected a file, got the folder"),
        (["tables", "EMPTY"], "expected one named as a task"),
    ],
)
def test_wrong_arguments(words, message, tmp_path, store, capsys):
    (tmp_path / "empty").mkdir()
    places = {"EMPTY": str(tmp_path / "empty"), "STORE": str(store)}
    with pytest.raises(SystemExit) as stop:
        main([places.get(word, word) for word in words])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_a_store_without_runs_of_present_code_says_so(tmp_path):
    path = tmp_path / "a#b?c 100%25.sqlite"  # what would mean something in an address
    with closing(Store(path)) as store:
        for found in runs():
            store.save(found.spec, "old", Result(found.metrics), FACTS)
    with pytest.raises(
        ValueError, match=r"runs, by the present code \(--stored takes others too\), got none in "
    ):
        collect([path])
    assert "35 runs" in render(collect([path], stored=True))
    with closing(Store(path)) as store:
        spec = runs()[0].spec
        store.save(spec, fingerprint("mil", spec.pooling), Result({"accuracy": 0.5}), FACTS)
    assert "1 run, 1 pooling, 1 data set, 1 seed." in render(collect([path]))


def test_a_pooling_that_is_gone_is_of_other_code():
    gone = row("no-such-pooling", "musk1", {"accuracy": 0.5})
    assert select([gone], "mil") == ([], ["1 runs of other versions of the code are left out"])


def test_one_task_in_two_sources_is_refused(store, tmp_path):
    shutil.copy(store, tmp_path / "again.csv")
    with pytest.raises(ValueError, match="expected each task in one source, got mil, mil"):
        collect([store, tmp_path / "again.csv"])


def test_figures_of_the_committed_runs_are_not_shown_beside_others(store, tmp_path, monkeypatch):
    monkeypatch.chdir(RESULTS.parent)
    with pytest.raises(SystemExit) as stop:
        main(["report", str(store), "--output", str(tmp_path / "own.html")])
    assert stop.value.code == 0
    page = (tmp_path / "own.html").read_text()
    assert "data:image/png" not in page
    assert "uotpool figure" not in page


@pytest.mark.parametrize(
    ("keys", "count"),
    [
        ({"kind": "comparison"}, 2),
        ({"kind": "comparison", "pooling": ["uotp-sinkhorn", "mean"]}, 1),
        ({"kind": "comparison", "pooling": "exact"}, 0),  # no other UOT pooling was run
        ({"kind": "comparison", "pooling": "mean"}, 0),
        ({}, 0),
    ],
)
def test_tests_are_counted_as_the_table_has_them(keys, count, store):
    spec = TableSpec.from_toml("mil", {"dataset": "musk1", **keys})
    assert verdicts_of_uotp(spec, make(spec, Source.read(store))).total() == count


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("accuracy", "nan", "accuracy: expected a finite number, got "),
        ("accuracy", "high", "accuracy: expected a finite number, got 'high'"),
        ("machine", "x" * 200_000, "field larger than"),
    ],
)
def test_a_broken_file_of_runs_is_refused_with_its_line(column, value, message, store):
    with store.open(newline="") as file:
        lines = list(csv.DictReader(file))
    lines[3][column] = value
    with store.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    with pytest.raises(ValueError, match=rf"line \d+: not a run: .*{re.escape(message)}"):
        export.read(store)


# ---------------------------------------------------------------------------------------------------------
# one rule: what the page of results says is what the commands beside it print


RESULTS_PAGE = RESULTS.parent / "docs" / "results.md"


def table_of_the_page() -> tuple[list[str], dict[str, dict[str, str]]]:
    """The table of accuracies: its data sets, and {pooling: {column: cell}}."""
    text = RESULTS_PAGE.read_text()
    lines = text[text.index("| pooling | mean rank of ") :].split("\n\n")[0].splitlines()
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return head[4:], {row[0]: dict(zip(head, row, strict=True)) for row in rows}


def test_numbers_of_the_page_are_those_of_its_commands(monkeypatch, capsys):
    monkeypatch.chdir(RESULTS.parent)
    text = RESULTS_PAGE.read_text()
    commands = re.findall(r"`(uotpool table [^`]+ --store [^`]+)`", text)
    assert len(commands) == 2
    printed: dict[str, dict[str, str]] = {}
    for command in commands:
        with pytest.raises(SystemExit):
            main([*shlex.split(command)[1:], "--format", "csv"])
        for line in csv.DictReader(capsys.readouterr().out.splitlines()):
            name = next(iter(line.values()))
            printed.setdefault(name, {}).update(line)
    datasets, table = table_of_the_page()
    assert {"tiger", "MUTAG"} <= set(datasets)
    for pooling, cells in table.items():
        for dataset in datasets:
            mean = float(printed[pooling][dataset].split()[0])
            assert abs(float(cells[dataset]) - mean) <= 0.055, (pooling, dataset)  # of two digits, of one


def test_counts_of_tests_on_the_page_are_those_of_the_report(committed):
    words = " ".join(RESULTS_PAGE.read_text().split())
    (line,) = [line for line in committed.first if line.startswith("Sets: ") and " tests of a UOTP " in line]
    total, won, lost = re.search(r"(\d+) tests .*; (\d+) are won and (\d+) lost", line).groups()
    assert re.search(rf"\b{total} tests\b[^.]*\b{won}\b[^.]*\bwon\b[^.]*\b{lost}\b[^.]*\blost\b", words)
    shown = [shown for shown in committed.sections[0].tables if shown.entry.name.startswith("against_")]
    alike = [verdicts_of_uotp(one.entry.spec, one.table) for one in shown]
    assert f" {sum(counts.total() for counts in alike)} tests " in words
    assert sum(counts["win"] + counts["loss"] for counts in alike) == 0


def test_more_seeds_of_one_pooling_change_no_cell():
    """A cell was once the mean of whatever runs a pooling had: 81.5 beside 79.5 in README."""
    alike = {("mean", "x", "fair"): [0.5, 0.6, 0.7, 0.8, 0.9], ("max", "x", "fair"): [0.9, 0.8, 0.7, 0.6, 0.5]}
    more = alike | {("max", "x", "fair"): [*alike["max", "x", "fair"], *[0.1] * 5]}
    few, many = (results_table(table_of_runs(values), "fair") for values in (alike, more))
    assert few.texts() == many.texts()
    assert any("5 runs that not all poolings have are left out (--runs own" in note for note in many.notes)
    own = results_table(table_of_runs(more), "fair", own_runs=True)
    assert own.texts()[1][1].startswith("40.00")
    assert own.texts()[0][1].endswith(" [5]")


def test_without_a_common_run_a_cell_is_empty_and_the_note_says_how_to_see_it():
    rows = [row("mean", "x", {"accuracy": 0.5}), row("max", "x", {"accuracy": 0.6}, fold=1)]
    table = results_table(rows, "fair")
    assert [line[1] for line in table.texts()[:2]] == ["", ""]
    assert any("2 runs that not all poolings have are left out" in note for note in table.notes)
    assert "--runs own" in render_table(table, "terminal")
