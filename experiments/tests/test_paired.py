"""Paired differences: known numbers give known leads, verdicts and power, in the table too."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from uotpool_experiments.analysis.paired import paired
from uotpool_experiments.analysis.samples import Sample
from uotpool_experiments.analysis.tests import OVERLAP, compare, overlap_of
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.tables import formats
from uotpool_experiments.tables.kinds import KINDS, load
from uotpool_experiments.tables.paired import EVERY, LOST, P_VALUE, SEEN, WON, paired_table
from uotpool_experiments.tables.spec import TableSpec
from uotpool_experiments.tables.table import PValue
from uotpool_experiments.tasks import TASKS
from uotpool_experiments.tasks.spec import RunSpec


def sample(*values):
    return Sample({(seed, 0): value for seed, value in enumerate(values)})


SCORES = {
    ("uotp", "a"): sample(0.95, 0.95, 0.96, 0.97, 0.97),
    ("mean", "a"): sample(0.90, 0.91, 0.92, 0.90, 0.92),
    ("uotp", "b"): sample(0.70, 0.70, 0.70, 0.70, 0.70),
    ("mean", "b"): sample(0.60, 0.80, 0.60, 0.80, 0.70),
    ("uotp", "c"): sample(0.50, 0.50, 0.50, 0.50, 0.50),
    ("mean", "c"): sample(0.60, 0.60, 0.60, 0.60, 0.60),
    ("max", "a"): sample(0.50),
}


def test_known_leads():
    found = paired(SCORES, "uotp", "mean")
    assert {d: round(one.points.value, 6) for d, one in found.each.items()} == {"a": 5.0, "b": 0.0, "c": -10.0}
    assert {d: one.verdict for d, one in found.each.items()} == {"a": 1, "b": 0, "c": -1}
    assert (found.count(1), found.count(0), found.count(-1)) == (1, 1, 1)
    assert found.every.points.value == pytest.approx(-5 / 3)
    assert found.every.verdict == 0
    test = stats.ttest_1samp([5.0, 0.0, -10.0], 0.0).confidence_interval()
    assert (found.every.points.low, found.every.points.high) == pytest.approx((test.low, test.high))
    assert found.every.p_value == pytest.approx(stats.ttest_1samp([5.0, 0.0, -10.0], 0.0).pvalue)
    assert found.each["a"].p_value < 0.01
    assert (found.each["b"].p_value, found.each["c"].p_value) == (1.0, 2 * 0.5**5)
    turned = paired(SCORES, "mean", "uotp")
    assert turned.each["a"].points.value == pytest.approx(-5.0)
    assert turned.each["a"].verdict == -1


def test_only_common_seeds_count():
    found = paired(SCORES, "uotp", "max")
    assert list(found.each) == ["a"]
    assert found.every.points.value == pytest.approx(45.0)
    # A single run says nothing of chance.
    assert (found.every.verdict, found.every.smallest, found.every.p_value) == (0, math.inf, None)
    with pytest.raises(ValueError, match="pooling: expected two with runs in common, got 'max' and 'gem'"):
        paired(SCORES, "max", "gem")


def test_the_smallest_difference_is_the_one_that_such_runs_show():
    """2.8 standard errors; of studies with such a true difference, about four of five show it."""
    random = np.random.RandomState(0)
    noise = random.normal(0, 0.05, 400)
    found = paired(
        {("uotp", "a"): sample(*(noise + 0.5)), ("mean", "a"): sample(*np.full(400, 0.5))}, "uotp", "mean", 0.0
    )
    assert found.each["a"].smallest == pytest.approx(2.8 * 5 / 20, rel=0.1)
    shown = 0
    for _ in range(60):
        scores = 0.5 + found.each["a"].smallest / 100 + random.normal(0, 0.05, 400)
        pair = {("uotp", "a"): sample(*scores), ("mean", "a"): sample(*np.full(400, 0.5))}
        shown += paired(pair, "uotp", "mean", 0.0).each["a"].verdict == 1
    assert 0.65 <= shown / 60 <= 0.95


def test_leads_without_spread():
    """Of few runs that all differ by the same nothing is certain, and rounding is no spread."""
    same = {("uotp", "a"): sample(0.5, 0.5, 0.5), ("mean", "a"): sample(0.5, 0.5, 0.5)}
    assert paired(same, "uotp", "mean").each["a"].p_value == 1.0
    ahead = {("uotp", "a"): sample(0.85, 0.75, 0.45), ("mean", "a"): sample(0.6, 0.5, 0.2)}
    assert paired(ahead, "uotp", "mean").each["a"].p_value == 0.25


def test_p_values_in_words():
    assert [str(PValue(p)) for p in (0.05035, 1.0, 0.0004, 0.0)] == ["0.050", "1.000", "< 0.001", "< 0.001"]


def rows():
    specs = [
        (RunSpec("regimes", f"digits-{dataset}", pooling, "fair", 0, seed), value)
        for (pooling, dataset), found in SCORES.items()
        for (seed, _), value in found.values.items()
    ]
    return [
        Row(s, "code", "done", 1, None, 1.0, 1.0, 1, {"score": value, "loss": 1.0}, {}) for s, value in specs
    ]


def test_the_table():
    spec = TableSpec("regimes", "paired", metric="score")
    table = load("paired").table(spec, load("paired").choose(spec, rows()))
    assert "paired" in KINDS
    assert table.headings == ["data set", "mean", "max"]
    lines = {str(line.cells[0]): line for line in table.lines}
    assert [name for name, line in lines.items() if not line.stays_last] == ["digits-a", "digits-b", "digits-c"]
    assert str(lines["digits-b"].cells[2]) == ""
    assert [str(lines[name].cells[1]) for name in (WON, LOST)] == ["1", "1"]
    assert str(lines[EVERY].cells[1]).startswith("-1.7 [")
    assert float(str(lines[SEEN].cells[1])) > 0
    single = paired(SCORES, "uotp", "mean").every.p_value
    text = formats.render(table, "markdown")
    assert [str(cell) for cell in lines[P_VALUE].cells[1:]] == [f"{single:.3f}", ""]  # a single run is no test
    assert "corrected for all 1 of their line" in text
    assert "▲" in formats.with_mark(lines["digits-a"].cells[1])
    assert "▼" in formats.with_mark(lines["digits-c"].cells[1])
    assert "of the 4 would by chance" in text
    assert "All data sets: max on 1 of the 3" in text
    alone = paired_table(rows(), "uotp", ["mean"], "fair", "score")
    assert not any(note.startswith("all data sets") for note in alone.notes)


def test_the_first_pooling_is_compared_with_those_named_in_their_order():
    spec = TableSpec("regimes", "paired", metric="score", poolings=("mean", "max", "uotp"))
    table = load("paired").table(spec, load("paired").choose(spec, rows()))
    assert table.headings == ["data set", "max", "uotp"]
    assert table.title.startswith("mean less each other pooling")


def test_refusals():
    with pytest.raises(
        ValueError, match="metric: expected one in per cent of which more is better, got 'loss'"
    ):
        paired_table(rows(), "uotp", ["mean"], "fair", "loss")
    for first, others in (("gem", ["mean"]), ("uotp", [])):
        with pytest.raises(ValueError, match="pooling: expected one with runs under 'fair' and others"):
            paired_table(rows(), first, others, "fair", "score")


def test_intervals_are_as_wide_as_they_say():
    """Of pairs without a difference, one in twenty is called different, also with five runs."""
    random = np.random.RandomState(1)
    for runs in (5, 10):
        wrong = 0
        for _ in range(400):
            pair = {
                ("uotp", "a"): sample(*random.normal(0.5, 0.05, runs)),
                ("mean", "a"): sample(*[0.5] * runs),
            }
            wrong += paired(pair, "uotp", "mean", 0.0).each["a"].verdict != 0
        assert 0.02 < wrong / 400 < 0.09


def test_data_in_common_widen_the_interval():
    """By as much as the tables of comparisons say: the interval leaves out 0 where their test does."""
    ours, theirs = sample(0.61, 0.58, 0.63, 0.60, 0.62), sample(*[0.5] * 5)
    found = {("uotp", "a"): ours, ("mean", "a"): theirs}
    wide, narrow = (paired(found, "uotp", "mean", overlap).each["a"] for overlap in (OVERLAP, 0.0))
    widths = [one.points.high - one.points.low for one in (wide, narrow)]
    assert widths[0] / widths[1] == pytest.approx((1 + 5 / 4) ** 0.5)
    for one, overlap in ((wide, OVERLAP), (narrow, 0.0)):
        assert one.p_value == pytest.approx(compare(ours, theirs, overlap=overlap).p_value)


def test_only_data_that_are_drawn_again_have_nothing_in_common():
    assert [task for task in TASKS if overlap_of(task) == 0] == ["regimes", "bags"]
    assert overlap_of("graph") == overlap_of("mil") == OVERLAP == 1 / 4
