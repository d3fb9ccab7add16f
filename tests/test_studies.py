"""What the solvers find is what the documentation quotes; the slow part is checked in test_optimality."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("ot")
pytest.importorskip("rich")

from bench import convergence, stability
from bench.rows import PART

ROOT = Path(__file__).parent.parent


def committed(name):
    """The lines of a committed measurement, with its numbers as such."""

    def cell(text):
        try:
            return float(text)
        except ValueError:
            return text

    with (ROOT / "results/bench" / f"{name}.csv").open(newline="") as file:
        return [{name: cell(text) for name, text in row.items()} for row in csv.DictReader(file)]


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
