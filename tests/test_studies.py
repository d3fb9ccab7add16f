"""What the solvers find is what the documentation quotes; the slow part is checked in test_optimality."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("ot")
pytest.importorskip("rich")

from bench import convergence, propositions, stability, structural_zeros
from bench.rows import PART
from bench.session import Session
from tests import tolerances as tol

ROOT = Path(__file__).parent.parent


@pytest.fixture
def session(tmp_path):
    return Session(threads=(1,), repeats=1, quick=True, compile="none", out=tmp_path)


def committed(name):
    """The lines of a committed measurement, with its numbers as such."""

    def cell(text):
        try:
            return float(text)
        except ValueError:
            return text

    with (ROOT / "results/bench" / f"{name}.csv").open(newline="") as file:
        return [{name: cell(text) for name, text in row.items()} for row in csv.DictReader(file)]


def test_structural_zeros(session):
    rows = structural_zeros.measure(session)
    assert len(rows) == 18
    exact = [row for row in rows if row["formulation"] == "exact"]
    assert {row[name] for row in exact for name in structural_zeros.NAMES} == {"none", ""}
    (published,) = (
        row for row in rows if (row["formulation"], row["solver"], row["K"]) == ("paper", "badmm-e", 4)
    )
    found = [published[name] for name in structural_zeros.NAMES]
    assert found == ["3", "0, 1, 2, 3", "0, 1, 2, 3", "none"]


def test_propositions(session):
    rows = propositions.measure(session)
    assert len([row for row in rows if row[PART] == propositions.FIRST]) == 6 * 10 * 3
    assert len([row for row in propositions.summary(rows) if row[PART] == propositions.FIRST]) == 6 * 10
    (marginal,) = (row for row in rows if row[PART] == propositions.ROOT_OF_ATTENTION)
    assert marginal["from a_X"] > 1e-2
    assert marginal["from sqrt(a_X), normalised"] < 1e-5


def test_stability(session):
    lines = stability.summary(stability.measure(session))
    assert len(lines) == 3 * 2 * 3
    for line in lines:
        broken, off, largest, gradients = list(line.values())[-4:]
        assert gradients == 0
        if line["formulation"] == "exact":
            assert (broken, off) == (0, 0)
            assert largest < tol.MASS_F32
        elif line["solver"] == "sinkhorn":
            assert broken + off == 16  # of 4 x 4 cells


def test_convergence(session):
    rows = convergence.measure(session)
    curves = [row for row in rows if row[PART] == convergence.CURVES]
    assert len(curves) == 3 * 6 * 5
    for row in curves:
        if row["formulation"] == "exact" and row["solver"] == "sinkhorn" and row["K"] == 16:
            assert row["gap"] < tol.F64_SOLVED
    (pot,) = (row for row in rows if row[PART] == convergence.AGAINST_POT)
    assert pot["difference"] < tol.F64_SOLVED


def test_the_committed_measurements_say_what_the_documentation_quotes():
    page = " ".join((ROOT / "docs/published-algorithms.md").read_text().split())  # however its lines break
    lines = [line for line in stability.summary(committed("stability")) if line["X"] == stability.UNIT]
    (published,) = (line for line in lines if (line["solver"], line["formulation"]) == ("sinkhorn", "paper"))
    assert "2 cells with NaN or infinity, 98 with another mass" in page
    assert [published["plans with NaN or inf"], published["mass off by > 0.001"]] == [2, 98]
    exact = max(line["largest distance from 1"] for line in lines if line["formulation"] == "exact")
    assert f"mass 1 to {exact:.1e}".replace("e-0", "e-") in page
    curves = {
        (row["solver"], row["K"]): row["objective"]
        for row in committed("convergence")
        if row[PART] == convergence.CURVES
        and (row["formulation"], row["alpha0"], row["alpha1"]) == ("exact", 0.1, 1.0)
    }
    badmm_q = ", ".join(f"{curves['badmm-q', K]:.1e}".replace("e-0", "e-") for K in (4, 16, 256))
    assert f"{badmm_q} (BADMM-Q)" in page
