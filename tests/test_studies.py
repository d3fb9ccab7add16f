"""The quick studies run and print what the documentation quotes; the slow one is checked in test_optimality."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("matplotlib")

from examples.studies import propositions, structural_zeros


def test_structural_zeros(tmp_path, capsys):
    structural_zeros.main(tmp_path)
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("| exact", "| paper"))]
    assert len(rows) == 18
    assert all("| none | none | none |" in row for row in rows if row.startswith("| exact"))
    assert "| paper | badmm-e | 4 | 3 | 0, 1, 2, 3 | 0, 1, 2, 3 | none |" in rows


def test_propositions(tmp_path, capsys):
    propositions.main(tmp_path)
    out = capsys.readouterr().out
    assert len(re.findall(r"^\| (?:mean|max|attention) ", out, re.MULTILINE)) == 6 * 10
    found = re.search(r"from a_X ([\d.e+-]+), from sqrt\(a_X\) \(normalised\) ([\d.e+-]+)", out)
    assert found is not None
    assert float(found[1]) > 1e-2
    assert float(found[2]) < 1e-5
