"""Verdicts on the paper's claims follow from intervals, and the command shows the committed runs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from uotpool_experiments.analysis.paired import Ahead
from uotpool_experiments.analysis.regret import Interval
from uotpool_experiments.analysis.selection import Source
from uotpool_experiments.runs.rows import Row
from uotpool_experiments.tables import claims
from uotpool_experiments.tables.claims import FAILS, HOLDS, NOT_RUN, OPEN, Finding, findings
from uotpool_experiments.tables.manifest import FOLDER, Manifest
from uotpool_experiments.tables.spec import TableSpec
from uotpool_experiments.tasks.spec import RunSpec, canonical

from uotpool.cli import main

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize(
    ("low", "high", "lead", "alike"),
    [
        (0.5, 1.5, HOLDS, HOLDS),
        (-1.5, -0.5, FAILS, HOLDS),
        (-1.0, 3.0, OPEN, OPEN),
        (2.5, 4.0, HOLDS, FAILS),
        (-math.inf, math.inf, OPEN, OPEN),
    ],
)
def test_verdicts(low, high, lead, alike):
    ahead = Ahead(Interval((low + high) / 2, low, high), 1.0, 0.5)
    assert Finding("", "", ("a",), ahead).verdict == lead
    assert Finding("", "", ("a",), ahead, of_no_difference=True).verdict == alike
    assert Finding("", "").verdict == NOT_RUN


def run(pooling, dataset, accuracy, seed, **settings):
    spec = RunSpec("graph", dataset, pooling, "paper", 0, seed, canonical(settings))
    return Row(spec, "code", "done", 1, None, 1.0, 1.0, 1, {"accuracy": accuracy}, {})


def manifest_of(rows, folder):
    source = Source(folder / "runs.csv", rows)
    return Manifest("graph", source, "", compared=TableSpec("graph", protocol="paper", runs="own"))


def found_in(rows, folder):
    return list(findings([manifest_of(rows, folder)]))


def test_findings_of_known_runs(tmp_path):
    rows = [
        row
        for seed in range(6)
        for row in (
            run("uotp-badmm-q-paper", "IMDB-BINARY", 0.80 + seed / 1000, seed),
            run("mean", "IMDB-BINARY", 0.70, seed),
            run("max", "IMDB-BINARY", 0.75, seed),
            run("mean", "MUTAG", 0.99, seed),  # no social network
            run("uotp-sinkhorn", "MUTAG", 0.85 + seed / 1000, seed, pool={"K": 16}),
            run("uotp-sinkhorn", "MUTAG", 0.80, seed, pool={"K": 1}),
            run("uotp-sinkhorn", "MUTAG", 0.81, seed, pool={"K": 8}),
            run("uotp-sinkhorn", "MUTAG", 0.82, seed),
            run("uotp-sinkhorn", "MUTAG", 0.82, seed, pool={"p0": "learned", "q0": "learned"}),
            run("uotp-sinkhorn", "MUTAG", 0.10, seed, pool={"p0": "learned", "q0": "learned"}, lr=0.1),
        )
    ]
    by = {(one.claim, one.compared): one for one in found_in(rows, tmp_path)}
    best = by[claims.BEST_ON_SOCIAL, "uotp-badmm-q-paper less the best other"]
    assert best.datasets == ("IMDB-BINARY",)
    assert best.ahead.points.value == pytest.approx(5.25)
    assert best.verdict == HOLDS
    assert by[claims.BEST_ON_SOCIAL, "uotp-badmm-e-paper less the best other"].verdict == NOT_RUN
    modules = by[claims.FLAT_IN_K, "uotp-sinkhorn with pool.K=16 less with pool.K=1"]
    assert modules.ahead.points.value == pytest.approx(5.25)
    assert modules.verdict == FAILS
    priors = by[claims.FLAT_IN_PRIORS, "uotp-sinkhorn with pool.p0=learned, pool.q0=learned less as it is"]
    assert priors.ahead.points.value == pytest.approx(0.0)
    assert priors.verdict == HOLDS


def test_social_networks_are_judged_one_by_one(tmp_path):
    """Over both together neither would be seen."""
    rows = [
        row
        for seed in range(4)
        for row in (
            run("uotp-badmm-q-paper", "IMDB-BINARY", 0.70 + seed / 1000, seed),
            run("mean", "IMDB-BINARY", 0.80, seed),
            run("uotp-badmm-q-paper", "REDDIT-BINARY", 0.90 + seed / 1000, seed),
            run("mean", "REDDIT-BINARY", 0.80, seed),
        )
    ]
    found = found_in(rows, tmp_path)
    social = [one for one in found if one.claim == claims.BEST_ON_SOCIAL and "badmm-q" in one.compared]
    assert [(one.datasets, one.verdict) for one in social] == [
        (("IMDB-BINARY",), FAILS),
        (("REDDIT-BINARY",), HOLDS),
    ]


def test_a_social_network_without_a_verdict_is_named(tmp_path):
    rows = [run(name, "REDDIT-BINARY", 0.8, seed=0) for name in ("uotp-badmm-q-paper", "mean", "max")]
    rows += [run(name, "COLLAB", 0.8, seed) for name in ("uotp-badmm-q-paper", "mean") for seed in (0, 1)]
    note = claims.claims_table([manifest_of(rows, tmp_path)]).notes[-1]
    assert note == (
        "social networks without a verdict: REDDIT-BINARY (too few seeds to say which other pooling is best); "
        "IMDB-BINARY, IMDB-MULTI, REDDIT-MULTI-5K (not run)"
    )


def test_the_command_shows_the_committed_runs(monkeypatch, capsys):
    monkeypatch.setenv(FOLDER, str(RESULTS))
    with pytest.raises(SystemExit) as stopped:
        main(["claims", "--format", "markdown"])
    assert not stopped.value.code
    shown = capsys.readouterr().out
    assert shown == (RESULTS / "claims.md").read_text().partition("\n    uotpool claims")[0]
    for claim in (claims.BEST_ON_SOCIAL, claims.LIKE_OTHERS_ON_BAGS, claims.CONSISTENT, claims.FLAT_IN_K):
        assert claim in shown
