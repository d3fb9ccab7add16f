"""Tables from stored runs, in four formats, beside the paper's numbers."""

from __future__ import annotations

import csv
import dataclasses
import io
import re

import pytest
from uotpool_experiments.analysis import published_results
from uotpool_experiments.analysis.selection import MixedCodeError, select
from uotpool_experiments.runs import export
from uotpool_experiments.tables import FORMATS
from uotpool_experiments.tables.comparison import comparison_table
from uotpool_experiments.tables.cost import cost_table
from uotpool_experiments.tables.formats import render
from uotpool_experiments.tables.optimism import optimism_table
from uotpool_experiments.tables.results import results_table
from uotpool_experiments.tables.settings import settings_table
from uotpool_experiments.tables.swap import swap_table
from uotpool_experiments.tables.table import Mark, Table
from uotpool_experiments.tasks.fingerprint import fingerprint
from uotpool_experiments.tasks.spec import Result, canonical

from experiments.tests.helpers import FACTS, mil_spec, row, table_of_runs
from experiments.tests.text_table import text_table

RUNS = {
    ("mean", "component", "paper"): [0.90, 0.92, 0.94, 0.93, 0.91],
    ("max", "component", "paper"): [0.91, 0.93, 0.95, 0.94, 0.92],
    ("uotp-sinkhorn", "component", "paper"): [0.90, 0.93, 0.95, 0.94, 0.92],
    ("mean", "component", "fair"): [0.88, 0.90, 0.92, 0.91, 0.89],
    ("max", "component", "fair"): [0.91, 0.93, 0.95, 0.94, 0.92],
    ("uotp-sinkhorn", "component", "fair"): [0.87, 0.87, 0.90, 0.89, 0.87],
    ("mean", "musk1", "fair"): [0.80, 0.80, 0.82, 0.78, 0.80, 0.80],
    ("max", "musk1", "fair"): [0.80, 0.80, 0.82, 0.78, 0.80, 0.80],
    ("uotp-sinkhorn", "musk1", "fair"): [0.90, 0.92, 0.91, 0.89, 0.90, 0.92],
}


@pytest.fixture
def rows():
    return table_of_runs(RUNS)


def cells(table: Table) -> dict[tuple[str, str], str]:
    head = table.headings
    return {(line[0], name): cell for line in table.texts() for name, cell in zip(head, line, strict=True)}


def bold(table: Table) -> set[tuple[str, str]]:
    return {(table.texts()[r][0], table.headings[c]) for r, c in table.best}


def marks(table: Table) -> dict[tuple[int, int], Mark]:
    cells = {(r, c): cell for r, line in enumerate(table.lines) for c, cell in enumerate(line.cells)}
    return {place: cell.mark for place, cell in cells.items() if cell.mark}


# ---------------------------------------------------------------------------------------------------------
# contents


def test_results_under_fair(rows):
    table = results_table(rows, "fair")
    assert table.headings == ["pooling", "component", "musk1", "mean rank"]
    assert [line[0] for line in table.texts()] == ["mean", "max", "uotp-sinkhorn", "(majority class)"]
    found = cells(table)
    assert found["mean", "component"] == "90.00 ± 1.58"
    assert found["uotp-sinkhorn", "component"] == "88.00 ± 1.41"
    assert found["uotp-sinkhorn", "mean rank"] == "2.0"
    assert found["max", "mean rank"] == "1.8"  # 1 and 2.5
    assert found["(majority class)", "musk1"] == "50.00 ± 0.00"
    assert bold(table) == {("max", "component"), ("uotp-sinkhorn", "musk1")}
    assert "5 (1 seed), 6 (2 seeds)" in table.notes[0]
    assert not any("optimistic" in note for note in table.notes)


OPTIMISTIC_HEAD = "pooling (paper protocol, optimistic)"


def test_ties_are_all_best(rows):
    table = results_table([r for r in rows if r.spec.pooling != "uotp-sinkhorn"], "fair")
    assert bold(table) == {("max", "component"), ("mean", "musk1"), ("max", "musk1")}


def test_published_numbers_beside_ours_under_paper(rows):
    table = results_table(rows, "paper")
    names = ["component", "component, published", "component, difference"]
    assert table.headings == [OPTIMISTIC_HEAD, *names, "mean rank"]
    found = cells(table)
    assert found["mean", "component"] == "92.00 ± 1.58"
    assert found["mean", "component, published"] == "93.32 ± 0.99"
    assert found["max", "component, published"] == "93.23 ± 0.76"
    assert found["uotp-sinkhorn", "component, published"] == ""  # theirs is uotp-sinkhorn-paper
    assert found["(majority class)", "component, published"] == ""
    assert found["mean", "component, difference"] == "-1.32"
    assert found["uotp-sinkhorn", "component, difference"] == ""
    assert not marks(table)  # it is within two standard deviations
    assert bold(table) == {("max", "component")}
    assert any("optimistic" in note for note in table.notes)


def test_a_difference_beyond_chance_is_marked(rows):
    far = [dataclasses.replace(row, metrics={"accuracy": row.metrics["accuracy"] - 0.1}) for row in rows]
    table = results_table(far, "paper")
    assert marks(table) == {(0, 3): Mark.BELOW, (1, 3): Mark.BELOW}
    assert "-11.32 ▼" in render(table, "markdown")
    assert "-11.32 ▼" in render(table, "terminal")
    assert "-11.32 $\\blacktriangledown$" in render(table, "latex")
    assert ",-11.32," in render(table, "csv")
    single = [row for row in far if row.spec.fold == 0]
    assert marks(results_table(single, "paper")) == marks(table)


def test_a_missing_cell_is_empty(rows):
    kept = [r for r in rows if (r.spec.pooling, r.spec.dataset) != ("mean", "musk1")]
    found = cells(results_table(kept, "fair"))
    assert found["mean", "musk1"] == ""
    assert found["mean", "mean rank"] == "2.0"  # over component alone


def test_less_loss_is_better(rows):
    table = results_table(rows, "fair", "loss")
    assert bold(table) == {("max", "component"), ("uotp-sinkhorn", "musk1")}
    assert cells(table)["max", "mean rank"] == "1.8"


def test_a_lower_loss_is_a_win(rows):
    table = comparison_table([r for r in rows if r.spec.dataset == "musk1"], "uotp-sinkhorn", "fair", "loss")
    assert [cells(table)["mean", name] for name in ("wins", "ties", "losses")] == ["1", "0", "0"]


def test_optimism(rows):
    table = optimism_table(rows)
    assert table.headings == ["pooling", "component"]
    assert [(line[0], line[1]) for line in table.texts()] == [
        ("mean", "+2.00"),
        ("max", "+0.00"),
        ("uotp-sinkhorn", "+4.80"),
    ]


def test_optimism_is_of_the_same_folds():
    """One seed of the paper's protocol and two of the fair one: the second seed has nothing to say."""
    rows = table_of_runs(
        {("mean", "component", "paper"): [0.9] * 5, ("mean", "component", "fair"): [0.8] * 5 + [0.5] * 5}
    )
    assert optimism_table(rows).texts() == [["mean", "+10.00"]]


def test_comparison(rows):
    table = comparison_table(rows, "uotp-sinkhorn")
    assert table.headings == ["against", "component", "musk1", "wins", "ties", "losses"]
    assert [line[0] for line in table.texts()] == ["mean", "max"]
    found = cells(table)
    assert re.fullmatch(r"-2\.00 \(0\.0\d\)", found["mean", "component"])
    assert re.fullmatch(r"\+10\.67 \(0\.0\d\)", found["mean", "musk1"])
    for other in ("mean", "max"):
        assert [found[other, name] for name in ("wins", "ties", "losses")] == ["1", "0", "1"]
    assert "Nadeau and Bengio" in table.notes[0]


def test_what_is_optimistic_is_called_so_in_every_kind_of_table(rows):
    table = comparison_table(rows, "uotp-sinkhorn", "paper")
    assert any("optimistic" in note for note in table.notes)


# ---------------------------------------------------------------------------------------------------------
# formats

SPECIAL = text_table(
    "a_title 100 %",
    ["pooling", "a_b", "c & d", "e#f"],
    [["x_1", "50 %", "1 ± 2", "a|b"], ["$y$", "{z}", "~^", "back\\slash"]],
    ["a note", "5 more"],
    {(0, 1)},
)


@pytest.mark.parametrize("name", ["fair", "paper"])
def test_csv_is_read_back(rows, name):
    table = results_table(rows, name)
    assert list(csv.reader(io.StringIO(render(table, "csv")))) == [table.headings, *table.texts()]
    assert list(csv.reader(io.StringIO(render(SPECIAL, "csv")))) == [SPECIAL.headings, *SPECIAL.texts()]


def test_a_csv_of_the_papers_protocol_is_called_optimistic(rows):
    """A CSV file is committed by itself, without the notes below a table."""
    assert "optimistic" in render(results_table(rows, "paper"), "csv")


def markdown_cells(line: str) -> list[str]:
    assert line.startswith("| ")
    assert line.endswith(" |")
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


@pytest.mark.parametrize("which", ["fair", "paper", "special"])
def test_markdown(rows, which):
    table = SPECIAL if which == "special" else results_table(rows, which)
    lines = render(table, "markdown").splitlines()
    assert lines[0] == f"**{table.title}**"
    body = [line for line in lines if line.startswith("|")]
    assert re.fullmatch(r"\|(-+:?\||:?-+:?\|)+", body[1])
    assert body[1].count("|") == len(table.headings) + 1
    assert markdown_cells(body[0]) == table.headings
    for r, line in enumerate(body[2:]):
        expected = [f"**{x}**" if (r, c) in table.best else x for c, x in enumerate(table.texts()[r])]
        assert markdown_cells(line) == expected
    assert len(body) == 2 + len(table.texts())
    after = "\n".join(lines[lines.index(body[-1]) + 1 :])
    for note in table.notes:
        assert note[1:] in after


def latex_cells(line: str) -> list[str]:
    assert line.endswith(" \\\\")
    return [cell.strip() for cell in re.split(r"(?<!\\)&", line.removesuffix(" \\\\"))]


@pytest.mark.parametrize("which", ["fair", "paper", "special"])
def test_latex(rows, which):
    table = SPECIAL if which == "special" else results_table(rows, which)
    lines = render(table, "latex").splitlines()
    kept = [line for line in lines if not line.startswith("%")]
    assert kept[0] == f"\\begin{{tabular}}{{l{'r' * (len(table.headings) - 1)}}}"
    assert kept[-1] == "\\end{tabular}"
    assert [line for line in kept if line.endswith("rule")] == ["\\toprule", "\\midrule", "\\bottomrule"]
    content = [line for line in kept[1:-1] if not line.endswith("rule")]
    assert len(content) == 1 + len(table.texts())
    for line in content:
        assert len(latex_cells(line)) == len(table.headings)
        bare = re.sub(
            r"\\[_%&#${}]|\\textbackslash(\{\})? ?|\\text\w+\{\}|\$\\(pm|sim)\$|\\\\$|\\textbf", "", line
        )
        assert not re.search(r"[_%#$~^\\]", bare.replace("&", "")), bare
        assert bare.count("{") == bare.count("}")
    for r, line in enumerate(content[1:]):
        bold = {(r, c) for c, cell in enumerate(latex_cells(line)) if cell.startswith("\\textbf{")}
        assert bold == {(i, c) for i, c in table.best if i == r}
    assert "±" not in "\n".join(kept)


def test_terminal(rows):
    text = render(results_table(rows, "paper"), "terminal")
    assert "accuracy, protocol paper" in text
    assert "92.00 ± 1.58" in text
    assert "93.32 ± 0.99" in text
    assert "optimistic" in text
    assert "mean rank" in text


def test_terminal_marks_the_best(rows):
    text = render(results_table(rows, "fair"), "terminal")
    best, other = (re.search(rf"(\S*){number} ± 1\.58(\S*)", text) for number in ("93.00", "90.00"))
    assert best is not None
    assert other is not None
    assert best.groups() != other.groups()  # a sign or an escape sequence beside it


def test_terminal_takes_brackets_as_they_are():
    text = render(text_table("t [1]", ["pooling", "[/x]"], [["mean [bold]", "[red]5"]]), "terminal")
    for part in ("[/x]", "mean [bold]", "[red]5"):
        assert part in text


def test_unknown_format(rows):
    with pytest.raises(ValueError, match=r"format: expected one of .*got 'html'"):
        render(results_table(rows, "fair"), "html")


def test_a_table_of_nothing():
    with pytest.raises(ValueError, match="got 'fair', with no run"):
        results_table([], "fair")


# ---------------------------------------------------------------------------------------------------------
# which runs


def save(store, code, accuracy=0.5, **choices):
    store.save(mil_spec({}, **choices), code, Result({"accuracy": accuracy, "majority": 0.5}), FACTS)


def test_only_runs_of_the_present_code_are_shown(store):
    now = fingerprint("mil", "mean")
    save(store, now, fold=0)
    save(store, "old", fold=0)
    save(store, "old", fold=1)
    save(store, now, pooling="max")  # the code of another pooling
    rows, notes = select(store.rows(), "mil")
    assert [(row.spec.fold, row.fingerprint) for row in rows] == [(0, now)]
    assert notes == ["3 runs of other versions of the code are left out"]


def test_stored_runs_of_one_earlier_version_can_be_shown(store):
    for fold in range(3):
        save(store, "old", fold=fold)
        save(store, "old of max", fold=fold, pooling="max")
    assert select(store.rows(), "mil")[0] == []
    rows, notes = select(store.rows(), "mil", stored=True)
    assert len(rows) == 6
    assert notes == ["stored runs: all by the code of commit abc"]


def test_stored_runs_of_several_commits_may_be_of_several_codes(store):
    save(store, "old")
    save(store, "old of max", pooling="max")
    first, second = store.rows()
    other = dataclasses.replace(second, facts={"commit_id": "ba9876543210"})
    unknown, changed = (dataclasses.replace(second, facts={"commit_id": c}) for c in ("", "abc+dirty"))
    for rows in ([first, other], [first, unknown], [unknown], [changed]):
        assert "perhaps not the same one for all" in select(rows, "mil", stored=True)[1][0]


def test_no_table_mixes_versions(store):
    save(store, "old", fold=0)
    save(store, fingerprint("mil", "mean"), fold=1)
    with pytest.raises(MixedCodeError, match="'mean' by 2 versions of the code"):
        select(store.rows(), "mil", stored=True)
    assert len(select(store.rows(), "mil")[0]) == 1


def test_runs_are_chosen_by_their_settings(store):
    save(store, fingerprint("mil", "mean"))
    store.save(mil_spec({"epochs": 2}), fingerprint("mil", "mean"), Result({"accuracy": 1.0}), FACTS)
    assert [r.spec.settings for r in select(store.rows(), "mil")[0]] == ["{}"]
    assert [r.spec.settings for r in select(store.rows(), "mil", settings='{"epochs":2}')[0]] == [
        '{"epochs":2}'
    ]


def test_failed_runs_are_not_shown(store):
    store.save_failure(mil_spec({}), fingerprint("mil", "mean"), "broken", FACTS)
    assert select(store.rows(), "mil") == ([], [])


# ---------------------------------------------------------------------------------------------------------
# the paper


def test_table_1_of_the_paper():
    for pooling, dataset, mean, std in [
        ("add", "messidor", 74.33, 2.56),
        ("add", "IMDB-MULTI", 47.56, 0.56),
        ("mean", "component", 93.32, 0.99),
        ("max", "process", 96.71, 0.40),
        ("deepset", "process", 97.64, 0.18),
        ("deepset", "PROTEINS", 73.76, 0.47),
        ("mixed", "component", 93.45, 0.61),
        ("gated-mixed", "REDDIT-MULTI-5K", 44.78, 4.53),
        ("set2set", "messidor", 73.58, 3.74),
        ("attention", "messidor", 74.25, 3.67),
        ("gated-attention", "function", 96.51, 0.77),
        ("dynamic", "REDDIT-BINARY", 67.51, 1.82),
        ("gnp", "process", 96.03, 0.67),
        ("asap", "NCI1", 68.09, 0.42),
        ("sagp", "MUTAG", 87.88, 2.22),
        ("uotp-sinkhorn-paper", "messidor", 75.42, 2.96),
        ("uotp-sinkhorn-paper", "function", 96.62, 0.48),
        ("uotp-badmm-e-paper", "IMDB-MULTI", 50.48, 0.14),
        ("uotp-badmm-q-paper", "messidor", 75.08, 2.06),
        ("uotp-badmm-q-paper", "REDDIT-BINARY", 87.72, 1.03),
    ]:
        assert published_results.TABLE_1[pooling, dataset] == (mean, std)
    assert len(published_results.TABLE_1) == 14 * 12 + 2 * 8
    assert ("asap", "messidor") not in published_results.TABLE_1
    assert len(published_results.POOLINGS) == 16
    assert published_results.POOLINGS[0] == "add"
    assert published_results.POOLINGS[-3:] == (
        "uotp-sinkhorn-paper",
        "uotp-badmm-e-paper",
        "uotp-badmm-q-paper",
    )


def test_names_of_the_paper_are_ours():
    from uotpool_experiments.datasets import CATALOG

    from uotpool.zoo import ENTRIES

    assert {pooling for pooling, _ in published_results.TABLE_1} <= set(ENTRIES)
    assert {dataset for _, dataset in published_results.TABLE_1} <= set(CATALOG)


def test_row_of_another_data_set_has_nothing_beside():
    table = results_table([row("mean", "musk1", {"accuracy": 0.5, "majority": 0.5}, protocol="paper")], "paper")
    assert table.headings == [OPTIMISTIC_HEAD, "musk1", "mean rank"]


def test_settings_of_a_pooling_side_by_side(store):
    for settings, accuracy, divergence in (({}, 0.5, 0.0), ({"pool": {"K": 8}, "pool_lr": 10.0}, 0.75, 0.25)):
        for fold in range(2):
            spec = mil_spec(settings, pooling="uotp-sinkhorn", fold=fold)
            metrics = {"accuracy": accuracy, "loss": 1 - accuracy, "majority": 0.5}
            code = fingerprint("mil", "uotp-sinkhorn")
            store.save(spec, code, Result(metrics, details={"divergence": divergence}), FACTS)
    rows, _ = select(store.rows(), "mil", settings=None)
    table = settings_table(rows)
    assert table.headings == ["pooling", "settings", "digits", "better, same, worse"]
    assert table.texts() == [
        ["uotp-sinkhorn", "default", "50.00 ± 0.00", ""],
        ["uotp-sinkhorn", "pool.K=8, pool_lr=10", "75.00 ± 0.00", "0, 1, 0"],
    ]
    assert table.best == {(1, 2)}
    assert [cells[2] for cells in settings_table(rows, metric="divergence").texts()] == [
        "0.000 ± 0.000",
        "0.250 ± 0.000",
    ]
    # a run more of one of them changes nothing: only common folds and seeds count
    more = Result({"accuracy": 0.0, "loss": 1.0, "majority": 0.5})
    store.save(mil_spec({}, pooling="uotp-sinkhorn", fold=4), fingerprint("mil", "uotp-sinkhorn"), more, FACTS)
    assert settings_table(select(store.rows(), "mil", settings=None)[0]).texts() == table.texts()
    assert settings_table(rows, metric="loss").best == {(1, 2)}
    for form in FORMATS:
        assert "pool" in render(table, form)
    with pytest.raises(ValueError, match="under 'paper', got no such run"):
        settings_table(rows, "paper")


def variant(settings, accuracies, pooling="uotp-sinkhorn"):
    """Make one run per accuracy, in the folds of seed 0, 1, ..."""
    found = table_of_runs({(pooling, "musk2", "fair"): accuracies})
    return [
        dataclasses.replace(r, spec=dataclasses.replace(r.spec, settings=canonical(settings))) for r in found
    ]


def test_settings_that_vary_and_settings_that_are_fixed():
    rows = [
        *variant({}, [0.5] * 5),
        *variant({"pool": {"K": 8}}, [0.6] * 5),
        *variant({"pool_lr": 10.0}, [0.7] * 2),
        *variant({"lr": 0.1}, [0.8] * 5),
        *variant({"lr": 0.1, "pool": {"K": 8}}, [0.9] * 5),
        *variant({"lr": 0.1, "pool": {"K": 8, "p0": "learned"}}, [0.9] * 5),
        *variant({}, [0.4] * 10, "mean"),
    ]

    def first_columns(**choices):
        return [line[:3] for line in settings_table(rows, **choices).texts()]

    assert first_columns(vary=["pool.K"]) == [
        ["mean", "default", "40.00 ± 0.00"],
        ["uotp-sinkhorn", "default", "50.00 ± 0.00"],
        ["uotp-sinkhorn", "pool.K=8", "60.00 ± 0.00"],
    ]
    table = settings_table(rows, vary=["pool.K"])
    assert "runs per cell: 5 on musk2" in table.notes[0]  # and not the 10 of mean
    assert "runs per cell: 2 on musk2" in settings_table(rows, vary=["pool_lr"]).notes[0]
    assert first_columns(vary=["pool.K"], fixed={"lr": 0.1}) == [
        ["uotp-sinkhorn", "default", "80.00 ± 0.00"],
        ["uotp-sinkhorn", "pool.K=8", "90.00 ± 0.00"],
    ]
    assert first_columns(fixed={"pool": {"K": 8}, "lr": 0.1})[1][1] == "pool.p0=learned"
    assert "all runs with lr=0.1" in settings_table(rows, fixed={"lr": 0.1}).notes


def test_settings_without_a_common_run_are_empty():
    other = [
        dataclasses.replace(r, spec=dataclasses.replace(r.spec, seed=7))
        for r in variant({"pool_lr": 2.0}, [0.6] * 2)
    ]
    rows = [*variant({}, [0.5] * 5), *other]
    assert [line[2] for line in settings_table(rows).texts()] == ["", ""]


# ---------------------------------------------------------------------------------------------------------
# unequal runs, many tests, what diverged, what it costs


def test_a_cell_of_fewer_runs_says_so(rows):
    kept = [r for r in rows if (r.spec.pooling, r.spec.dataset, r.spec.fold) != ("max", "component", 4)]
    table = results_table(kept, "fair", own_runs=True)
    found = cells(table)
    assert found["max", "component"].endswith(" [4]")
    assert "[" not in found["mean", "component"]
    assert "on the runs that all poolings have, over component, musk1" in table.notes[1]


def test_ranks_are_of_common_runs():
    """b is ahead on the fold that both have; its mean over all folds is not."""
    rows = table_of_runs({("a", "x", "fair"): [0.5], ("b", "x", "fair"): [0.6, 0.1, 0.1]})
    found = cells(results_table(rows, "fair"))
    assert (found["a", "mean rank"], found["b", "mean rank"]) == ("2.0", "1.0")


def test_what_is_left_with_all_tests_together(rows):
    table = comparison_table(rows, "uotp-sinkhorn")
    assert table.notes[1].startswith("of 4 tests fewer than one comes out at 5 % by chance")
    assert "wins" in table.notes[1]
    assert "losses" in table.notes[1]
    strong = table_of_runs(
        {
            ("a", "x", "fair"): [0.9, 0.91, 0.92, 0.9, 0.91] * 5,
            ("b", "x", "fair"): [0.5, 0.52, 0.51, 0.5, 0.5] * 5,
        }
    )
    assert "1 wins (b on x), 0 losses" in comparison_table(strong, "a").notes[1]
    assert "0 wins, 1 losses (a on x)" in comparison_table(strong, "b").notes[1]


def test_what_diverged_is_said(rows):
    assert not any("finite" in note for note in results_table(rows, "fair").notes)
    wrong = [
        dataclasses.replace(r, details={"diverged": 2, "epoch": 0 if r.spec.fold == 1 else 5})
        if r.spec.pooling == "max" and r.spec.fold < 2
        else r
        for r in rows
    ]
    notes = results_table(wrong, "fair").notes
    assert "a loss was not finite: max in 5 of 11 runs (2 of them without a finite epoch)" in notes


def test_cost():
    base = table_of_runs({("mean", "x", "fair"): [0.5] * 3, ("max", "x", "fair"): [0.5] * 3})
    seconds = {"mean": 2.0, "max": 3.0}
    rows = [dataclasses.replace(r, seconds=seconds[r.spec.pooling] + r.spec.fold, parameters=7) for r in base]
    table = cost_table(rows)
    assert table.texts() == [["mean", "3.0 (1.00 x)", "7"], ["max", "4.0 (1.33 x)", "7"]]
    with pytest.raises(ValueError, match="'paper', with no run"):
        cost_table(rows, "paper")


# ---------------------------------------------------------------------------------------------------------
# runs as CSV


def test_exported_runs_are_read_back(rows, tmp_path):
    details = {
        "divergence": 0.125,
        "configuration": {"lr": 0.0005},
        "weights": {"alpha0": [1.0, 2.0]},
        "validation_loss": None,
        "split": {"train": "abc"},
    }
    full = [dataclasses.replace(rows[0], details=details, cpu_seconds=0.5), *rows[1:]]
    path = tmp_path / "runs.csv"
    with path.open("w") as file:
        export.write(full, file)
    found = export.read(path)
    assert [r.spec for r in found] == [r.spec for r in full]
    assert [r.metrics for r in found] == [pytest.approx(r.metrics, rel=1e-6) for r in full]
    assert found[0].details == {name: details[name] for name in ("divergence", "configuration", "weights")}
    assert (found[0].cpu_seconds, found[1].cpu_seconds) == (0.5, None)
    assert found[0].fingerprint == "code"
    assert found[1].details == {}
    for kind in (results_table, comparison_table):
        choice = "fair" if kind is results_table else "uotp-sinkhorn"
        assert kind(found, choice) == kind(full, choice)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda text: text.replace("fingerprint", "finger", 1),
            r"expected the columns of uotpool export, each once, got none of the columns \['fingerprint'\]",
        ),
        (lambda text: text + "mil,x\n", "line 50: not a run: expected .* values, got 2"),
        (
            lambda text: text.replace("fair,0,0", "fair,first,0", 1),
            "line 17: not a run: fold: expected a whole number",
        ),
        (lambda text: "", "expected the columns of uotpool export"),
    ],
)
def test_another_csv_is_refused(rows, tmp_path, change, message):
    path = tmp_path / "runs.csv"
    text = io.StringIO()
    export.write(rows, text)
    path.write_text(change(text.getvalue()))
    with pytest.raises(ValueError, match=message):
        export.read(path)


# ---------------------------------------------------------------------------------------------------------
# swaps in trained networks


def swapped(pooling: str, seed: int, after: float, **details: float | list[float]):
    found = row(pooling, "digits", {"accuracy": after, "top5": 0.99}, seed=seed)
    return dataclasses.replace(found, details={"accuracy_before": 0.8} | details)


def test_swaps():
    rows = [
        swapped("mean", 0, 0.82),
        swapped("uotp-sinkhorn", 0, 0.81, accuracy_swapped=0.8, divergence=0.1, scale=0.5),
        swapped("uotp-sinkhorn", 1, 0.83, accuracy_swapped=0.79, divergence=0.3, scale=[1.0, 1.5, 4.0]),
    ]
    found = cells(swap_table(rows))
    assert found["mean", "swapped"] == ""
    assert found["mean", "difference"] == "+2.00"
    assert found["uotp-sinkhorn", "before"] == "80.00 ± 0.00"
    assert found["uotp-sinkhorn", "swapped"] == "79.50 ± 0.71"
    assert found["uotp-sinkhorn", "after"] == "82.00 ± 1.41"
    assert found["uotp-sinkhorn", "divergence, nats"] == "0.2000"
    assert found["uotp-sinkhorn", "scale"] == "1.0000"
    assert found["uotp-sinkhorn", "seeds"] == "2"
    other = [dataclasses.replace(r, spec=dataclasses.replace(r.spec, dataset="faces")) for r in rows]
    with pytest.raises(
        ValueError, match=r"dataset: expected one with runs of recipe 'two-stage', got \['digits'"
    ):
        swap_table(rows + other)
    with pytest.raises(ValueError, match="got none"):
        swap_table([dataclasses.replace(r, details={}) for r in rows])
